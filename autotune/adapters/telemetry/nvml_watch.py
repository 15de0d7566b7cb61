"""What NVML tells of disturbances: clocks that are lowered, other processes on the same GPUs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import psutil
import pynvml

from autotune.adapters.telemetry.disturbance import Disturbance
from autotune.adapters.telemetry.parts import Part, users

WORK_PERCENT = 5
"""A process that used less of a GPU's multiprocessors than this is no disturbance: a desktop."""

_POWER_CAP = "nvmlClocksEventReasonSwPowerCap"
_REASONS = {
    "nvmlClocksEventReasonHwThermalSlowdown": "slowed by its hardware for heat",
    "nvmlClocksEventReasonSwThermalSlowdown": "slowed by its driver for heat",
    "nvmlClocksEventReasonHwPowerBrakeSlowdown": "slowed by its power supply",
    "nvmlClocksEventReasonHwSlowdown": "slowed by its hardware",
    _POWER_CAP: "held to its power limit",
}
"""The bits of NVML's clock event reasons that are looked at. The power limit is the device's own
property, with which it is deployed: noted, no reason for distrust."""


class NvmlWatch:
    """Looks, reading by reading, at why clocks are lowered and at which other processes keep the
    parts busy (by ``nvmlDeviceGetProcessUtilization``; where a GPU does not tell that, as under
    MIG, at which others are on the same part).

    ``hidden``: the processes are those of another PID namespace, so none of them can be told to be
    another's.
    """

    def __init__(
        self, nvml: Any, parts: Sequence[Part], pids: set[int], *, hidden: bool = False
    ) -> None:
        self._nvml = nvml
        self._parts = parts
        self._pids = pids
        self._hidden = hidden
        self._looks = 0
        self._slowed: Counter[str] = Counter()
        self._unread = ""
        self._foreign: set[int] = set()
        self._seen_us = {part.name: self._latest_us(part) for part in parts}

    def look(self) -> None:
        self._looks += 1
        slowed: set[str] = set()
        for part in self._parts:
            slowed |= self._slowdowns(part)
            if not self._hidden:
                self._foreign |= {pid for pid in self._busy(part) if not self._ours(pid)}
        self._slowed.update(slowed)

    def found(self) -> Disturbance:
        slowed = {
            name: f"{text} in {self._slowed[name]} of {self._looks} readings"
            for name, text in _REASONS.items()
            if self._slowed[name]
        }
        notes = {"nvml_power_cap": slowed.pop(_POWER_CAP)} if _POWER_CAP in slowed else {}
        if self._unread:
            notes["nvml_clocks"] = f"why clocks are lowered is not told: {self._unread}"
        return Disturbance(
            foreign_gpu=tuple(sorted(self._foreign)),
            throttled=tuple(f"GPU {text}" for text in slowed.values()),
            notes=notes,
        )

    def _slowdowns(self, part: Part) -> set[str]:
        """The names of the reasons, of `_REASONS`, for which the GPU's clocks are lowered."""
        nvml = self._nvml
        try:
            try:
                bits = nvml.nvmlDeviceGetCurrentClocksEventReasons(part.device)
            except pynvml.NVMLError_FunctionNotFound:  # a driver before 535
                bits = nvml.nvmlDeviceGetCurrentClocksThrottleReasons(part.device)
        except nvml.NVMLError as exc:
            self._unread = str(exc)
            return set()
        return {name for name in _REASONS if bits & getattr(pynvml, name)}

    def _busy(self, part: Part) -> set[int]:
        """Processes that used the part since the last look, as far as it tells."""
        if part.sliced:
            return self._beside_us(part)
        seen_us = self._seen_us[part.name]
        try:
            samples = self._nvml.nvmlDeviceGetProcessUtilization(part.device, seen_us)
        except self._nvml.NVMLError as exc:
            return set() if _is_empty(exc) else self._beside_us(part)
        new = [sample for sample in samples if sample.timeStamp > seen_us]
        self._seen_us[part.name] = max([seen_us, *(sample.timeStamp for sample in new)])
        return {sample.pid for sample in new if sample.smUtil >= WORK_PERCENT}

    def _latest_us(self, part: Part) -> int:
        """When the GPU last sampled its processes, by its own clock."""
        if part.sliced:
            return 0
        try:
            samples = self._nvml.nvmlDeviceGetProcessUtilization(part.device, 0)
        except self._nvml.NVMLError:
            return 0
        return max((sample.timeStamp for sample in samples), default=0)

    def _beside_us(self, part: Part) -> set[int]:
        try:
            return users(self._nvml, part)
        except self._nvml.NVMLError:
            return set()

    def _ours(self, pid: int) -> bool:
        """Whether a process is one of the server's, a descendant of one, or the broker of CUDA's
        MPS, through which the server's own work goes."""
        if pid in self._pids:
            return True
        try:
            process = psutil.Process(pid)
            ancestors = {parent.pid for parent in process.parents()}
            return bool(ancestors & self._pids) or process.name().startswith("nvidia-cuda-mps")
        except psutil.Error:
            return False


def _is_empty(exc: Exception) -> bool:
    """Whether NVML says that it has no samples, rather than that it does not take any."""
    return bool(getattr(exc, "value", None) == pynvml.NVML_ERROR_NOT_FOUND)
