"""Variants in a model repository: which file a configuration serves, and in what words.

While a study runs, every variant's artefact stands in the model's version directory beside the
source file, and a candidate's configuration names the one it serves; an export holds that one
alone, under the name that its backend looks for. What each engine is in a ``config.pbtxt``:

``onnxruntime``
    ``backend: "onnxruntime"`` with instances of KIND_CPU. Where autotune's own runner stands in
    for that backend, the file is the runner's parameter ``model_file``.
``onnxruntime-cuda``
    The same with KIND_GPU. TF32 is on by default in ONNX Runtime's CUDA provider; Triton hands on
    whatever options stand under the accelerator named "cuda" (onnxruntime_backend,
    ``src/onnxruntime.cc``, ``ModelState::LoadModel``), so ``fp32`` says ``use_tf32: "0"`` there,
    and ``tf32`` says "1". The runner has parameters for it: ``execution_provider``, ``use_tf32``.
``onnxruntime-tensorrt``
    KIND_GPU with the accelerator "tensorrt" and its ``precision_mode``, one of FP32, FP16, INT8
    and, in newer releases, BF16 (same place). It has no word for TF32: TensorRT computes FP32 in
    TF32 where the GPU has it.
``tensorrt``
    ``platform: "tensorrt_plan"`` with KIND_GPU.
``pytorch``
    ``platform: "pytorch_libtorch"``; kind and devices of the instances stay as they are. Where
    autotune's own runner stands in for that backend, the file is the runner's parameter
    ``model_file``. ``tf32`` is its parameter as well, which the backend does not have.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelInstanceGroup

from autotune.adapters.triton.config import instance_count, parameter
from autotune.adapters.triton.precision import precision_of
from autotune.adapters.triton.runners import CUDA_ACCELERATOR, TF32, USE_TF32, cuda_says
from autotune.core.capability import MIN_COMPUTE_CAPABILITY, PROVIDERS, Hardware
from autotune.core.errors import CandidateFailed
from autotune.core.variants import Engine, Precision, Variant

if TYPE_CHECKING:  # a served model holds artefacts
    from autotune.adapters.triton.repository import ServedModel

MODEL_FILE = "model_file"
"""The runners' parameter that names the file that they serve."""
EXECUTION_PROVIDER = "execution_provider"
ONNX_FILE = "model.onnx"
EXPORTED_FILES = {
    Engine.ONNXRUNTIME: ONNX_FILE,
    Engine.ONNXRUNTIME_CUDA: ONNX_FILE,
    Engine.ONNXRUNTIME_TENSORRT: ONNX_FILE,
    Engine.TENSORRT: "model.plan",
    Engine.PYTORCH: "model.pt",
}
"""What each engine's backend looks for in a version directory."""

