"""What this machine has to build and run variants with; nothing of it is loaded."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re

import pynvml

from autotune.adapters.telemetry.parts import one_of_each_gpu, opened, parts_here
from autotune.core.capability import Hardware


def seen() -> Hardware:
    """The GPU of this machine (of several the one of the lowest compute capability), and the
    TensorRT and PyTorch of this Python. What the server has is not known here."""
    tensorrt, torch = installed_version("tensorrt"), installed_version("torch")
    capability, gpu, driver = _gpu()
    return Hardware(
        compute_capability=capability,
        gpu=gpu,
        driver=driver,
        tensorrt=numbers(tensorrt) if tensorrt else None,
        torch=numbers(torch) if torch else None,
    )


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


def _gpu() -> tuple[tuple[int, int] | None, str, str]:
    try:
        with opened():
            devices = [part.device for part in one_of_each_gpu(parts_here())]
            if not devices:
                return None, "", ""
            least = min(devices, key=pynvml.nvmlDeviceGetCudaComputeCapability)
            major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(least)
            name = pynvml.nvmlDeviceGetName(least)
            return (int(major), int(minor)), str(name), str(pynvml.nvmlSystemGetDriverVersion())
    except pynvml.NVMLError:
        return None, "", ""
