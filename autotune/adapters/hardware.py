"""What this machine has to build and run variants with; nothing of it is loaded."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
from collections.abc import Sequence

import pynvml

from autotune.adapters.telemetry.parts import (
    DriverHangs,
    answered,
    one_of_each_gpu,
    parts_here,
)
from autotune.adapters.triton import devices
from autotune.core.capability import Hardware


def seen(chosen: Sequence[str] = (), visible: str | None = None) -> Hardware:
    """The GPU of this machine (of several the one of the lowest compute capability) among those
    that a server may use, which are ``chosen`` as `server.devices` has them, or ``visible`` as
    CUDA_VISIBLE_DEVICES has; and the TensorRT and PyTorch of this Python. What the server has is
    not known here. A driver that hangs is as good as none."""
    tensorrt, torch = installed_version("tensorrt"), installed_version("torch")
    capability, gpu, driver = _gpu(chosen, visible)
    return Hardware(
        compute_capability=capability,
        gpu=gpu,
        driver=driver,
        tensorrt=numbers(tensorrt) if tensorrt else None,
        torch=numbers(torch) if torch else None,
    )


def shown(visible: str) -> tuple[tuple[str, ...], str]:
    """What CUDA shows a process that has this for CUDA_VISIBLE_DEVICES: the names of GPUs and
    slices, a slice by its own and not its GPU's, each once; and the driver. Nothing of either where
    none is shown, or the driver does not tell."""
    if devices.hidden(visible):
        return (), ""
    try:
        return answered(lambda: _names(visible))
    except (pynvml.NVMLError, DriverHangs):
        return (), ""


def _names(visible: str) -> tuple[tuple[str, ...], str]:
    parts = parts_here()
    allowed = devices.allowed((), visible, devices.named(parts))
    names = {str(pynvml.nvmlDeviceGetName(p.handle)) for p in parts if p.name in allowed}
    return tuple(sorted(names)), str(pynvml.nvmlSystemGetDriverVersion())


def installed_version(module: str) -> str | None:
    """The version of the package that a module comes from, without importing it; None where there
    is none."""
    if importlib.util.find_spec(module) is None:
        return None
    for package in importlib.metadata.packages_distributions().get(module, ()):
        return importlib.metadata.version(package)
    return None


def numbers(version: str) -> tuple[int, ...]:
    """(2, 15, 0) of "2.15.0+cu130"."""
    return tuple(int(number) for number in re.findall(r"\d+", version.partition("+")[0]))


def _gpu(chosen: Sequence[str], visible: str | None) -> tuple[tuple[int, int] | None, str, str]:
    if devices.hidden(visible) and not chosen:
        return None, "", ""
    try:
        return answered(lambda: _least(chosen, visible)) or (None, "", "")
    except (pynvml.NVMLError, DriverHangs):
        return None, "", ""


def _least(chosen: Sequence[str], visible: str | None) -> tuple[tuple[int, int], str, str] | None:
    parts = parts_here()
    allowed = devices.allowed(chosen, visible, devices.named(parts))
    gpus = [part.device for part in one_of_each_gpu([p for p in parts if p.name in allowed])]
    if not gpus:
        return None
    least = min(gpus, key=pynvml.nvmlDeviceGetCudaComputeCapability)
    major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(least)
    name = pynvml.nvmlDeviceGetName(least)
    return (int(major), int(minor)), str(name), str(pynvml.nvmlSystemGetDriverVersion())
