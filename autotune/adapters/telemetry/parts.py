"""The GPUs, or the MIG slices of GPUs, that a server's processes use."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

MIG_ENABLED = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What one process can be given: a whole GPU, or a slice of one.

    ``name``: its index, of a slice ``0:2``, the slice's after the GPU's. ``device`` is NVML's handle
    of the whole GPU; ``handle`` that of the part: the same, or the slice's. ``instance`` is the id
    of the slice's GPU instance; None of a whole GPU.
    """

    name: str
    device: Any
    handle: Any
    instance: int | None = None

    @property
    def sliced(self) -> bool:
        return self.instance is not None


def parts_here(nvml: Any) -> list[Part]:
    """Every GPU of this machine, and in place of one that is sliced its slices. NVMLError where
    the GPUs cannot be listed."""
    found: list[Part] = []
    for index in range(nvml.nvmlDeviceGetCount()):
        device = nvml.nvmlDeviceGetHandleByIndex(index)
        whole = Part(name=str(index), device=device, handle=device)
        found += list(_slices(nvml, whole)) or [whole]
    return found


def users(nvml: Any, part: Part) -> set[int]:
    """The processes that compute on a part."""
    return {process.pid for process in nvml.nvmlDeviceGetComputeRunningProcesses(part.handle)}


def _slices(nvml: Any, whole: Part) -> Iterator[Part]:
    try:
        current, _pending = nvml.nvmlDeviceGetMigMode(whole.device)
    except nvml.NVMLError:  # a GPU, or a driver, that knows no MIG
        return
    if current != MIG_ENABLED:
        return
    for number in range(nvml.nvmlDeviceGetMaxMigDeviceCount(whole.device)):
        try:
            handle = nvml.nvmlDeviceGetMigDeviceHandleByIndex(whole.device, number)
        except nvml.NVMLError:  # there is none of that number
            continue
        yield Part(
            name=f"{whole.name}:{number}",
            device=whole.device,
            handle=handle,
            instance=nvml.nvmlDeviceGetGpuInstanceId(handle),
        )
