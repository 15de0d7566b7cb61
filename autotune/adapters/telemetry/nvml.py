"""GPU utilization and memory by NVML."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import psutil
import pynvml

from autotune.adapters.telemetry.disturbance import Disturbance
from autotune.adapters.telemetry.sampling import Unavailable
from autotune.core.model_interface import Endpoint

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


class Nvml:
    """Utilization: the share of time in which any kernel ran (NVML's ``utilization.gpu``), mean
    over the devices that the server uses. Memory: what is in use on those devices, by whomever.

    Available only if the server runs on a device of this machine: a server that computes on the
    CPU of a GPU host is not judged by an idle GPU. Where NVML lists processes that this process
    cannot see (it is inside a PID namespace), they are taken for the server's, with a note.

    At each reading it also looks at why clocks are lowered and at which other processes keep the
    devices busy (by ``nvmlDeviceGetProcessUtilization``; where a device does not tell that, as
    under MIG, at which others are on it).

    ``library``: the pynvml module, or something like it.
    """

    name = "nvml"
    memory_name = "nvml_device"

    def __init__(self, *, library: Any = pynvml) -> None:
        self._nvml = library
        self._devices: dict[int, Any] = {}
        self._begin_watch(set())

    def open(self, pids: Sequence[int], endpoint: Endpoint) -> dict[str, str]:  # noqa: ARG002
        if not pids:
            raise Unavailable("the server's processes are not on this machine")
        try:
            self._nvml.nvmlInit()
        except self._nvml.NVMLError as exc:
            raise Unavailable(_text(exc)) from exc
        try:
            notes = self._find_devices(set(pids))
            self._begin_watch(set(pids), hidden="nvml_processes" in notes)
        except self._nvml.NVMLError as exc:
            self.close()
            raise Unavailable(_text(exc)) from exc
        except Unavailable:
            self.close()
            raise
        return notes

    def utilization(self) -> float | None:
        self._watch()
        rates = self._over_devices(self._nvml.nvmlDeviceGetUtilizationRates)
        return None if rates is None else sum(rate.gpu for rate in rates) / len(rates) / 100

    def memory_mb(self) -> float | None:
        infos = self._over_devices(self._nvml.nvmlDeviceGetMemoryInfo)
        return None if infos is None else sum(info.used for info in infos) / 1e6

    def disturbance(self) -> Disturbance:
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

    def close(self) -> None:
        self._devices = {}
        try:
            self._nvml.nvmlShutdown()
        except self._nvml.NVMLError:
            return

    def _find_devices(self, pids: set[int]) -> dict[str, str]:
        indices = range(self._nvml.nvmlDeviceGetCount())
        devices = {index: self._nvml.nvmlDeviceGetHandleByIndex(index) for index in indices}
        users = {index: self._users(device) for index, device in devices.items()}
        used = [index for index in indices if users[index] & pids]
        notes: dict[str, str] = {}
        if not used:
            used = [index for index in indices if any(map(_hidden, users[index]))]
            if not used:
                raise Unavailable("the server has no process on a GPU of this machine")
            notes["nvml_processes"] = "hidden by a PID namespace: taken for the server's"
        self._devices = {index: devices[index] for index in used}
        foreign = sorted({pid for index in used for pid in users[index] - pids})
        if foreign and "nvml_processes" not in notes:
            notes["nvml_foreign_processes"] = ", ".join(map(str, foreign))
        return {**notes, "nvml_devices": ", ".join(map(str, used))}

    def _users(self, device: Any) -> set[int]:
        return {process.pid for process in self._nvml.nvmlDeviceGetComputeRunningProcesses(device)}

    def _begin_watch(self, pids: set[int], *, hidden: bool = False) -> None:
        self._pids = pids
        self._hidden = hidden
        self._looks = 0
        self._slowed: Counter[str] = Counter()
        self._unread = ""
        self._foreign: set[int] = set()
        self._seen_us = {index: self._latest_us(device) for index, device in self._devices.items()}

    def _watch(self) -> None:
        self._looks += 1
        slowed: set[str] = set()
        for index, device in self._devices.items():
            slowed |= self._slowdowns(device)
            if not self._hidden:
                busy = self._busy(index, device)
                self._foreign |= {pid for pid in busy if not _belongs(pid, self._pids)}
        self._slowed.update(slowed)

    def _slowdowns(self, device: Any) -> set[str]:
        """The names of the reasons, of `_REASONS`, for which the device's clocks are lowered."""
        nvml = self._nvml
        try:
            try:
                bits = nvml.nvmlDeviceGetCurrentClocksEventReasons(device)
            except pynvml.NVMLError_FunctionNotFound:  # a driver before 535
                bits = nvml.nvmlDeviceGetCurrentClocksThrottleReasons(device)
        except nvml.NVMLError as exc:
            self._unread = str(exc)
            return set()
        return {name for name in _REASONS if bits & getattr(pynvml, name)}

    def _busy(self, index: int, device: Any) -> set[int]:
        """Processes that used the device since the last look, as far as it tells."""
        try:
            samples = self._nvml.nvmlDeviceGetProcessUtilization(device, self._seen_us[index])
        except self._nvml.NVMLError as exc:
            return set() if _is_empty(exc) else self._beside_us(device)
        new = [sample for sample in samples if sample.timeStamp > self._seen_us[index]]
        self._seen_us[index] = max([self._seen_us[index], *(s.timeStamp for s in new)])
        return {sample.pid for sample in new if sample.smUtil >= WORK_PERCENT}

    def _latest_us(self, device: Any) -> int:
        """When the device last sampled its processes, by its own clock."""
        try:
            samples = self._nvml.nvmlDeviceGetProcessUtilization(device, 0)
        except self._nvml.NVMLError:
            return 0
        return max((sample.timeStamp for sample in samples), default=0)

    def _beside_us(self, device: Any) -> set[int]:
        """The processes on the same device, or on the same MIG instances of it, as the server."""
        try:
            processes = self._nvml.nvmlDeviceGetComputeRunningProcesses(device)
        except self._nvml.NVMLError:
            return set()
        ours = {_instance(process) for process in processes if process.pid in self._pids}
        return {process.pid for process in processes if _instance(process) in ours}

    def _over_devices(self, read: Callable[[Any], Any]) -> list[Any] | None:
        """One reading per device; None where one of them cannot be had (MIG has no rates)."""
        try:
            return [read(device) for device in self._devices.values()]
        except self._nvml.NVMLError:
            return None


def _hidden(pid: int) -> bool:
    return not psutil.pid_exists(pid)


def _instance(process: Any) -> int | None:
    """The MIG instance that a process runs in."""
    return getattr(process, "gpuInstanceId", None)


def _is_empty(exc: Exception) -> bool:
    """Whether NVML says that it has no samples, rather than that it does not take any."""
    return bool(getattr(exc, "value", None) == pynvml.NVML_ERROR_NOT_FOUND)


def _belongs(pid: int, pids: set[int]) -> bool:
    """Whether a process is one of ``pids``, a descendant of one, or the broker of CUDA's MPS,
    through which the server's own work goes."""
    if pid in pids:
        return True
    try:
        process = psutil.Process(pid)
        ancestors = {parent.pid for parent in process.parents()}
        return bool(ancestors & pids) or process.name().startswith("nvidia-cuda-mps")
    except psutil.Error:
        return False


def _text(exc: Exception) -> str:
    return f"NVML: {exc}"
