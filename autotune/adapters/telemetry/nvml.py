"""GPU utilization, memory, power and clocks by NVML, and the multiprocessors' own counters."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pynvml

from autotune.adapters.telemetry import gpm
from autotune.adapters.telemetry.disturbance import Disturbance
from autotune.adapters.telemetry.energy import Energy
from autotune.adapters.telemetry.gpm import Gpm
from autotune.adapters.telemetry.nvml_watch import NvmlWatch
from autotune.adapters.telemetry.parts import (
    LOST,
    Part,
    gone,
    held_by,
    one_of_each_gpu,
    parts_here,
    users,
)
from autotune.adapters.telemetry.processes import PROC
from autotune.adapters.telemetry.sampling import Reading, Source, Unavailable
from autotune.core.model_interface import Endpoint
from autotune.core.validity import LOST_GPU

SUMMED = {"power_w", "energy_j", "pcie_rx_mb_s", "pcie_tx_mb_s"}
"""Gauges that are added up over a server's GPUs; of the others the mean is taken."""

_OF_DEVICES: Mapping[str, Callable[[Any], float]] = {
    "power_w": lambda device: pynvml.nvmlDeviceGetPowerUsage(device) / 1000,
    "sm_clock_mhz": lambda device: pynvml.nvmlDeviceGetClockInfo(device, pynvml.NVML_CLOCK_SM),
    "memory_clock_mhz": lambda device: pynvml.nvmlDeviceGetClockInfo(device, pynvml.NVML_CLOCK_MEM),
    "temperature_c": lambda device: pynvml.nvmlDeviceGetTemperature(
        device, pynvml.NVML_TEMPERATURE_GPU
    ),
}
"""What is asked of whole GPUs."""


