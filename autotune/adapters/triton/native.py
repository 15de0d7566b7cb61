"""The form that a model of one of autotune's runners has on a Triton with the native backend."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from tritonclient.grpc.model_config_pb2 import ModelInstanceGroup

from autotune.adapters.triton.artefacts import EXECUTION_PROVIDER, MODEL_FILE
from autotune.adapters.triton.config import (
    RUNNER_PARAMETERS,
    TORCH_PARAMETERS,
    ModelConfig,
    parameter,
    render,
)
from autotune.adapters.triton.onnx_graph import read_graph
from autotune.adapters.triton.repository import CONFIG_FILE, ONNX_FILE, ServedModel
from autotune.adapters.triton.runners import CUDA_ACCELERATOR, USE_TF32
from autotune.core.errors import InputRefused

RUNNER_PARAMETERS_ONLY = (MODEL_FILE, EXECUTION_PROVIDER)
_BACKENDS = Path("/opt/tritonserver/backends")
_RUNNERS_THREADS = "1"
"""What the runner takes where its configuration is silent; the backend would take every core."""


def native_names(model: ServedModel) -> dict[str, str]:
    """What a parameter of the runner that serves the model is called by the backend for which the
    runner stands in."""
    return TORCH_PARAMETERS if model.torch else RUNNER_PARAMETERS


def native_form(model: ServedModel, workdir: Path, *, on_gpu: bool = False) -> ServedModel:
    """A model that `from_onnx` built, for Triton's own ONNX Runtime backend: the same file and the
    same settings in that backend's words, in ``workdir``."""
    if not model.runner or model.onnx is None:
        raise InputRefused("only a model that autotune's runner serves has another, native form")
    graph = read_graph(model.onnx)
    source = workdir / model.name
    version = source / model.onnx.parent.name
    shutil.rmtree(source, ignore_errors=True)
    version.mkdir(parents=True)
    for file in (Path(ONNX_FILE), *map(Path, graph.external)):
        (version / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(model.onnx.parent / file, version / file)
    config = native_config(model.config, on_gpu=on_gpu)
    (source / CONFIG_FILE).write_text(render(config), encoding="utf-8")
    return replace(
        model,
        repository=workdir,
        config=config,
        source=source,
        onnx=version / ONNX_FILE,
        runner=False,
        native=None,
        artefacts={},
    )


def native_config(config: ModelConfig, *, on_gpu: bool = False) -> ModelConfig:
    """A runner's configuration in the ONNX Runtime backend's words."""
    changed = ModelConfig()
    changed.CopyFrom(config)
    changed.backend = "onnxruntime"
    for ours, native in RUNNER_PARAMETERS.items():
        said = [
            config.parameters[key].string_value
            for key in (ours, native)
            if key in config.parameters
        ]
        if ours in changed.parameters:
            del changed.parameters[ours]
        changed.parameters[native].string_value = said[0] if said else _RUNNERS_THREADS
    tf32 = parameter(config, USE_TF32)
    if tf32 is not None:
        accelerators = changed.optimization.execution_accelerators
        accelerators.gpu_execution_accelerator.add(
            name=CUDA_ACCELERATOR, parameters={USE_TF32: tf32}
        )
    for key in (*RUNNER_PARAMETERS_ONLY, USE_TF32):
        if key in changed.parameters:
            del changed.parameters[key]
    if on_gpu:
        for group in changed.instance_group:
            group.kind = ModelInstanceGroup.KIND_GPU
    return changed


def has_onnxruntime(binary: Path, backends: str | None) -> bool:
    """Whether an installed tritonserver has the ONNX Runtime backend: in the directory of backends
    that it is given, else in the one beside it or Triton's own."""
    found = [Path(backends)] if backends else [binary.resolve().parents[1] / "backends", _BACKENDS]
    return any((folder / "onnxruntime").is_dir() for folder in found)
