"""TensorRT plans: built on the GPU host, for its GPU and its TensorRT."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from autotune.adapters.variants.apart import build_apart
from autotune.adapters.variants.made import Made, Say
from autotune.adapters.variants.request import BuildRequest
from autotune.core.capability import Hardware, impossible
from autotune.core.variants import Precision

PLAN = "model.plan"
_MODULE = "autotune.adapters.variants.tensorrt_build"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """How a plan is built.

    The graph holds the precision; ``tf32`` only says whether fp32 may be computed in TF32.
    ``shapes`` (by input, without the batch dimension) are needed for inputs with other free
    dimensions than the batch. ``timing_cache`` is a file that builds share. ``bindings``: the
    module with TensorRT's Python API. ``variables`` of the environment say which GPU it is for.
    """

    tf32: bool = False
    batch_sizes: tuple[int, ...] = (1,)
    shapes: Mapping[str, Sequence[Sequence[int]]] = field(default_factory=dict)
    timing_cache: Path | None = None
    bindings: str = "tensorrt"
    deadline_s: float = 3600.0
    variables: Mapping[str, str] = field(default_factory=dict)


class TensorRTBuilder:
    """Builds the plans of a study's TensorRT variants (`made.EngineBuilder`).

    ``timing_dir`` keeps what TensorRT measured of its kernels, one file for each GPU, driver and
    version, so that the next plan is built faster. ``here`` is what it builds for, and
    ``variables`` of the environment say so to CUDA.
    """

    def __init__(
        self, timing_dir: Path, *, here: Hardware, variables: Mapping[str, str] | None = None
    ) -> None:
        self._timing_dir = timing_dir
        self._here = here
        self._variables = variables or {}

    def tools(self) -> Mapping[str, str]:
        return identity(self._here)

    def build(self, request: BuildRequest, onnx: Path | None, folder: Path, say: Say) -> Made:
        """``model.plan`` in ``folder``, from the typed graph ``onnx``, with the space's batch sizes
        and the workload's shapes as its profile."""
        reason = impossible(request.variant, self._here)
        if reason is None and onnx is None:
            reason = "TensorRT plans are built from ONNX"
        if reason is not None or onnx is None:
            return Made(refused=reason or "")
        say(f"building {request.variant} (a process of its own; minutes for a large network)")
        options = PlanOptions(
            tf32=request.variant.precision is Precision.TF32,
            batch_sizes=request.batch_sizes,
            shapes=request.shapes,
            timing_cache=self._timing_cache(),
            variables=self._variables,
        )
        return build_plan(onnx, folder, options)

    def _timing_cache(self) -> Path:
        self._timing_dir.mkdir(parents=True, exist_ok=True)
        key = json.dumps(self.tools(), sort_keys=True).encode()
        return self._timing_dir / f"timing-{hashlib.sha256(key).hexdigest()[:16]}.cache"


def build_plan(onnx: Path, folder: Path, options: PlanOptions | None = None) -> Made:
    """``model.plan`` in ``folder``, built by a process of its own from a strongly typed ONNX file.

    What fails is told in ``refused``; the process's log is ``build.log`` in ``folder``.
    """
    asked = options or PlanOptions()
    order = {
        "onnx": str(onnx.absolute()),
        "plan": str((folder / PLAN).absolute()),
        "tf32": asked.tf32,
        "batch_sizes": list(asked.batch_sizes),
        "shapes": {name: [list(shape) for shape in each] for name, each in asked.shapes.items()},
        "timing_cache": str(asked.timing_cache.absolute()) if asked.timing_cache else None,
        "bindings": asked.bindings,
    }
    answer = build_apart(
        _MODULE, order, folder, deadline_s=asked.deadline_s, variables=asked.variables
    )
    if "refused" in answer:
        return Made(refused=str(answer["refused"]))
    return Made(file=folder / PLAN, notes=_notes(answer, asked.bindings))


def identity(here: Hardware) -> dict[str, str]:
    """What a plan and its timings depend on: they are of no use on another GPU, driver or
    TensorRT (NVIDIA's support policies: serialized plans and timing caches need all four numbers
    of the version to match)."""
    return {
        "tensorrt": ".".join(map(str, here.tensorrt or ())),
        "gpu": here.gpu,
        "compute capability": ".".join(map(str, here.compute_capability or ())),
        "driver": here.driver,
    }


def _notes(answer: Mapping[str, object], bindings: str) -> tuple[str, ...]:
    profile = answer["profile"]
    assert isinstance(profile, dict)
    shapes = "; ".join(
        f"{name} {_span(least, most)}" for name, (least, _best, most) in profile.items()
    )
    return (
        f"built for {shapes}",
        f"{bindings} {answer['tensorrt']} can load it and no other: take that of the Triton that"
        " serves it",
    )


def _span(least: Sequence[int], most: Sequence[int]) -> str:
    return "×".join(
        str(low) if low == high else f"{low}–{high}" for low, high in zip(least, most, strict=True)
    )
