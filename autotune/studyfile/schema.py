"""The shape of a study file: keys, types and single-value rules.

What several keys together must satisfy is in `autotune.studyfile.contradictions`; what a value
must satisfy wherever it comes from is checked by the dataclasses of `autotune.core`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    StrictStr,
)
from pydantic_core import PydanticCustomError

Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Positive = Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(strict=True, ge=1)]
Port = Annotated[int, Field(strict=True, ge=1, le=65535)]
WindowSeconds = Annotated[float, Field(strict=True, ge=1, le=3600)]
Flag = StrictStr | StrictBool | Annotated[int, Field(strict=True)] | Number


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class PackageSection(_Section):
    requirement: StrictStr
    file: StrictStr
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class ModelSection(_Section):
    name: Annotated[str, Field(strict=True, pattern=r"^[A-Za-z0-9_.\-]+$")] | None = None
    repository: StrictStr | None = None
    onnx: StrictStr | None = None
    package: PackageSection | None = None
    files: dict[StrictStr, PackageSection] = Field(default_factory=dict)


DEVICE = re.compile(r"\d+|(GPU|MIG)-[0-9A-Fa-f-]+|MIG-GPU-[0-9A-Fa-f-]+/\d+/\d+")
"""A GPU as NVML and CUDA name it: index, UUID, or a MIG slice's own (before driver 470: its GPU's
with the ids of its instances)."""


def _device(value: object) -> object:
    if isinstance(value, bool) or not DEVICE.fullmatch(str(value)):
        raise PydanticCustomError(
            "device", "must be a GPU's index, its UUID (GPU-…) or a MIG slice's (MIG-…)"
        )
    return str(value)


def _one_or_more(value: object) -> object:
    return value if isinstance(value, list) else [value]


def _devices(value: object) -> object:
    if value is None or value in ("all", "none"):
        raise PydanticCustomError(
            "devices",
            "names GPUs: leave the key out for every GPU"
            " (a study without any: CUDA_VISIBLE_DEVICES= before the command)",
        )
    return _one_or_more(value)


Devices = Annotated[list[Annotated[str, BeforeValidator(_device)]], BeforeValidator(_devices)]


class ServerSection(_Section):
    launch: Literal["embedded", "binary", "docker", "remote"] = "embedded"
    binary: StrictStr | None = None
    image: StrictStr | None = None
    gpus: StrictStr | None = None
    http: StrictStr | None = None
    grpc: StrictStr | None = None
    metrics: StrictStr | None = None
    ports: tuple[Port, Port, Port] | None = None
    flags: dict[str, Flag] = Field(default_factory=dict)
    requirements: StrictStr | None = None
    devices: Devices = Field(default_factory=list)
    price_per_hour: Positive | None = None
    start_timeout_s: Positive = 120.0
    load_timeout_s: Positive = 120.0


class ArrivalSection(_Section):
    kind: Literal["constant", "poisson", "gamma", "trace"] = "poisson"
    cv: Positive = 1.0
    trace: StrictStr | None = None


class InputsSection(_Section):
    kind: Literal["random", "json", "npz", "python", "folder"] = "random"
    path: StrictStr | None = None
    function: Annotated[str, Field(strict=True, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")] | None = None
    shapes: dict[str, list[Count]] = Field(default_factory=dict)
    ranges: dict[str, tuple[Number, Number]] = Field(default_factory=dict)
    count: Count = 32


def _arrival_shorthand(value: object) -> object:
    return {"kind": value} if isinstance(value, str) else value


PYTHON_FUNCTION = re.compile(r"(?P<path>.+\.py):(?P<function>[A-Za-z_][A-Za-z0-9_]*)")
"""A function of a Python file, as text: ``render.py:words``."""


def _inputs_shorthand(value: object) -> object:
    """``random``, ``FILE.py:FUNCTION``, or the path of a file or folder that tells its kind."""
    if not isinstance(value, str):
        return value
    if found := PYTHON_FUNCTION.fullmatch(value):
        return {"kind": "python", **found.groupdict()}
    for suffix, kind in ((".py", "python"), (".json", "json"), (".npz", "npz"), ("/", "folder")):
        if value.endswith(suffix):
            return {"kind": kind, "path": value}
    return {"kind": "folder", "path": value} if "/" in value else {"kind": value}


Inputs = Annotated[InputsSection, BeforeValidator(_inputs_shorthand)]


class WorkloadSection(_Section):
    target_qps: Positive
    headroom: Annotated[float, Field(strict=True, ge=1, le=10)] = 1.2
    arrival: Annotated[ArrivalSection, BeforeValidator(_arrival_shorthand)] = ArrivalSection()
    inputs: Inputs = InputsSection()
    warmup_s: Annotated[float, Field(strict=True, ge=0, le=600)] = 10.0
    measure_s: WindowSeconds = 12.0
    measure_max_s: WindowSeconds | None = None
    saturation_s: Annotated[float, Field(strict=True, ge=0, le=600)] = 3.0
    timeout_s: Annotated[float, Field(strict=True, gt=0, le=600)] = 10.0
    max_in_flight: Annotated[int, Field(strict=True, ge=1, le=65536)] | None = None


_PERCENT = re.compile(r"(?:±|\+-|\+/-)?\s*(\d+(?:\.\d+)?)\s*%")


def _share(value: object) -> object:
    """``"±20%"``, ``"+-20%"``, ``"20%"`` and 0.2 are all 0.2."""
    if not isinstance(value, str):
        return value
    found = _PERCENT.fullmatch(value.strip())
    if found is None:
        raise PydanticCustomError("share", "must be a share, such as 20% or 0.2")
    return float(found[1]) / 100


class SlaSection(_Section):
    p50_ms: Positive | None = None
    p90_ms: Positive | None = None
    p95_ms: Positive | None = None
    p99_ms: Positive | None = None
    error_rate: Annotated[float, Field(strict=True, ge=0, lt=1)] = 0.001
    min_achieved: Annotated[float, Field(strict=True, gt=0, le=1)] = 0.98
    accuracy_drop: (
        Annotated[float, BeforeValidator(_share), Field(strict=True, ge=0, le=1)] | None
    ) = None


class ObjectiveSection(_Section):
    metric: StrictStr
    direction: Literal["maximize", "minimize"] | None = None


def _objective_shorthand(value: object) -> object:
    return {"metric": value} if isinstance(value, str) else value


class BudgetSection(_Section):
    trials: Annotated[int, Field(strict=True, ge=1, le=100_000)] = 30
    minutes: Annotated[float, Field(strict=True, gt=0, le=14_400)] = 15.0


class ToleranceSection(_Section):
    rtol: Annotated[float, Field(strict=True, ge=0)] | None = None
    atol: Annotated[float, Field(strict=True, ge=0)] | None = None


TrustShare = Annotated[float, BeforeValidator(_share), Field(strict=True, gt=0, le=1)]


class TrustSection(_Section):
    send_lag: TrustShare = 0.10
    generator_cpu: TrustShare = 0.90
    foreign_cpu: TrustShare = 0.10


def _finalists(value: int) -> int:
    if value == 1:
        raise PydanticCustomError("finalists", "must be 0, or 2 to 8: one is held against another")
    return value


class FinalsSection(_Section):
    candidates: Annotated[int, Field(strict=True, ge=0, le=8), AfterValidator(_finalists)] = 2
    rounds: Annotated[int, Field(strict=True, ge=1, le=50)] = 1
    measure_s: WindowSeconds | None = None
    capacity: Annotated[int, Field(strict=True, ge=0, le=20)] = 5


class RobustSection(_Section):
    qps: Annotated[float, BeforeValidator(_share), Field(strict=True, ge=0, lt=1)] = 0.2
    cv: Annotated[
        list[Annotated[float, Field(strict=True, ge=0.05, le=20)]], BeforeValidator(_one_or_more)
    ] = Field(default_factory=list)


def _is_none(value: object) -> bool:
    return value is None or value is False or value == "none"


def _finals_shorthand(value: object) -> object:
    return {"candidates": 0} if _is_none(value) else value


def _robust_shorthand(value: object) -> object:
    return None if _is_none(value) else value


EVALUATED, CALIBRATED = 128, 64
"""Requests that the evaluation and the calibration of variants use by default."""


def _accuracy_shorthand(value: object) -> object:
    """The metric alone, or the mapping."""
    return _with_data(value, "metric", EVALUATED)


def _calibration_shorthand(value: object) -> object:
    """The data alone, or the mapping."""
    return _with_data(value, "data", CALIBRATED)


def _with_data(value: object, only: str, samples: int) -> object:
    """``value`` spelled out; of data that are made, as many as are used where nothing is said."""
    if _is_none(value):
        return None
    section = {only: value} if isinstance(value, str) else value
    if not isinstance(section, Mapping) or "data" not in section:
        return section
    data = _inputs_shorthand(section["data"])
    if isinstance(data, Mapping):
        data = {"count": section.get("samples", samples), **data}
    return {**section, "data": data}


class AccuracySection(_Section):
    metric: StrictStr = "cosine"
    data: Inputs | None = None
    expected: StrictStr | None = None
    output: StrictStr = ""
    samples: Count = EVALUATED


def _exclude_shorthand(value: object) -> object:
    return "none" if _is_none(value) else value


class CalibrationSection(_Section):
    data: Inputs
    samples: Count = CALIBRATED
    methods: Annotated[
        list[Literal["minmax", "entropy", "percentile"]],
        BeforeValidator(_one_or_more),
        Field(min_length=1),
    ] = ["minmax", "entropy", "percentile"]
    per_channel: StrictBool = True
    exclude: Annotated[
        Literal["auto", "none"] | list[StrictStr], BeforeValidator(_exclude_shorthand)
    ] = "auto"
    max_excluded: Annotated[int, Field(strict=True, ge=0, le=1000)] = 8


class StudySection(_Section):
    """The whole file."""

    study: Annotated[
        str, Field(strict=True, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.\-]*$", max_length=100)
    ]
    model: ModelSection
    server: ServerSection = ServerSection()
    workload: WorkloadSection
    sla: SlaSection
    space: StrictStr | dict[str, Any]
    objectives: Annotated[
        list[Annotated[ObjectiveSection, BeforeValidator(_objective_shorthand)]],
        Field(min_length=1),
    ] = [
        ObjectiveSection(metric="saturation_qps"),
        ObjectiveSection(metric="p95_ms"),
        ObjectiveSection(metric="utilization"),
    ]
    pick: Literal["cheapest", "fastest", "max_throughput", "balanced"] = "cheapest"
    search: Literal["optuna", "grid", "random"] = "optuna"
    budget: BudgetSection = BudgetSection()
    tolerance: ToleranceSection = ToleranceSection()
    robust: Annotated[RobustSection | None, BeforeValidator(_robust_shorthand)] = None
    finals: Annotated[FinalsSection, BeforeValidator(_finals_shorthand)] = FinalsSection()
    trust: TrustSection = TrustSection()
    accuracy: Annotated[AccuracySection | None, BeforeValidator(_accuracy_shorthand)] = None
    calibration: Annotated[CalibrationSection | None, BeforeValidator(_calibration_shorthand)] = (
        None
    )
    seed: Annotated[int, Field(strict=True, ge=0, lt=2**32)] = 0
