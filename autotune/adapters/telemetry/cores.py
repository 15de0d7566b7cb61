"""How many cores a process may use: its affinity, bounded by its control groups' quotas."""

from __future__ import annotations

import os
from pathlib import Path

from autotune.adapters.telemetry.processes import PROC

CGROUPS = Path("/sys/fs/cgroup")


def available_cores(pid: int, *, proc: Path = PROC, cgroups: Path = CGROUPS) -> float:
    """Cores, possibly a fraction. Reads cgroup v2's ``cpu.max`` and v1's ``cpu.cfs_*_us`` of the
    process's group and all groups above it; where they cannot be read, the affinity alone."""
    cores = float(len(affinity(pid)))
    for folder in cpu_groups(pid, proc=proc, cgroups=cgroups):
        quota = _quota_v2(folder) or _quota_v1(folder)
        cores = min(cores, quota or cores)
    return cores


def affinity(pid: int) -> set[int]:
    """The numbers of the cores that a process may run on."""
    try:
        return os.sched_getaffinity(pid)
    except OSError:
        return set(range(os.cpu_count() or 1))


def cpu_groups(pid: int, *, proc: Path = PROC, cgroups: Path = CGROUPS) -> list[Path]:
    """The folders of the process's CPU control groups, innermost first, roots included."""
    return control_groups(pid, "cpu", proc=proc, cgroups=cgroups)


def control_groups(
    pid: int, controller: str, *, proc: Path = PROC, cgroups: Path = CGROUPS
) -> list[Path]:
    """The folders of a process's control groups that a controller may have to do with, innermost
    first, roots included."""
    try:
        lines = (proc / str(pid) / "cgroup").read_text().splitlines()
    except OSError:
        return []
    folders: list[Path] = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        root = cgroups / controllers if controllers else cgroups
        inner = root / path.lstrip("/")
        folders += [inner, *(parent for parent in inner.parents if parent.is_relative_to(root))]
    return folders


def _quota_v2(folder: Path) -> float | None:
    try:
        quota, period = (folder / "cpu.max").read_text().split()
    except (OSError, ValueError):
        return None
    return None if quota == "max" else int(quota) / int(period)


def _quota_v1(folder: Path) -> float | None:
    try:
        quota = int((folder / "cpu.cfs_quota_us").read_text())
        period = int((folder / "cpu.cfs_period_us").read_text())
    except (OSError, ValueError):
        return None
    return quota / period if quota > 0 else None
