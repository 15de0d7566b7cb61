"""autotune's own runners on the Python backend, and what of a native configuration they serve.

They stand in for Triton's ONNX Runtime and PyTorch backends on the embedded server, which has the
Python backend alone: ``runner/model.py`` for ``model.onnx``, ``runner/torch_model.py`` for
``model.pt`` and ``model.pt2``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tritonclient.grpc.model_config_pb2 import ModelInstanceGroup

from autotune.adapters.triton.config import (
    RUNNER_PARAMETERS,
    TORCH_PARAMETERS,
    ModelConfig,
    instance_count,
)
from autotune.adapters.triton.server_python import ServerPython
from autotune.core.capability import PROVIDERS
from autotune.core.errors import InputRefused
from autotune.core.variants import Engine

ONNX_RUNNER = Path(__file__).parent / "runner" / "model.py"
TORCH_RUNNER = Path(__file__).parent / "runner" / "torch_model.py"
TORCH_FILES = ("model.pt", "model.pt2")
"""What Triton's pytorch backend, and the runner, look for in a version directory, in this order."""
USE_TF32 = "use_tf32"
"""The ONNX runner's parameter, and the option of ONNX Runtime's CUDA provider."""
TF32 = "tf32"
"""The PyTorch runner's."""
CUDA_ACCELERATOR = "cuda"

_GPU_INPUTS = "FORCE_CPU_ONLY_INPUT_TENSORS"
_EVERY_CORE = "0"
"""What the native backends do where a configuration is silent; the runners would take one."""
_CPU, _GPU = ModelInstanceGroup.KIND_CPU, ModelInstanceGroup.KIND_GPU
_AUTO = ModelInstanceGroup.KIND_AUTO


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddedHost:
    """Where an embedded server runs. ``gpus``: how many it sees. ``python`` gives the Python that
    its models run in, and is asked only where a model depends on what that has; None: not known, so
    that nothing is ruled out. ``say`` is told what is served otherwise than its configuration says.
    """

    gpus: int = 0
    python: Callable[[], ServerPython] | None = None
    say: Callable[[str], None] = lambda _: None


ANY_HOST = EmbeddedHost()


def onnx_config(native: ModelConfig, host: EmbeddedHost) -> ModelConfig:
    """What the ONNX runner serves of a configuration of the ONNX Runtime backend: on a GPU where
    that would, if the server's ONNX Runtime can; else on the CPU, which ``host`` is told."""
    config = _python_config(native)
    _set_silent(config, RUNNER_PARAMETERS)
    _place(config, native, host, _no_cuda_provider)
    if _on_gpu(config):
        _set_missing(config, USE_TF32, cuda_says(native, USE_TF32) or "1")
        _say_other_accelerators(native, host)
    return config


def torch_config(native: ModelConfig, host: EmbeddedHost) -> ModelConfig:
    """What the PyTorch runner serves of a configuration of the pytorch backend, placed in the same
    way. InputRefused where the server's Python has no PyTorch."""
    if host.python is not None:
        _require_torch(host.python(), native.name)
    config = _python_config(native)
    _set_silent(config, TORCH_PARAMETERS)
    _place(config, native, host, _no_cuda_torch)
    if _on_gpu(config):
        _set_missing(config, _GPU_INPUTS, "no")
    return config


def cuda_says(config: ModelConfig, key: str) -> str | None:
    """An option that a native configuration gives ONNX Runtime's CUDA provider."""
    for each in config.optimization.execution_accelerators.gpu_execution_accelerator:
        if each.name == CUDA_ACCELERATOR and key in each.parameters:
            return str(each.parameters[key])
    return None


def _python_config(native: ModelConfig) -> ModelConfig:
    config = ModelConfig()
    config.CopyFrom(native)
    config.backend = "python"
    for told in ("platform", "default_model_filename", "cc_model_filenames"):
        config.ClearField(told)
    return config


def _set_silent(config: ModelConfig, parameters: dict[str, str]) -> None:
    for name in parameters.values():
        _set_missing(config, name, _EVERY_CORE)


def _set_missing(config: ModelConfig, key: str, value: str) -> None:
    if key not in config.parameters:
        config.parameters[key].string_value = value


# ----------------------------------------------------------------------------------------- where
def _place(
    config: ModelConfig,
    native: ModelConfig,
    host: EmbeddedHost,
    cannot: Callable[[ServerPython], str],
) -> None:
    """Say of each instance group that the native backend would put on a GPU, where it runs: the
    Python backend's own choice, where a group has no kind, does not ask what its Python can."""
    if not native.instance_group:
        config.instance_group.add()
    wanting = [
        group
        for group in config.instance_group
        if group.kind == _GPU or (group.kind == _AUTO and host.gpus)
    ]
    reason = _why_not(host, cannot) if wanting else ""
    if reason:
        host.say(f"{config.name} is served on the CPU, where Triton would use a GPU: {reason}")
    for group in wanting:
        group.kind = _CPU if reason else _GPU
        if reason:
            group.ClearField("gpus")
    if not native.instance_group:
        config.instance_group[0].count = 1 if _on_gpu(config) else instance_count(native)


def _why_not(host: EmbeddedHost, cannot: Callable[[ServerPython], str]) -> str:
    """Why nothing can run on a GPU; empty where it can, or where that is not known."""
    if host.python is None:
        return ""
    return cannot(host.python()) if host.gpus else "no GPU is seen"


def _no_cuda_provider(python: ServerPython) -> str:
    provider = PROVIDERS[Engine.ONNXRUNTIME_CUDA]
    if provider in python.providers():
        return ""
    return f"the ONNX Runtime of {python.where} has no {provider}, as onnxruntime-gpu has"


def _no_cuda_torch(python: ServerPython) -> str:
    found = python.torch()
    if found is None or found.gpu:
        return ""
    return f"PyTorch {found.version} of {python.where} sees none"


def _say_other_accelerators(native: ModelConfig, host: EmbeddedHost) -> None:
    accelerators = native.optimization.execution_accelerators.gpu_execution_accelerator
    other = [each.name for each in accelerators if each.name != CUDA_ACCELERATOR]
    if other:
        host.say(
            f"{native.name} is served by ONNX Runtime's CUDA provider, without the accelerator"
            f" {' and '.join(other)} of its configuration"
        )


def _on_gpu(config: ModelConfig) -> bool:
    return any(group.kind == _GPU for group in config.instance_group)


def _require_torch(python: ServerPython, name: str) -> None:
    if python.torch() is None:
        raise InputRefused(
            f"{name} is a PyTorch model, and no PyTorch can be loaded by {python.where}",
            next_step=f"{python.install} Or use launch: docker or binary, with a Triton that has"
            " the pytorch backend.",
        )
