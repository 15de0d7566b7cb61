"""The GPUs of this machine, or the MIG slices of GPUs, and the processes that compute on them."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pynvml

from autotune.adapters.telemetry.processes import PROC
from autotune.adapters.within import within
from autotune.core.errors import AutotuneError

T = TypeVar("T")

MIG_ENABLED = 1
_ANY_INSTANCE = 0xFFFFFFFF
"""What NVML says in place of a slice's id where it does not tell it."""
LOST = {pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED}
"""NVML's errors of a GPU that works no more."""
GONE = LOST | {pynvml.NVML_ERROR_UNKNOWN}
"""Its errors when it is asked for such a GPU: the last of one that has fallen off its bus."""
PATIENCE_S = 30.0
"""A driver that has not answered for so long hangs, as that of a GPU that is lost may. Its first
answer takes seconds for each GPU where nothing keeps it loaded."""
CONTEXT_MB = 64
"""A process that computes on a GPU holds more of its memory than this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What one process can be given: a whole GPU, or a slice of one.

    ``name``: its index, of a slice ``0:2``, the slice's after the GPU's. ``device`` is NVML's
    handle of the whole GPU; ``handle`` that of the part: the same, or the slice's. ``instance`` is
    the id of the slice's GPU instance; None of a whole GPU.
    """

    name: str
    device: Any
    handle: Any
    instance: int | None = None

    @property
    def sliced(self) -> bool:
        return self.instance is not None


@contextmanager
def opened() -> Iterator[None]:
    """Between NVML's beginning and its end; NVMLError where there is no driver."""
    pynvml.nvmlInit()
    try:
        yield
    finally:
        with suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


class DriverHangs(AutotuneError):
    """The driver of this machine's GPUs does not answer."""

    def __init__(self) -> None:
        super().__init__(
            "the driver of this machine's GPUs does not answer",
            value=f"for {PATIENCE_S:g} s",
            next_step="see what nvidia-smi says, look for Xid in the kernel's log, and restart this"
            " machine; or hide its GPUs by CUDA_VISIBLE_DEVICES=",
        )

    def __reduce__(self) -> tuple[type[DriverHangs], tuple[()]]:
        """From a node of a cluster: its words are its own."""
        return DriverHangs, ()


def answered(ask: Callable[[], T]) -> T:
    """What is asked of NVML, between its beginning and its end; DriverHangs where that takes
    longer than `PATIENCE_S`. NVMLError as it is raised."""

    def opened_and_asked() -> tuple[T]:
        with opened():
            return (ask(),)

    found = within(PATIENCE_S, opened_and_asked)
    if found is None:
        raise DriverHangs
    return found[0]


def parts_here() -> list[Part]:
    """The `parts_of` every GPU of this machine that answers. NVMLError where they cannot be
    counted."""
    found: list[Part] = []
    for index in range(pynvml.nvmlDeviceGetCount()):
        with suppress(pynvml.NVMLError):  # one that is lost, or not ours to ask
            found += parts_of(index)
    return found


def parts_of(index: int) -> list[Part]:
    """A GPU, or its slices where it has any. NVMLError where it cannot be asked."""
    device = pynvml.nvmlDeviceGetHandleByIndex(index)
    whole = Part(name=str(index), device=device, handle=device)
    return list(_slices(whole)) or [whole]


def _slices(whole: Part) -> Iterator[Part]:
    try:
        current, _pending = pynvml.nvmlDeviceGetMigMode(whole.device)
    except pynvml.NVMLError:  # a GPU, or a driver, that knows no MIG
        return
    if current != MIG_ENABLED:
        return
    for number in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(whole.device)):
        try:
            handle = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(whole.device, number)
        except pynvml.NVMLError:  # there is none of that number
            continue
        yield Part(
            name=f"{whole.name}:{number}",
            device=whole.device,
            handle=handle,
            instance=pynvml.nvmlDeviceGetGpuInstanceId(handle),
        )


def gone(parts: Sequence[Part]) -> str:
    """Which of the GPUs of these, of an earlier time, works no more; empty where all do."""
    for part in one_of_each_gpu(parts):
        index = part.name.partition(":")[0]
        try:
            pynvml.nvmlDeviceGetHandleByIndex(int(index))
        except pynvml.NVMLError as exc:
            if exc.value in GONE:
                return f"GPU {index}: {exc}"
    return ""


def one_of_each_gpu(parts: Sequence[Part]) -> Iterator[Part]:
    """One part of each GPU: what is known of the whole GPU is not counted once per slice."""
    seen: set[str] = set()
    for part in parts:
        index = part.name.partition(":")[0]
        if index not in seen:
            seen.add(index)
            yield part


# ------------------------------------------------------------------------------- who is on them
def users(part: Part) -> set[int]:
    """The processes that compute on a part; NVMLError where they are not told."""
    try:
        listed, also = _computing(part.handle), _ANY_INSTANCE
    except pynvml.NVMLError:
        if not part.sliced:
            raise
        listed, also = _computing(part.device), None
    here = (part.instance, also)
    return {each.pid for each in listed if not part.sliced or each.gpuInstanceId in here}


def _computing(handle: Any) -> list[Any]:
    """The function of pynvml's that has no version in its name refuses drivers before 510."""
    try:
        return list(pynvml.nvmlDeviceGetComputeRunningProcesses_v3(handle))
    except pynvml.NVMLError_FunctionNotFound:
        return list(pynvml.nvmlDeviceGetComputeRunningProcesses_v2(handle))


def held_mb(part: Part) -> float | None:
    """Megabytes (10^6 bytes) that processes hold on a part, listed or not; None if unknown. Of a
    driver before 510, with what the driver reserves for itself."""
    try:
        try:
            memory = pynvml.nvmlDeviceGetMemoryInfo(part.handle, version=pynvml.nvmlMemory_v2)
        except pynvml.NVMLError_FunctionNotFound:
            memory = pynvml.nvmlDeviceGetMemoryInfo(part.handle)
    except pynvml.NVMLError:
        return None
    return float(memory.used) / 1e6


def in_use(part: Part) -> bool:
    return (held_mb(part) or 0.0) > CONTEXT_MB


def held_by(pids: Iterable[int], parts: Sequence[Part], proc: Path = PROC) -> list[Part]:
    """The parts in use of those GPUs whose device files the processes have open together with
    CUDA's: all that can be known of them where NVML lists no processes, as in many containers and
    virtual machines."""
    numbers: set[int] = set()
    for pid in pids:
        files = _open_files(proc / str(pid) / "fd")
        if "/dev/nvidia-uvm" in files:
            found = (re.fullmatch(r"/dev/nvidia(\d+)", file) for file in files)
            numbers |= {int(match[1]) for match in found if match}
    return [part for part in parts if _device_number(part) in numbers and in_use(part)]


def _open_files(folder: Path) -> set[str]:
    found: set[str] = set()
    with suppress(OSError):
        for entry in folder.iterdir():
            with suppress(OSError):  # closed meanwhile
                found.add(os.readlink(entry))  # noqa: PTH115
    return found


def _device_number(part: Part) -> int | None:
    """N of its ``/dev/nvidiaN``."""
    try:
        return int(pynvml.nvmlDeviceGetMinorNumber(part.device))
    except pynvml.NVMLError:
        return None
