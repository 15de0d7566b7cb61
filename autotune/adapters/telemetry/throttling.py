"""Whether the processor was held back: by its own heat, or by a control group's quota."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from autotune.adapters.telemetry.cores import CGROUPS, cpu_groups
from autotune.adapters.telemetry.disturbance import Disturbance
from autotune.adapters.telemetry.processes import PROC
from autotune.core.model_interface import Endpoint

CORES = Path("/sys/devices/system/cpu")
_THROTTLED_TIME_S = {"throttled_usec": 1e-6, "throttled_time": 1e-9}
"""Version 2 and version 1 of control groups."""


class ThermalThrottling:
    """Reads the kernel's ``thermal_throttle/*_throttle_count`` of every core (Intel; a virtual
    machine has none): one that rises means that the clock was lowered for heat."""

    def __init__(self, *, cores: Path = CORES) -> None:
        self._cores = cores
        self._before: dict[Path, int] = {}

    def begin(self, pids: Sequence[int], endpoint: Endpoint) -> None:  # noqa: ARG002
        files = self._cores.glob("cpu[0-9]*/thermal_throttle/*_throttle_count")
        self._before = _counts(sorted(files))

    def end(self) -> Disturbance:
        if not self._before:
            return Disturbance(notes={"cpu_heat": "this machine does not tell of it"})
        after = _counts(list(self._before))
        rises = {path: count - self._before[path] for path, count in after.items()}
        risen = {path: rise for path, rise in rises.items() if rise > 0}
        if not risen:
            return Disturbance()
        cores = {path.parent.parent.name for path in risen}
        text = f"{len(cores)} core(s) lowered their clock for heat, {max(risen.values())} times"
        return Disturbance(throttled=(text,))


class QuotaThrottling:
    """Notes how often and how long the quota of the server's control groups held it back
    (``cpu.stat``; of our own groups for a remote server). A quota is what the server is deployed
    with, so it does not make a measurement invalid."""

    def __init__(self, *, proc: Path = PROC, cgroups: Path = CGROUPS) -> None:
        self._proc = proc
        self._cgroups = cgroups
        self._before: dict[Path, tuple[int, float]] = {}

    def begin(self, pids: Sequence[int], endpoint: Endpoint) -> None:  # noqa: ARG002
        pid = next(iter(pids), os.getpid())
        groups = cpu_groups(pid, proc=self._proc, cgroups=self._cgroups)
        self._before = {group: _held_back(group) for group in groups}

    def end(self) -> Disturbance:
        times, seconds = 0, 0.0
        for group, (times_before, seconds_before) in self._before.items():
            times_after, seconds_after = _held_back(group)
            times = max(times, times_after - times_before)
            seconds = max(seconds, seconds_after - seconds_before)
        if times == 0:
            return Disturbance()
        text = f"a control group's quota held it back {times} times, {seconds:.2f} s in all"
        return Disturbance(notes={"cpu_quota": text})


def _counts(files: Sequence[Path]) -> dict[Path, int]:
    counts: dict[Path, int] = {}
    for file in files:
        try:
            counts[file] = int(file.read_text())
        except (OSError, ValueError):
            continue
    return counts


def _held_back(group: Path) -> tuple[int, float]:
    """How many periods, and seconds summed over cores; zeros where a group does not tell."""
    fields = _fields(group / "cpu.stat")
    seconds = sum(fields.get(name, 0) * unit for name, unit in _THROTTLED_TIME_S.items())
    return fields.get("nr_throttled", 0), seconds


def _fields(file: Path) -> Mapping[str, int]:
    try:
        lines = file.read_text().splitlines()
        return {name: int(value) for name, value in map(str.split, lines)}
    except (OSError, ValueError):
        return {}
