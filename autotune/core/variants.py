"""Variants: built artefacts of a model, engine × precision, and what came of building them."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from autotune.core.errors import InputRefused
from search_spaces.candidate import VARIANT, target_of


class Engine(StrEnum):
    """What executes the artefact in service."""

    ONNXRUNTIME = "onnxruntime"
    """ONNX Runtime on the CPU."""
    ONNXRUNTIME_CUDA = "onnxruntime-cuda"
    ONNXRUNTIME_TENSORRT = "onnxruntime-tensorrt"
    """ONNX Runtime that hands what it can to TensorRT (Triton's ``execution_accelerators``)."""
    TENSORRT = "tensorrt"
    PYTORCH = "pytorch"


class Precision(StrEnum):
    FP32 = "fp32"
    TF32 = "tf32"
    """The fp32 artefact with TF32 allowed at run time; ``fp32`` switches it off."""
    FP16 = "fp16"
    BF16 = "bf16"
    INT8 = "int8"
    FP8 = "fp8"


@dataclass(frozen=True, slots=True, order=True)
class Variant:
    """A recipe's name: ``onnxruntime-int8``, ``tensorrt-fp16``."""

    engine: Engine
    precision: Precision

    def __str__(self) -> str:
        return f"{self.engine}-{self.precision}"

    @classmethod
    def parse(cls, name: str) -> Variant:
        """From its name; InputRefused with near ones for a name that is none."""
        every = {str(one): one for one in ALL}
        if name in every:
            return every[name]
        near = _by_precision(name) or difflib.get_close_matches(name, every, n=3, cutoff=0.5)
        raise InputRefused(
            "a variant is <engine>-<precision>",
            value=name,
            next_step=f"did you mean {' or '.join(near)}?" if near else f"e.g. {next(iter(every))}",
        )


_ON_CPU = (Precision.FP32, Precision.FP16, Precision.INT8)


def _by_precision(name: str) -> list[str]:
    """Variants that have some place to run, of a precision that stands without its engine."""
    if name not in tuple(Precision):
        return []
    on_cpu = [f"{Engine.ONNXRUNTIME}-{name} (on a CPU)"] if name in _ON_CPU else []
    return [*on_cpu, f"{Engine.TENSORRT}-{name} (on an NVIDIA GPU)"]


AS_GIVEN = "the model as it was given"
"""The note of a variant that is the source itself."""

ALL = tuple(Variant(engine, precision) for engine in Engine for precision in Precision)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One thing that was tried on the way to a variant: ``what`` in words ("entropy, per channel,
    4 nodes left in fp32"), the accuracy it gave by ONNX Runtime (None: it could not be built, and
    ``note`` says why), and whether it is the one that was kept."""

    what: str
    accuracy_drop: float | None
    seconds: float
    kept: bool = False
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantRecord:
    """What came of one variant that a study asks for.

    ``step`` is the pipeline's step that it is of (empty: the tuned model). ``digest`` is the
    SHA-256 of everything that it was built from: source model, recipe, calibration data, tool
    versions. ``file`` is the artefact's path in the cache (empty where there is none).
    ``accuracy_drop`` is the gate's finding, in ONNX Runtime with graph optimizations off, and
    ``served_drop`` that on the outputs that Triton served; None: not measured. ``refused`` says why
    it may not be measured under load; empty where it may. ``notes`` are for people.
    """

    variant: Variant
    step: str = ""
    digest: str = ""
    file: str = ""
    size_mb: float | None = None
    seconds: float = 0.0
    cached: bool = False
    accuracy_drop: float | None = None
    served_drop: float | None = None
    refused: str = ""
    attempts: tuple[Attempt, ...] = ()
    tools: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def came_of(self) -> str:
        """In a few words what came of it: refused, or where the artefact is from."""
        if self.refused:
            return "refused"
        if AS_GIVEN in self.notes:
            return "nothing to build"
        return "from the cache" if self.cached else f"built in {self.seconds:.0f} s"

    @property
    def usable(self) -> bool:
        return not self.refused

    @property
    def target(self) -> str:
        """The space's parameter that it is a value of."""
        return target_of(self.step, VARIANT)
