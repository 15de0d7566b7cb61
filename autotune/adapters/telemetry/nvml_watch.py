"""What NVML tells of disturbances: clocks that are lowered, other processes on the same GPUs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import psutil
import pynvml

from autotune.adapters.telemetry.disturbance import Disturbance
from autotune.adapters.telemetry.parts import Part, users

WORK_PERCENT = 5
"""A process that used less of a GPU's multiprocessors than this is no disturbance: a desktop."""

_POWER_CAP = pynvml.nvmlClocksEventReasonSwPowerCap
_HARDWARE = pynvml.nvmlClocksEventReasonHwSlowdown
_REASONS: Mapping[int, str] = {
    pynvml.nvmlClocksEventReasonHwThermalSlowdown: "slowed by its hardware for heat",
    pynvml.nvmlClocksEventReasonSwThermalSlowdown: "slowed by its driver for heat",
    pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown: "slowed by its power supply",
    _HARDWARE: "slowed by its hardware",
    _POWER_CAP: "held to its power limit",
}
"""The bits of NVML's clock event reasons that are looked at. The power limit is the device's own
property, with which it is deployed: noted, no reason for distrust."""
_MORE_EXACT = {
    pynvml.nvmlClocksEventReasonHwThermalSlowdown,
    pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown,
}
"""Why the hardware slows down; the bit that says that it does is set beside them."""
_UNTOLD = {
    pynvml.NVML_ERROR_NOT_SUPPORTED,
    pynvml.NVML_ERROR_NO_PERMISSION,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
}
"""The errors of a GPU that never tells which process keeps it busy; any other is of the moment, as
where no process had work."""


class NvmlWatch:
    """Looks, reading by reading, at why clocks are lowered and at which other processes keep the
    parts busy (by ``nvmlDeviceGetProcessUtilization``; where a GPU does not tell that, as under
    MIG, at which others are on the same part).

    ``hidden``: the processes go by ids that are not seen here, or are not listed, so none of them
    can be told to be another's.
    """

    def __init__(self, parts: Sequence[Part], pids: set[int], *, hidden: bool = False) -> None:
        self._parts = parts
        self._pids = pids
        self._hidden = hidden
        self._looks = 0
        self._slowed: Counter[int] = Counter()
        self._unread = ""
        self._foreign: set[int] = set()
        self._seen_us = {part.name: _latest_us(part) for part in parts}

    def look(self) -> None:
        self._looks += 1
        slowed: set[int] = set()
        for part in self._parts:
            slowed |= self._slowdowns(part)
            if not self._hidden:
                self._foreign |= {pid for pid in self._busy(part) if not self._ours(pid)}
        self._slowed.update(slowed)

    def found(self) -> Disturbance:
        slowed = {
            reason: f"{text} in {self._slowed[reason]} of {self._looks} readings"
            for reason, text in _REASONS.items()
            if self._slowed[reason]
        }
        notes = {"nvml_power_cap": slowed.pop(_POWER_CAP)} if _POWER_CAP in slowed else {}
        if self._unread:
            notes["nvml_clocks"] = f"why clocks are lowered is not told: {self._unread}"
        return Disturbance(
            foreign_gpu=tuple(sorted(self._foreign)),
            throttled=tuple(f"GPU {text}" for text in slowed.values()),
            notes=notes,
        )

    def _slowdowns(self, part: Part) -> set[int]:
        """The reasons, of `_REASONS`, for which the GPU's clocks are lowered."""
        try:
            bits = slowdown_bits(part)
        except pynvml.NVMLError as exc:
            self._unread = str(exc)
            return set()
        reasons = {reason for reason in _REASONS if bits & reason}
        return reasons - {_HARDWARE} if reasons & _MORE_EXACT else reasons

    def _busy(self, part: Part) -> set[int]:
        """Processes that used the part since the last look, as far as it tells."""
        if part.sliced:
            return _beside_us(part)
        seen_us = self._seen_us[part.name]
        try:
            samples = pynvml.nvmlDeviceGetProcessUtilization(part.device, seen_us or 0)
        except pynvml.NVMLError as exc:
            return _beside_us(part) if exc.value in _UNTOLD else set()
        self._seen_us[part.name] = max([seen_us or 0, *(sample.timeStamp for sample in samples)])
        if seen_us is None:  # which of them are of the window cannot be told
            return set()
        new = [sample for sample in samples if sample.timeStamp > seen_us]
        # Some drivers fill up their answer with samples of no process, or of more than there is.
        return {sample.pid for sample in new if sample.pid and WORK_PERCENT <= sample.smUtil <= 100}

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


def slowdown_bits(part: Part) -> int:
    """Why the clocks of a part's GPU are lowered, in NVML's bits; NVMLError where it is not
    told."""
    try:
        return int(pynvml.nvmlDeviceGetCurrentClocksEventReasons(part.device))
    except pynvml.NVMLError_FunctionNotFound:  # a driver before 535
        return int(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(part.device))


def _latest_us(part: Part) -> int | None:
    """When the GPU last sampled its processes, by its own clock; 0 where it has not, and None where
    it does not say just now."""
    if part.sliced:
        return 0
    try:
        samples = pynvml.nvmlDeviceGetProcessUtilization(part.device, 0)
    except pynvml.NVMLError_NotFound:
        return 0
    except pynvml.NVMLError:
        return None
    return max((sample.timeStamp for sample in samples), default=0)


def _beside_us(part: Part) -> set[int]:
    try:
        return users(part)
    except pynvml.NVMLError:
        return set()
