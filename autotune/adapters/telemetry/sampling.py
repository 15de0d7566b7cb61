"""Samples a source of readings in a thread and sums them up."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from autotune.adapters.telemetry.disturbance import Disturbance, Watch, combined
from autotune.core.measurement import Gauge, TelemetryWindow
from autotune.core.model_interface import Endpoint
from autotune.core.validity import LOST_GPU


class Unavailable(Exception):
    """A source cannot be read here; the message says why. Never leaves this package."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One value of a gauge, and where it was read."""

    value: float
    source: str


class Source(Protocol):
    """One way to see how busy the hardware is. Between `open` and `close`, from one thread at a
    time. One that knows of utilization and memory alone inherits the rest from here."""

    @property
    def name(self) -> str: ...

    @property
    def memory_name(self) -> str: ...

    def open(self, pids: Sequence[int], endpoint: Endpoint) -> dict[str, str]:
        """Begin; returns notes on what is read. Unavailable where nothing can be."""

    def utilization(self) -> float | None:
        """Share, 0 to 1, since the last call or `open`, or at present; None if unknown."""

    def memory_mb(self) -> float | None:
        """Megabytes (10^6 bytes) in use now; None if unknown."""

    def memory_total_mb(self) -> float | None:
        """Megabytes (10^6 bytes) that there are for the server; None if unknown."""
        return None

    def gauges(self) -> Mapping[str, Reading]:
        """Values of `autotune.core.measurement.GAUGES` since the last call or `open`, or at
        present; of those in `TOTALS` since `open`. An unknown one is missing."""
        return {}

    def disturbance(self) -> Disturbance:
        """What was seen since `open` that may have disturbed what was read."""

    def close(self) -> None: ...


TOTALS = {"energy_j"}
"""Gauges that are counted over the window: their last value counts, not their mean."""


class SampledTelemetry:
    """A `Telemetry` that reads the first available of its sources about every ``interval_s``.

    The utilization of a window is the mean of the readings, each weighted by the time since the
    one before. Memory is read after the start and at the end, and the larger value counts: the
    reading walks page tables, which is not free. Why a source was passed over stands in the notes
    under its name. The ``watches`` compare the beginning with the end, whatever the source.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        *,
        watches: Sequence[Watch] = (),
        interval_s: float = 0.2,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sources = sources
        self._watches = watches
        self._running = False
        self._interval_s = interval_s
        self._clock = clock
        self._source: Source | None = None
        self._sampler: threading.Thread | None = None
        self._over = threading.Event()

    def start(self, pids: Sequence[int], endpoint: Endpoint) -> None:
        self.stop()
        self._running = True
        self._series: list[tuple[float, float | None]] = []
        self._memory_mb: list[float] = []
        self._memory_total_mb: float | None = None
        self._gauges: dict[str, list[tuple[float, float | None]]] = {}
        self._gauge_sources: dict[str, str] = {}
        self._began = self._clock()
        for watch in self._watches:  # before the sources: a GPU's library may take a while to open
            watch.begin(pids, endpoint)
        self._source = self._first_available(pids, endpoint)
        if self._source is not None:
            self._over.clear()
            self._sampler = threading.Thread(
                target=self._sample, args=(self._source,), name="telemetry", daemon=True
            )
            self._sampler.start()

    def stop(self) -> TelemetryWindow:
        if not self._running:
            return TelemetryWindow()
        self._running = False
        found = [watch.end() for watch in self._watches]
        source, self._source = self._source, None
        if source is not None:
            assert self._sampler is not None
            self._over.set()
            self._sampler.join()
            self._read(source)
            self._read_memory(source)
            found.append(source.disturbance())
            source.close()
        return self._window(source, combined(found))

    def _first_available(self, pids: Sequence[int], endpoint: Endpoint) -> Source | None:
        self._notes: dict[str, str] = {}
        for source in self._sources:
            try:
                self._notes.update(source.open(pids, endpoint))
            except Unavailable as exc:
                self._notes[source.name] = str(exc)
            else:
                return source
        return None

    def _sample(self, source: Source) -> None:
        self._read_memory(source)
        while not self._over.wait(self._interval_s):
            self._read(source)

    def _read(self, source: Source) -> None:
        self._series.append((self._clock() - self._began, source.utilization()))
        at, found = self._clock() - self._began, source.gauges()
        for name in {*found, *self._gauges}:
            reading = found.get(name)
            missed: list[tuple[float, float | None]] = [(t, None) for t, _ in self._series[:-1]]
            series = self._gauges.setdefault(name, missed)
            series.append((at, None if reading is None else reading.value))
            if reading is not None:
                self._gauge_sources[name] = reading.source

    def _read_memory(self, source: Source) -> None:
        if self._memory_total_mb is None:
            self._memory_total_mb = source.memory_total_mb()
        memory_mb = source.memory_mb()
        if memory_mb is not None:
            self._memory_mb.append(memory_mb)

    def _window(self, source: Source | None, found: Disturbance) -> TelemetryWindow:
        notes = {**self._notes, **found.notes}
        whole = LOST_GPU not in notes  # of a part of the window no mean is taken, nor a sum
        utilization = time_weighted_mean(self._series) if whole else None
        return TelemetryWindow(
            utilization=utilization,
            source=source.name if source is not None and utilization is not None else None,
            memory_mb=max(self._memory_mb, default=None),
            memory_source=source.memory_name if source is not None and self._memory_mb else None,
            memory_total_mb=self._memory_total_mb,
            series=known(self._series),
            gauges=self._known_gauges() if whole else {},
            foreign_cpu=found.foreign_cpu,
            foreign_gpu=found.foreign_gpu,
            throttled=found.throttled,
            notes=notes,
        )

    def _known_gauges(self) -> dict[str, Gauge]:
        values = {
            name: series[-1][1] if name in TOTALS else time_weighted_mean(series)
            for name, series in sorted(self._gauges.items())
        }
        return {
            name: Gauge(
                value=value, source=self._gauge_sources[name], series=known(self._gauges[name])
            )
            for name, value in values.items()
            if value is not None
        }


def known(series: Sequence[tuple[float, float | None]]) -> tuple[tuple[float, float], ...]:
    """Without the readings that gave nothing."""
    return tuple((at, value) for at, value in series if value is not None)


def time_weighted_mean(series: Sequence[tuple[float, float | None]]) -> float | None:
    """The mean of (time, value) pairs, each value holding since the time before it; unknown
    values and their time are left out."""
    total = covered = before = 0.0
    for at, value in series:
        if value is not None:
            total += value * (at - before)
            covered += at - before
        before = at
    return total / covered if covered > 0 else None
