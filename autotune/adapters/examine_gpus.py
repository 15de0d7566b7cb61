"""What there is to say of this machine's GPUs before a study measures on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import psutil
import pynvml

from autotune.adapters.check import Check
from autotune.adapters.telemetry.gpm import Gpm
from autotune.adapters.telemetry.nvml_watch import slowdown_bits
from autotune.adapters.telemetry.parts import (
    GONE,
    DriverHangs,
    Part,
    answered,
    held_mb,
    in_use,
    parts_of,
    users,
)

_NEXT_STEPS: Mapping[int, str] = {
    **dict.fromkeys(
        GONE, "look for Xid in the kernel's log, then reset the GPU or restart this machine"
    ),
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND: "a newer driver tells it",
    pynvml.NVML_ERROR_NO_PERMISSION: "root is told it; a container, where it has the capability",
}
"""By NVML's error. What a GPU does not support no step brings."""


def gpu_checks() -> Iterator[Check]:
    """The driver; each GPU or slice with what it is; what can be measured of them, those that tell
    the same together; and who computes on them. One check where there is no driver."""
    try:
        yield from answered(lambda: list(_checks()))
    except DriverHangs as hangs:
        detail = f"{hangs.rule} ({hangs.value})"
        yield Check(name="GPU", state="missing", detail=detail, next_step=hangs.next_step)
    except pynvml.NVMLError as error:
        cpu = "utilization is then the CPU share of the server's processes"
        yield Check(name="GPU", state="warning", detail=f"none seen ({error}): {cpu}")


def _checks() -> Iterator[Check]:
    try:
        count = pynvml.nvmlDeviceGetCount()
        yield _driver(count)
    except pynvml.NVMLError as error:
        yield Check(name="GPU", state="warning", detail=f"there is a driver, which says: {error}")
        return
    parts: list[Part] = []
    for index in range(count):
        try:
            parts += parts_of(index)
        except pynvml.NVMLError as error:
            yield _unasked(str(index), error)
    yield from map(_part, parts)
    if parts:
        yield from _telemetry(parts)
        yield _processes(parts)


def _driver(count: int) -> Check:
    version = pynvml.nvmlSystemGetDriverVersion()
    cuda = pynvml.nvmlSystemGetCudaDriverVersion_v2()
    detail = f"driver {version}, CUDA up to {cuda // 1000}.{cuda % 1000 // 10}"
    if count == 0:
        advice = "a container is handed GPUs when it is started (docker: --gpus all)"
        return Check(name="GPU", state="warning", detail=f"{detail}, no GPU", next_step=advice)
    return Check(name="GPU", state="ok", detail=detail)


def _unasked(name: str, error: pynvml.NVMLError) -> Check:
    """Of a GPU that does not say what it is."""
    return Check(
        name=f"GPU {name}",
        state="missing" if error.value in GONE else "warning",
        detail=f"NVML: {error}",
        next_step=_NEXT_STEPS.get(error.value, ""),
    )


def _part(part: Part) -> Check:
    try:
        name = pynvml.nvmlDeviceGetName(part.handle)
        major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(part.device)
        memory = _memory_words(part)
        uuid = pynvml.nvmlDeviceGetUUID(part.handle)
    except pynvml.NVMLError as error:
        return _unasked(part.name, error)
    return Check(
        name=f"GPU {part.name}",
        state="ok",
        detail=f"{name}, compute capability {major}.{minor}, {memory}; {uuid}",
    )


def _memory_words(part: Part) -> str:
    try:
        total_mb = pynvml.nvmlDeviceGetMemoryInfo(part.handle).total / 1e6
    except pynvml.NVMLError_NotSupported:
        return "memory unknown (it may be the machine's)"
    held = held_mb(part)
    return f"{total_mb:,.0f} MB" + ("" if held is None else f" ({held:,.0f} in use)")


# --------------------------------------------------------------------- what can be measured of it
def _utilization(part: Part) -> None:
    if part.sliced:
        _gpm(part)
    else:
        pynvml.nvmlDeviceGetUtilizationRates(part.handle)


def _gpm(part: Part) -> None:
    Gpm(part).close()


def _process_work(part: Part) -> None:
    if part.sliced:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
    try:
        pynvml.nvmlDeviceGetProcessUtilization(part.device, 0)
    except (pynvml.NVMLError_NotFound, pynvml.NVMLError_Timeout):  # nothing has run
        return


_TELLS: Mapping[str, Callable[[Part], Any]] = {
    "utilization": _utilization,
    "memory": lambda part: pynvml.nvmlDeviceGetMemoryInfo(part.handle),
    "power": lambda part: pynvml.nvmlDeviceGetPowerUsage(part.device),
    "energy counter": lambda part: pynvml.nvmlDeviceGetTotalEnergyConsumption(part.device),
    "clocks": lambda part: pynvml.nvmlDeviceGetClockInfo(part.device, pynvml.NVML_CLOCK_SM),
    "temperature": lambda part: pynvml.nvmlDeviceGetTemperature(
        part.device, pynvml.NVML_TEMPERATURE_GPU
    ),
    "throttling": slowdown_bits,
    "work per process": _process_work,
    "GPM (SM, tensor, DRAM, PCIe)": _gpm,
}


def _telemetry(parts: Sequence[Part]) -> Iterator[Check]:
    """A check for all GPUs that tell the same."""
    answers: dict[tuple[tuple[str, int], ...], list[str]] = {}
    for part in parts:
        lacks = {name: code for name, ask in _TELLS.items() if (code := _refusal(ask, part))}
        answers.setdefault(tuple(lacks.items()), []).append(part.name)
    for lacking, names in answers.items():
        of = f" {', '.join(names)}" if len(answers) > 1 else ""
        yield _told(f"GPU{of} telemetry", dict(lacking))


def _refusal(ask: Callable[[Part], Any], part: Part) -> int:
    """NVML's error where it does not tell; 0 where it does."""
    try:
        ask(part)
    except pynvml.NVMLError as error:
        return int(error.value)
    return 0


def _told(name: str, lacking: Mapping[str, int]) -> Check:
    detail = ", ".join(what for what in _TELLS if what not in lacking)
    if lacking:
        without = [f"{what}: {pynvml.NVMLError(code)}" for what, code in lacking.items()]
        detail += f"; without {', '.join(without)}"
    steps = {step for code in lacking.values() if (step := _NEXT_STEPS.get(code))}
    return Check(
        name=name,
        state="warning" if lacking else "ok",
        detail=detail,
        next_step="; ".join(sorted(steps)),
    )


# ------------------------------------------------------------------------------- who else is there
def _processes(parts: Sequence[Part]) -> Check:
    told = [words for part in parts if (words := _in_use_words(part))]
    if not told:
        return Check(name="GPU processes", state="ok", detail="none")
    return Check(
        name="GPU processes",
        state="warning",
        detail="; ".join(told),
        next_step="what runs on a study's GPU is measured with it: stop it first",
    )


def _in_use_words(part: Part) -> str:
    """Who computes on it; empty where it is free."""
    try:
        pids = users(part)
    except pynvml.NVMLError as error:
        return f"who uses GPU {part.name} is not told ({error})"
    if pids:
        return f"GPU {part.name} is in use by {', '.join(map(_named, sorted(pids)))}"
    hidden = "by processes that are not listed (another container's, another machine's)"
    return f"GPU {part.name} is in use {hidden}" if in_use(part) else ""


def _named(pid: int) -> str:
    try:
        return f"{psutil.Process(pid).name()} (process {pid})"
    except psutil.Error:
        return f"process {pid}, which cannot be seen from here"