_PLATFORMS = {
    Engine.ONNXRUNTIME: ("", "onnxruntime"),
    Engine.ONNXRUNTIME_CUDA: ("", "onnxruntime"),
    Engine.ONNXRUNTIME_TENSORRT: ("", "onnxruntime"),
    Engine.TENSORRT: ("tensorrt_plan", "tensorrt"),
    Engine.PYTORCH: ("pytorch_libtorch", "pytorch"),
}
_ON_GPU = (Engine.ONNXRUNTIME_CUDA, Engine.ONNXRUNTIME_TENSORRT, Engine.TENSORRT)
_TENSORRT = "tensorrt"
_PRECISION_MODE = "precision_mode"
_PRECISION_MODES = {
    Precision.FP32: "FP32",
    Precision.TF32: "FP32",
    Precision.FP16: "FP16",
    Precision.BF16: "BF16",
    Precision.INT8: "INT8",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Artefact:
    """A built variant: ``path`` is its file in the cache, ``beside`` the files of weights that
    belong to it, in the same directory. ``own``: it is the model's own file, as it was given.
    ``exported``: it stands alone, under the name that its backend looks for."""

    variant: Variant
    path: Path
    beside: tuple[Path, ...] = ()
    own: bool = False
    exported: bool = False

    @property
    def standing(self) -> str:
        """What stands for it in a version directory while a study runs: its file, or a folder of
        its own where files of weights belong to it, whose names others may have as well."""
        return str(self.variant) if self.beside else f"{self.variant}{self.path.suffix}"


def with_variant(model: ServedModel, variant: str, config: ModelConfig) -> ModelConfig:
    """A copy of the model's configuration that serves the variant.

    CandidateFailed for one that was not built, or that this server cannot serve.
    """
    artefact = _artefact(model, variant)
    if artefact.own:
        return _copy(config)
    return _serving(model, artefact, config, "" if artefact.exported else artefact.standing)


def variant_in_service(
    model: ServedModel, *, gpus: int = 0, hardware: Hardware | None = None
) -> str | None:
    """The variant that a model is as it stands, by its weights, its configuration and, for TF32,
    the GPU (where that is not known, it is taken for one that has it); None where it is none (the
    user's own Python code, an ensemble) or its precision cannot be told."""
    own = next((name for name, each in model.artefacts.items() if each.own), None)
    if own is not None:
        return own
    engine = _engine(model, gpus)
    precision = precision_of(model.onnx) if engine is not None and model.onnx else None
    if engine is None or precision is None:
        return None
    if precision is Precision.FP32:
        precision = _computed_in(engine, model, hardware or Hardware())
    return str(Variant(engine, precision))


def in_tf32(model: ServedModel) -> bool:
    """Whether one of our runners may compute the model as it stands in TF32."""
    config = model.config
    if not model.runner or not _uses_gpu(config, 0):
        return False
    return parameter(config, USE_TF32) == "1" or parameter(config, TF32) == "true"


def engines_of_runner(model: ServedModel) -> tuple[Engine, ...]:
    """What the runner that serves the model can serve it by."""
    return (Engine.PYTORCH,) if model.torch else (Engine.ONNXRUNTIME, Engine.ONNXRUNTIME_CUDA)


def _computed_in(engine: Engine, model: ServedModel, hardware: Hardware) -> Precision:
    """What an engine makes of weights in fp32."""
    config = model.config
    if engine is Engine.ONNXRUNTIME or (model.runner and not in_tf32(model)):
        return Precision.FP32
    if engine is Engine.ONNXRUNTIME_TENSORRT:
        mode = _accelerator_says(config, _TENSORRT, _PRECISION_MODE) or "FP32"
        low = {said: precision for precision, said in _PRECISION_MODES.items() if said != "FP32"}
        if mode.upper() in low:
            return low[mode.upper()]
    elif cuda_says(config, USE_TF32) == "0":
        return Precision.FP32
    gpu = hardware.compute_capability
    old = gpu is not None and gpu < MIN_COMPUTE_CAPABILITY[Precision.TF32]
    return Precision.FP32 if old else Precision.TF32


def _artefact(model: ServedModel, variant: str) -> Artefact:
    if variant not in model.artefacts:
        raise CandidateFailed(
            f"model {model.name} has no such variant",
            value=variant,
            next_step=f"it has {', '.join(model.artefacts) or 'none'}",
        )
    return model.artefacts[variant]


def _engine(model: ServedModel, gpus: int) -> Engine | None:
    config = model.config
    if model.runner:
        said = parameter(config, EXECUTION_PROVIDER) or PROVIDERS[Engine.ONNXRUNTIME_CUDA]
        on_gpu = said.startswith("CUDA") and _uses_gpu(config, 0)
        return Engine.ONNXRUNTIME_CUDA if on_gpu else Engine.ONNXRUNTIME
    if config.backend != "onnxruntime" and config.platform != "onnxruntime_onnx":
        return None
    if not _uses_gpu(config, gpus):
        return Engine.ONNXRUNTIME
    accelerators = config.optimization.execution_accelerators.gpu_execution_accelerator
    if any(each.name == _TENSORRT for each in accelerators):
        return Engine.ONNXRUNTIME_TENSORRT
    return Engine.ONNXRUNTIME_CUDA


def _uses_gpu(config: ModelConfig, gpus: int) -> bool:
    groups = config.instance_group or [ModelInstanceGroup()]
    return any(
        group.kind == ModelInstanceGroup.KIND_GPU
        or (group.kind == ModelInstanceGroup.KIND_AUTO and gpus > 0)
        for group in groups
    )


# ----------------------------------------------------------------------------- configurations
def _copy(config: ModelConfig) -> ModelConfig:
    changed = ModelConfig()
    changed.CopyFrom(config)
    return changed


def _serving(model: ServedModel, artefact: Artefact, config: ModelConfig, file: str) -> ModelConfig:
    """``file``: what stands for the artefact in the version directory, empty where it has the name
    that its backend looks for. (For a folder the ONNX Runtime backend takes its model.onnx.)"""
    changed = _copy(config)
    if config.backend == "python":
        _through_runner(model, artefact, changed, file)
        return changed
    engine, precision = artefact.variant.engine, artefact.variant.precision
    platform, backend = _PLATFORMS[engine]
    for field in ("platform", "default_model_filename", "cc_model_filenames"):
        changed.ClearField(field)
    changed.platform, changed.backend = platform, backend
    if file:
        changed.default_model_filename = file
    if engine is Engine.PYTORCH:
        _set_parameter(changed, TF32, "true" if precision is Precision.TF32 else None)
    else:
        _set_kind(changed, on_gpu=engine in _ON_GPU)
    _set_accelerators(changed, engine, precision)
    return changed


def _through_runner(model: ServedModel, artefact: Artefact, config: ModelConfig, file: str) -> None:
    engine, precision = artefact.variant.engine, artefact.variant.precision
    if not model.runner or engine not in engines_of_runner(model):
        raise CandidateFailed(
            f"the server has the Python backend alone, which cannot serve {artefact.variant}",
            next_step="use launch: docker or binary, with a Triton that has the backend",
        )
    within = f"{file}/{ONNX_FILE}" if artefact.beside else file
    _set_parameter(config, MODEL_FILE, within if file else None)
    if engine is Engine.PYTORCH:
        _set_parameter(config, TF32, "true" if precision is Precision.TF32 else None)
        return
    on_gpu = engine is Engine.ONNXRUNTIME_CUDA
    _set_kind(config, on_gpu=on_gpu)
    _set_parameter(config, EXECUTION_PROVIDER, PROVIDERS[engine] if on_gpu else None)
    _set_parameter(config, USE_TF32, str(int(precision is Precision.TF32)) if on_gpu else None)


def _set_parameter(config: ModelConfig, key: str, value: str | None) -> None:
    if value is not None:
        config.parameters[key].string_value = value
    elif key in config.parameters:
        del config.parameters[key]


def _set_kind(config: ModelConfig, *, on_gpu: bool) -> None:
    """Instances where the engine runs; their number and what else the user said of them stay."""
    if not config.instance_group:
        # One on a GPU, whatever a silent configuration would have come to on the CPU.
        config.instance_group.add(count=1 if on_gpu else instance_count(config))
    kind = ModelInstanceGroup.KIND_GPU if on_gpu else ModelInstanceGroup.KIND_CPU
    for group in config.instance_group:
        if group.kind != kind:
            group.kind = kind
            group.ClearField("gpus")


def _set_accelerators(config: ModelConfig, engine: Engine, precision: Precision) -> None:
    """The GPU accelerators that the engine needs; what the user said of them beside stays."""
    before = {
        each.name: dict(each.parameters)
        for each in config.optimization.execution_accelerators.gpu_execution_accelerator
    }
    wanted: dict[str, dict[str, str]] = {}
    if engine is Engine.ONNXRUNTIME_TENSORRT:
        # From TensorRT 11 on it reads types from the graph, which is the only way to fp8.
        mode = _PRECISION_MODES.get(precision)
        said = {} if mode is None else {_PRECISION_MODE: mode}
        wanted[_TENSORRT] = {**before.get(_TENSORRT, {}), **said}
    if engine is Engine.ONNXRUNTIME_CUDA:
        tf32 = {Precision.FP32: {USE_TF32: "0"}, Precision.TF32: {USE_TF32: "1"}}.get(precision, {})
        wanted[CUDA_ACCELERATOR] = {**before.get(CUDA_ACCELERATOR, {}), **tf32}
    if not before and not any(
        parameters or name == _TENSORRT for name, parameters in wanted.items()
    ):
        return
    accelerators = config.optimization.execution_accelerators
    accelerators.ClearField("gpu_execution_accelerator")
    for name, parameters in wanted.items():
        if parameters or name == _TENSORRT:
            accelerators.gpu_execution_accelerator.add(name=name, parameters=parameters)


def _accelerator_says(config: ModelConfig, name: str, key: str) -> str | None:
    for each in config.optimization.execution_accelerators.gpu_execution_accelerator:
        if each.name == name and key in each.parameters:
            return str(each.parameters[key])
    return None
