"""GPU utilization and memory by NVML."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import psutil
import pynvml

from autotune.adapters.telemetry.sampling import Unavailable
from autotune.core.model_interface import Endpoint


class Nvml:
    """Utilization: the share of time in which any kernel ran (NVML's ``utilization.gpu``), mean
    over the devices that the server uses. Memory: what is in use on those devices, by whomever.

    Available only if the server runs on a device of this machine: a server that computes on the
    CPU of a GPU host is not judged by an idle GPU. Where NVML lists processes that this process
    cannot see (it is inside a PID namespace), they are taken for the server's, with a note.

    ``library``: the pynvml module, or something like it.
    """

    name = "nvml"
    memory_name = "nvml_device"

    def __init__(self, *, library: Any = pynvml) -> None:
        self._nvml = library
        self._devices: list[Any] = []

    def open(self, pids: Sequence[int], endpoint: Endpoint) -> dict[str, str]:  # noqa: ARG002
        if not pids:
            raise Unavailable("the server's processes are not on this machine")
        try:
            self._nvml.nvmlInit()
        except self._nvml.NVMLError as exc:
            raise Unavailable(_text(exc)) from exc
        try:
            return self._find_devices(set(pids))
        except self._nvml.NVMLError as exc:
            self.close()
            raise Unavailable(_text(exc)) from exc
        except Unavailable:
            self.close()
            raise

    def utilization(self) -> float | None:
        rates = self._over_devices(self._nvml.nvmlDeviceGetUtilizationRates)
        return None if rates is None else sum(rate.gpu for rate in rates) / len(rates) / 100

    def memory_mb(self) -> float | None:
        infos = self._over_devices(self._nvml.nvmlDeviceGetMemoryInfo)
        return None if infos is None else sum(info.used for info in infos) / 1e6

    def close(self) -> None:
        self._devices = []
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
        self._devices = [devices[index] for index in used]
        foreign = sorted({pid for index in used for pid in users[index] - pids})
        if foreign and "nvml_processes" not in notes:
            notes["nvml_foreign_processes"] = ", ".join(map(str, foreign))
        return {**notes, "nvml_devices": ", ".join(map(str, used))}

    def _users(self, device: Any) -> set[int]:
        return {process.pid for process in self._nvml.nvmlDeviceGetComputeRunningProcesses(device)}

    def _over_devices(self, read: Callable[[Any], Any]) -> list[Any] | None:
        """One reading per device; None where one of them cannot be had (MIG has no rates)."""
        try:
            return [read(device) for device in self._devices]
        except self._nvml.NVMLError:
            return None


def _hidden(pid: int) -> bool:
    return not psutil.pid_exists(pid)


def _text(exc: Exception) -> str:
    return f"NVML: {exc}"
