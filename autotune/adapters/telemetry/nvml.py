"""GPU utilization, memory, power and clocks by NVML, and the multiprocessors' own counters."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import psutil
import pynvml

from autotune.adapters.telemetry import gpm
from autotune.adapters.telemetry.disturbance import Disturbance
from autotune.adapters.telemetry.energy import Energy
from autotune.adapters.telemetry.gpm import Gpm
from autotune.adapters.telemetry.nvml_watch import NvmlWatch
from autotune.adapters.telemetry.parts import Part, parts_here, users
from autotune.adapters.telemetry.sampling import Reading, Source, Unavailable
from autotune.core.model_interface import Endpoint

SUMMED = {"power_w", "energy_j", "pcie_rx_mb_s", "pcie_tx_mb_s"}
"""Gauges that are added up over a server's GPUs; of the others the mean is taken."""


class Nvml(Source):
    """Utilization: the share of time in which any kernel ran, mean over the parts (GPUs or MIG
    slices) that the server uses: NVML's ``utilization.gpu``, of a slice, which has none, GPM's.
    Memory: what is in use on those parts, by whomever.

    Available only if the server runs on a GPU of this machine: a server that computes on the CPU of
    a GPU host is not judged by an idle GPU. Where NVML lists processes that this process cannot see
    (it is inside a PID namespace), they are taken for the server's, with a note.

    What cannot be read is unknown, and a note says why: ``gpm`` where the GPU, its driver or the
    rights do not allow its counters, ``nvml_<gauge>`` for each gauge, ``nvml_lost`` for a GPU that
    went away during the window. Power, energy and clocks of a slice are those of its whole GPU.

    ``library``: the pynvml module, or something like it.
    """

    name = "nvml"
    memory_name = "nvml_device"

    def __init__(
        self, *, library: Any = pynvml, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._nvml = library
        self._clock = clock
        self._parts: list[Part] = []
        self._gpm: dict[str, Gpm] = {}
        self._energy: dict[str, Energy] = {}
        self._watch = NvmlWatch(library, (), set())
        self._counted: dict[str, Mapping[str, float]] = {}
        self._notes: dict[str, str] = {}

    def open(self, pids: Sequence[int], endpoint: Endpoint) -> dict[str, str]:  # noqa: ARG002
        if not pids:
            raise Unavailable("the server's processes are not on this machine")
        try:
            self._nvml.nvmlInit()
        except self._nvml.NVMLError as exc:
            raise Unavailable(_text(exc)) from exc
        try:
            notes = self._find_parts(set(pids))
            self._open_counters()
        except self._nvml.NVMLError as exc:
            self.close()
            raise Unavailable(_text(exc)) from exc
        except Unavailable:
            self.close()
            raise
        hidden = "nvml_processes" in notes
        self._watch = NvmlWatch(self._nvml, self._parts, set(pids), hidden=hidden)
        return {**notes, **self._notes}

    def utilization(self) -> float | None:
        self._watch.look()
        self._counted = {part.name: self._count(part) for part in self._parts}
        shares = [self._share(part) for part in self._parts]
        known = [share for share in shares if share is not None]
        return sum(known) / len(known) if known and len(known) == len(shares) else None

    def memory_mb(self) -> float | None:
        infos = self._each(lambda part: self._nvml.nvmlDeviceGetMemoryInfo(part.handle))
        return None if infos is None else sum(info.used for info in infos) / 1e6

    def memory_total_mb(self) -> float | None:
        infos = self._each(lambda part: self._nvml.nvmlDeviceGetMemoryInfo(part.handle))
        return None if infos is None else sum(info.total for info in infos) / 1e6

    def gauges(self) -> Mapping[str, Reading]:
        """Read after `utilization`, whose counters it shares."""
        found = {**self._of_gpm(), **self._of_devices(), **self._of_energy()}
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
        self._parts, self._gpm, self._energy = [], {}, {}
        try:
            self._nvml.nvmlShutdown()
        except self._nvml.NVMLError:
            return

    # --------------------------------------------------------------------------------- opening
    def _find_parts(self, pids: set[int]) -> dict[str, str]:
        parts = parts_here(self._nvml)
        on = {part.name: users(self._nvml, part) for part in parts}
        used = [part for part in parts if on[part.name] & pids]
        notes: dict[str, str] = {}
        if not used:
            used = [part for part in parts if any(map(_hidden, on[part.name]))]
            if not used:
                raise Unavailable("the server has no process on a GPU of this machine")
            notes["nvml_processes"] = "hidden by a PID namespace: taken for the server's"
        self._parts = used
        foreign = sorted({pid for part in used for pid in on[part.name] - pids})
        if foreign and "nvml_processes" not in notes:
            notes["nvml_foreign_processes"] = ", ".join(map(str, foreign))
        if any(part.sliced for part in used):
            notes["nvml_mig"] = "power, energy and clocks are those of the whole GPU"
        return {**notes, "nvml_devices": ", ".join(part.name for part in used)}

    def _open_counters(self) -> None:
        self._notes, self._counted = {}, {}
        for part in self._parts:
            try:
                self._gpm[part.name] = Gpm(self._nvml, part, clock=self._clock)
            except self._nvml.NVMLError as exc:
                self._notes["gpm"] = _text(exc)
        for part in _devices(self._parts):
            self._energy[part.name] = Energy(self._nvml, part.device, clock=self._clock)

    # --------------------------------------------------------------------------------- reading
    def _count(self, part: Part) -> Mapping[str, float]:
        counters = self._gpm.get(part.name)
        if counters is None:
            return {}
        try:
            return counters.read()
        except self._nvml.NVMLError as exc:
            self._failed("gpm", exc)
            return {}

    def _share(self, part: Part) -> float | None:
        if part.sliced:
            return self._counted[part.name].get(gpm.BUSY)
        try:
            return float(self._nvml.nvmlDeviceGetUtilizationRates(part.handle).gpu) / 100
        except self._nvml.NVMLError as exc:
            self._failed("nvml_utilization", exc)
            return self._counted[part.name].get(gpm.BUSY)

    def _of_gpm(self) -> dict[str, Reading | None]:
        names = {name for counted in self._counted.values() for name in counted} - {gpm.BUSY}
        return {
            name: _over([counted.get(name) for counted in self._counted.values()], name, "gpm")
            for name in sorted(names)
        }

    def _of_devices(self) -> dict[str, Reading | None]:
        nvml = self._nvml
        reads: dict[str, Callable[[Any], float]] = {
            "power_w": lambda device: nvml.nvmlDeviceGetPowerUsage(device) / 1000,
            "sm_clock_mhz": lambda device: nvml.nvmlDeviceGetClockInfo(device, nvml.NVML_CLOCK_SM),
            "memory_clock_mhz": lambda device: nvml.nvmlDeviceGetClockInfo(
                device, nvml.NVML_CLOCK_MEM
            ),
            "temperature_c": lambda device: nvml.nvmlDeviceGetTemperature(
                device, nvml.NVML_TEMPERATURE_GPU
            ),
        }
        return {name: self._of_each_device(name, read) for name, read in reads.items()}

    def _of_each_device(self, name: str, read: Callable[[Any], float]) -> Reading | None:
        values: list[float | None] = []
        for part in _devices(self._parts):
            try:
                values.append(float(read(part.device)))
            except self._nvml.NVMLError as exc:
                self._failed(f"nvml_{name}", exc)
                values.append(None)
        return _over(values, name, "nvml")

    def _of_energy(self) -> dict[str, Reading | None]:
        values: list[float | None] = []
        sources = set()
        for meter in self._energy.values():
            try:
                values.append(meter.joules())
                sources.add(meter.source)
            except self._nvml.NVMLError as exc:
                self._failed("nvml_energy_j", exc)
                values.append(None)
        return {"energy_j": _over(values, "energy_j", "+".join(sorted(sources)))}

    def _each(self, read: Callable[[Part], Any]) -> list[Any] | None:
        """One reading per part; None where one of them cannot be had."""
        try:
            return [read(part) for part in self._parts]
        except self._nvml.NVMLError as exc:
            self._failed("nvml_memory", exc)
            return None

    def _failed(self, what: str, exc: Exception) -> None:
        lost = getattr(exc, "value", None) == pynvml.NVML_ERROR_GPU_IS_LOST
        self._notes["nvml_lost" if lost else what] = _text(exc)


def _devices(parts: Sequence[Part]) -> Iterator[Part]:
    """One part of each GPU: what is known of the whole GPU is not counted once per slice."""
    seen: set[str] = set()
    for part in parts:
        index = part.name.partition(":")[0]
        if index not in seen:
            seen.add(index)
            yield part


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
