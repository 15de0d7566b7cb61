"""The workload: how many requests arrive, how they are spaced, and what they carry."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from autotune.core.errors import InputRefused


class ArrivalKind(StrEnum):
    CONSTANT = "constant"
    POISSON = "poisson"
    GAMMA = "gamma"
    TRACE = "trace"


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """The arrival process. ``cv`` is the coefficient of variation of the gaps (gamma only: 1 is
    Poisson, above 1 bursty); ``trace`` a text file with one arrival time in seconds per line."""

    kind: ArrivalKind = ArrivalKind.POISSON
    cv: float = 1.0
    trace: Path | None = None

    def __post_init__(self) -> None:
        if self.kind is ArrivalKind.GAMMA and not 0.05 <= self.cv <= 20:
            raise InputRefused("gamma arrivals need a cv between 0.05 and 20", value=self.cv)
        if (self.kind is ArrivalKind.TRACE) != (self.trace is not None):
            raise InputRefused("arrival 'trace' and a trace file go together", value=self.kind)


class InputKind(StrEnum):
    RANDOM = "random"
    JSON = "json"
    NPZ = "npz"
    PYTHON = "python"
    FOLDER = "folder"


@dataclass(frozen=True, slots=True, kw_only=True)
class InputSpec:
    """Where request inputs come from.

    ``shapes`` gives each dynamic dimension of an input a size (without the batch dimension),
    ``ranges`` the low and high end of its random values; ``path`` is a perf_analyzer input-data
    JSON file, an ``.npz`` whose first axis runs over samples, a folder of ``.npy`` or ``.npz``
    files, one per request, or a Python file, whose ``function`` is called as ``function(count,
    seed)`` and returns requests as mappings from input name to array without the batch dimension;
    ``count`` is how many distinct requests are made, where they are made.
    """

    kind: InputKind = InputKind.RANDOM
    path: Path | None = None
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    count: int = 32
    function: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The traffic that the service must carry: measured at ``target_qps`` × ``headroom``.

    Units: requests per second; seconds. The window opens when a steady state is seen, after
    ``warmup_s`` at the latest. It closes when the verdict is decided: for one that has met the SLA
    beyond doubt after ``measure_s`` at the latest, for one that is still undecided after
    ``measure_max_s`` (None: three times ``measure_s``). ``max_in_flight`` bounds open requests, so
    that a server that stops answering cannot exhaust this machine; reaching it while the server
    keeps up invalidates the measurement.
    """

    target_qps: float
    headroom: float = 1.2
    arrival: Arrival = field(default_factory=Arrival)
    inputs: InputSpec = field(default_factory=InputSpec)
    warmup_s: float = 10.0
    measure_s: float = 12.0
    measure_max_s: float | None = None
    saturation_s: float = 3.0
    timeout_s: float = 10.0
    max_in_flight: int = 2048

    def __post_init__(self) -> None:
        rules = (
            (
                0 < self.target_qps <= 1e5,
                "target_qps must be above 0, at most 100000",
                self.target_qps,
            ),
            (1 <= self.headroom <= 10, "headroom must be between 1 and 10", self.headroom),
            (0 <= self.warmup_s <= 600, "warmup_s must be between 0 and 600", self.warmup_s),
            (1 <= self.measure_s <= 3600, "measure_s must be between 1 and 3600", self.measure_s),
            (
                self.longest_s >= self.measure_s and self.longest_s <= 3600,
                "measure_max_s must be at least measure_s, at most 3600",
                self.longest_s,
            ),
            (
                0 <= self.saturation_s <= 600,
                "saturation_s must be between 0 and 600",
                self.saturation_s,
            ),
            (0 < self.timeout_s <= 600, "timeout_s must be above 0, at most 600", self.timeout_s),
            (
                1 <= self.max_in_flight <= 65536,
                "max_in_flight must be 1 to 65536",
                self.max_in_flight,
            ),
        )
        for holds, rule, value in rules:
            if not holds:
                raise InputRefused(rule, value=value)

    @property
    def longest_s(self) -> float:
        """How long the window of an undecided candidate may be, in seconds."""
        if self.measure_max_s is None:
            return min(3 * self.measure_s, 3600.0)
        return self.measure_max_s

    @property
    def offered_qps(self) -> float:
        """The rate that candidates are measured at, in requests per second."""
        return self.target_qps * self.headroom
