"""What of this machine may be another one tomorrow: its GPUs, their driver, the clocks that are
allowed. Recorded with every study beside `autotune.adapters.machine.describe`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pynvml

from autotune.adapters.telemetry.parts import (
    DriverHangs,
    answered,
    one_of_each_gpu,
    parts_here,
)

CPU0 = Path("/sys/devices/system/cpu/cpu0/cpufreq")


def changing(cpu: Path = CPU0) -> Mapping[str, Any]:
    """``gpus`` (names), ``gpu_uuids``, ``gpu_limits`` (power and clock), ``driver``, ``cuda``,
    ``cpu_governor`` and ``cpu_max_mhz``, each where it can be told."""
    return {**_graphics(), **_processor(cpu)}


def _graphics() -> dict[str, Any]:
    try:
        return answered(_told)
    except (pynvml.NVMLError, DriverHangs):
        return {"gpus": []}


def _told() -> dict[str, Any]:
    handles = [part.device for part in one_of_each_gpu(parts_here())]
    return {
        "gpus": [str(pynvml.nvmlDeviceGetName(handle)) for handle in handles],
        "gpu_uuids": [str(pynvml.nvmlDeviceGetUUID(handle)) for handle in handles],
        "gpu_limits": [_limits(handle) for handle in handles],
        "driver": str(pynvml.nvmlSystemGetDriverVersion()),
        **_cuda(),
    }


def _cuda() -> dict[str, str]:
    with suppress(pynvml.NVMLError):
        version = int(pynvml.nvmlSystemGetCudaDriverVersion_v2())
        return {"cuda": f"{version // 1000}.{version % 1000 // 10}"}
    return {}


def _limits(handle: Any) -> str:
    """``700 W, SM up to 1980 MHz``: what an operator can set, and others find set."""
    found: list[str] = []
    limits: tuple[tuple[Callable[[], str], str], ...] = (
        (lambda: f"{pynvml.nvmlDeviceGetPowerManagementLimit(handle) / 1000:.0f}", "{} W"),
        (
            lambda: str(pynvml.nvmlDeviceGetApplicationsClock(handle, pynvml.NVML_CLOCK_SM)),
            "applications clock {} MHz",
        ),
        (
            lambda: str(pynvml.nvmlDeviceGetMaxClockInfo(handle, pynvml.NVML_CLOCK_SM)),
            "SM up to {} MHz",
        ),
    )
    for read, words in limits:
        with suppress(pynvml.NVMLError):
            found.append(words.format(read()))
    return ", ".join(found) or "not told"


def _processor(cpu: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    with suppress(OSError):
        found["cpu_governor"] = (cpu / "scaling_governor").read_text().strip()
    with suppress(OSError, ValueError):
        found["cpu_max_mhz"] = int((cpu / "scaling_max_freq").read_text()) // 1000
    return found
