"""What this machine is: recorded with every study, so that its numbers can be placed later."""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from autotune.adapters.telemetry.cores import available_cores
from autotune.adapters.telemetry.foreign_cpu import ForeignCpu

PACKAGES = ("triton-autotune", "locust", "optuna", "tritonclient", "numpy")


def cores() -> int:
    """CPU cores that this process may use, in whole cores, at least one."""
    return max(1, int(available_cores(os.getpid())))


def describe() -> Mapping[str, Any]:
    """Host, processor, memory, operating system and the versions of what measures."""
    return {
        "host": platform.node(),
        "cores": cores(),
        "processor": _processor(),
        "memory_mb": round(psutil.virtual_memory().total / 2**20),
        "system": f"{platform.system()} {platform.release()}",
        "python": sys.version.split()[0],
        "versions": {name: _version(name) for name in PACKAGES},
        "load_average": round(os.getloadavg()[0], 2),
        "process": process_identity(),
    }


BUSY_PERCENT = 20
"""Of the processor, taken by other work before a study begins: worth a warning."""


_LOOK_S = 0.5


def busy_percent() -> float:
    """How much of the processor, 0 to 100, is taken at this moment by others than this process and
    its children, as every measurement judges it too; looks for half a second. Where that cannot be
    told, how much is in use by anyone."""
    others = ForeignCpu(shortest_s=_LOOK_S)
    others.begin((), None)
    in_use = psutil.cpu_percent(interval=_LOOK_S)
    taken = others.end().foreign_cpu
    return in_use if taken is None else 100 * taken


def process_identity() -> str:
    """Names this process among all that this machine has had since it was started."""
    return f"{os.getpid()}@{_started_s(os.getpid()):.2f}"


def process_lives(identity: str) -> bool:
    """Whether the process of that identity still runs on this machine."""
    pid, _, started = identity.partition("@")
    try:
        return f"{_started_s(int(pid)):.2f}" == started
    except (psutil.Error, ValueError):
        return False


def _started_s(pid: int) -> float:
    """When a process began, in seconds since the machine was started: the time of day that psutil
    gives moves with the machine's clock when that is set."""
    return psutil.Process(pid).create_time() - psutil.boot_time()


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


class SystemClock:
    """The machine's own clocks (implements `autotune.ports.Clock`)."""

    def monotonic(self) -> float:
        return time.monotonic()

    def now(self) -> float:
        return time.time()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)
