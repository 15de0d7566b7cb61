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

PACKAGES = ("triton-autotune", "locust", "optuna", "tritonclient", "numpy")


def cores() -> int:
    """CPU cores that this process may use: its affinity, bounded by the control group's quota
    (cgroup v2 ``cpu.max``, in whole cores, at least one)."""
    allowed = len(os.sched_getaffinity(0))
    quota = _cgroup_quota(Path("/sys/fs/cgroup/cpu.max"))
    return max(1, min(allowed, int(quota))) if quota else allowed


def _cgroup_quota(path: Path) -> float | None:
    try:
        limit, period = path.read_text().split()
        return None if limit == "max" else int(limit) / int(period)
    except (OSError, ValueError):
        return None


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
    }


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
