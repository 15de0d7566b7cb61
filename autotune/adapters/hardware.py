"""What this machine has to build and run variants with; nothing of it is loaded."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
from typing import Any

import pynvml

from autotune.core.capability import Hardware


def seen(*, library: Any = pynvml) -> Hardware:
    """The GPU of this machine (of several the one of the lowest compute capability), and the
    TensorRT and PyTorch of this Python. What the server has is not known here.

    ``library``: the pynvml module, or something like it.
    """
    tensorrt, torch = installed_version("tensorrt"), installed_version("torch")
    capability, gpu, driver = _gpu(library)
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


def _gpu(library: Any) -> tuple[tuple[int, int] | None, str, str]:
    try:
        library.nvmlInit()
    except library.NVMLError:
        return None, "", ""
    try:
        devices = [
            library.nvmlDeviceGetHandleByIndex(index)
            for index in range(library.nvmlDeviceGetCount())
        ]
        if not devices:
            return None, "", ""
        least = min(devices, key=library.nvmlDeviceGetCudaComputeCapability)
        major, minor = library.nvmlDeviceGetCudaComputeCapability(least)
        name = library.nvmlDeviceGetName(least)
        return (int(major), int(minor)), str(name), str(library.nvmlSystemGetDriverVersion())
    except library.NVMLError:
        return None, "", ""
    finally:
        library.nvmlShutdown()