class Nvml(Source):
    """Utilization: the share of time in which any kernel ran, mean over the parts (GPUs or MIG
    slices) that the server uses: NVML's ``utilization.gpu``, of a slice, which has none, GPM's.
    Memory: what is in use on those parts, by whomever.

    Available only if the server runs on a GPU of this machine. Triton itself opens every GPU that
    it sees, for its memory pools, whatever its models compute on. ``models_apart``: they run in
    processes of their own, so that what the server's first process opens does not count, and one
    that computes on the CPU of a GPU host is not judged by an idle GPU.

    Inside a container or a virtual machine NVML may list processes under ids that are not seen
    there: they are taken for the server's. Or it lists none: then the device files that the server
    has open say which GPUs are its own. A note tells either.

    What cannot be read is unknown, and a note says why: ``gpm`` where the GPU, its driver or the
    rights do not allow its counters, ``nvml_<gauge>`` for each gauge, `LOST_GPU` for a GPU that
    went away during the window or since the one before. Power, energy and clocks of a slice are
    those of its whole GPU, and their source says so.
    """

    name = "nvml"
    memory_name = "nvml_device"
    silence = LOST_GPU

    def __init__(
        self,
        *,
        models_apart: bool = False,
        clock: Callable[[], float] = time.monotonic,
        proc: Path = PROC,
    ) -> None:
        self._models_apart = models_apart
        self._clock = clock
        self._proc = proc
        self._parts: list[Part] = []
        self._before: Sequence[Part] = ()
        self._gpm: dict[str, Gpm] = {}
        self._energy: list[Energy] = []
        self._watch = NvmlWatch((), set())
        self._counted: dict[str, Mapping[str, float]] = {}
        self._notes: dict[str, str] = {}

    def open(self, pids: Sequence[int], endpoint: Endpoint) -> dict[str, str]:  # noqa: ARG002
        if not pids:
            raise Unavailable("the server's processes are not on this machine")
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as exc:
            raise Unavailable(_text(exc)) from exc
        try:
            return self._open(pids)
        except pynvml.NVMLError as exc:
            self.close()
            raise Unavailable(_text(exc)) from exc
        except Unavailable:
            self.close()
            raise

    def utilization(self) -> float | None:
        self._watch.look()
        self._counted = {part.name: self._count(part) for part in self._parts}
        shares = [self._share(part) for part in self._parts]
        known = [share for share in shares if share is not None]
        return sum(known) / len(known) if known and len(known) == len(shares) else None

    def memory_mb(self) -> float | None:
        return self._memory("used")

    def memory_total_mb(self) -> float | None:
        return self._memory("total")

    def gauges(self) -> Mapping[str, Reading]:
        """Read after `utilization`, whose counters it shares."""
        found = {**self._of_gpm(), **self._of_devices(), "energy_j": self._of_energy()}
        return {name: reading for name, reading in found.items() if reading is not None}

    def disturbance(self) -> Disturbance:
        seen = self._watch.found()
        return Disturbance(
            foreign_gpu=seen.foreign_gpu,
            throttled=seen.throttled,
            notes={**seen.notes, **self._notes},
        )

    def close(self) -> None:
        for counters in self._gpm.values():
            counters.close()
        self._parts, self._gpm, self._energy = [], {}, []
        with suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()

    # --------------------------------------------------------------------------------- opening
    def _open(self, server: Sequence[int]) -> dict[str, str]:
        pids, models = set(server), set(server[1:] if self._models_apart else server)
        self._notes, self._counted, self._watch = {}, {}, NvmlWatch((), set())
        if lost := gone(self._before):
            return {LOST_GPU: f"NVML: {lost}"}
        parts = parts_here()
        on, untold = _users(parts)
        self._parts, hidden = self._used(parts, on, models, untold)
        self._before = tuple(self._parts)
        self._open_counters()
        self._watch = NvmlWatch(self._parts, pids, hidden=bool(hidden))
        notes = {"nvml_devices": ", ".join(part.name for part in self._parts)}
        foreign = sorted({pid for part in self._parts for pid in on[part.name] - pids})
        if hidden:
            notes["nvml_processes"] = hidden
        elif foreign:
            notes["nvml_foreign_processes"] = ", ".join(map(str, foreign))
        if self._sliced:
            notes["nvml_mig"] = "utilization by GPM; power, energy and clocks are the whole GPU's"
        return {**notes, **self._notes}

    def _used(
        self, parts: Sequence[Part], on: Mapping[str, set[int]], pids: set[int], untold: str
    ) -> tuple[list[Part], str]:
        """The parts that these processes of the server use and, where they are not told apart from
        others, why. Unavailable where they use none, for the reason ``untold`` if there is one."""
        if used := [part for part in parts if on[part.name] & pids]:
            return used, ""
        held = held_by(pids, parts, self._proc)
        if hidden := [part for part in parts if any(map(_hidden, on[part.name]))]:
            both = [part for part in hidden if part in held]
            return both or hidden, "hidden from here: taken for the server's"
        if held and not any(on.values()):
            return held, "none are listed: the server's GPUs are those whose files it has open"
        whose = "no model of the server has a" if self._models_apart else "the server has no"
        raise Unavailable(untold or f"{whose} process on a GPU of this machine")

    def _open_counters(self) -> None:
        for part in self._parts:
            try:
                self._gpm[part.name] = Gpm(part, clock=self._clock)
            except pynvml.NVMLError as exc:
                self._failed("gpm", exc)
        gpus = one_of_each_gpu(self._parts)
        self._energy = [Energy(gpu.device, clock=self._clock) for gpu in gpus]

    # --------------------------------------------------------------------------------- reading
    @property
    def _sliced(self) -> bool:
        return any(part.sliced for part in self._parts)

    def _count(self, part: Part) -> Mapping[str, float]:
        counters = self._gpm.get(part.name)
        if counters is None:
            return {}
        try:
            return counters.read()
        except pynvml.NVMLError as exc:
            self._failed("gpm", exc)
            return {}

    def _share(self, part: Part) -> float | None:
        if part.sliced:
            return self._counted[part.name].get(gpm.BUSY)
        try:
            return float(pynvml.nvmlDeviceGetUtilizationRates(part.handle).gpu) / 100
        except pynvml.NVMLError as exc:
            self._failed("nvml_utilization", exc)
            return self._counted[part.name].get(gpm.BUSY)

    def _memory(self, what: str) -> float | None:
        """In MB, of all parts together; None where one of them does not tell."""
        try:
            infos = [pynvml.nvmlDeviceGetMemoryInfo(part.handle) for part in self._parts]
        except pynvml.NVMLError as exc:
            self._failed("nvml_memory", exc)
            return None
        if not infos:
            return None
        return float(sum(getattr(info, what) for info in infos)) / 1e6

    def _of_gpm(self) -> dict[str, Reading | None]:
        names = {name for counted in self._counted.values() for name in counted} - {gpm.BUSY}
        return {
            name: _over([counted.get(name) for counted in self._counted.values()], name, "gpm")
            for name in sorted(names)
        }

    def _of_devices(self) -> dict[str, Reading | None]:
        return {name: self._of_each_device(name, read) for name, read in _OF_DEVICES.items()}

    def _of_each_device(self, name: str, read: Callable[[Any], float]) -> Reading | None:
        try:
            values = [float(read(part.device)) for part in one_of_each_gpu(self._parts)]
        except pynvml.NVMLError as exc:
            self._failed(f"nvml_{name}", exc)
            return None
        return _over(values, name, self._whole("nvml"))

    def _of_energy(self) -> Reading | None:
        try:
            values = [meter.joules() for meter in self._energy]
        except pynvml.NVMLError as exc:
            self._failed("nvml_energy_j", exc)
            return None
        sources = sorted({meter.source for meter in self._energy})
        return _over(values, "energy_j", self._whole("+".join(sources)))

    def _whole(self, source: str) -> str:
        return f"{source}_whole_gpu" if self._sliced else source

    def _failed(self, what: str, exc: Any) -> None:
        self._notes[LOST_GPU if exc.value in LOST else what] = _text(exc)


def _users(parts: Sequence[Part]) -> tuple[dict[str, set[int]], str]:
    """The processes on each part, by its name, and why those of a part are not told, if so."""
    on: dict[str, set[int]] = {}
    untold = ""
    for part in parts:
        try:
            on[part.name] = users(part)
        except pynvml.NVMLError as exc:
            on[part.name], untold = set(), f"who uses GPU {part.name} is not told: {_text(exc)}"
    return on, untold


def _over(values: Sequence[float | None], name: str, source: str) -> Reading | None:
    """Over a server's GPUs: the sum or the mean; unknown where one of them is."""
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        return None
    total = sum(known)
    return Reading(value=total if name in SUMMED else total / len(known), source=source)


def _hidden(pid: int) -> bool:
    return not psutil.pid_exists(pid)


def _text(exc: Exception) -> str:
    return f"NVML: {exc}"
