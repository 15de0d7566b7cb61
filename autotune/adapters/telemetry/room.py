"""How much memory a process may use: the machine's, bounded by its control groups' limits."""

from __future__ import annotations

from pathlib import Path

import psutil

from autotune.adapters.telemetry.cores import CGROUPS, control_groups
from autotune.adapters.telemetry.processes import PROC

_LIMITS = ("memory.max", "memory.limit_in_bytes")
"""Of version 2 and version 1 of control groups."""


def available_memory_mb(pid: int, *, proc: Path = PROC, cgroups: Path = CGROUPS) -> float:
    """Megabytes (10^6 bytes), by the limits of the process's group and all groups above it; where
    they cannot be read, the machine's memory alone. Swap is left out: what is swapped is slow."""
    groups = control_groups(pid, "memory", proc=proc, cgroups=cgroups)
    limits = [limit for folder in groups for name in _LIMITS if (limit := _limit(folder / name))]
    return min([psutil.virtual_memory().total, *limits]) / 1e6


def _limit(file: Path) -> int | None:
    """In bytes; None where there is none."""
    try:
        return int(file.read_text())
    except (OSError, ValueError):  # "max"
        return None
