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
    """One way to see how busy the hardware is; all of it is called from one thread, from `open` to
    `close`. One that knows of utilization and memory alone inherits the rest from here."""

    @property
    def name(self) -> str: ...

    @property
    def memory_name(self) -> str: ...

    @property
    def silence(self) -> str:
        """The note that tells that it does not answer any more."""
        return f"{self.name}_silent"

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
PATIENCE_S = 30.0
"""A source that has not answered for so long hangs, as the driver of a GPU that is lost may; or
walks the page tables of a very large server."""


class SampledTelemetry:
    """A `Telemetry` that reads the first available of its sources about every ``interval_s``.

    The utilization of a window is the mean of the readings, each weighted by the time since the
    one before. Memory is read after the start and at the end, and the larger value counts: the
    reading walks page tables, which is not free. Why a source was passed over stands in the notes
    under its name. The ``watches`` compare the beginning with the end, whatever the source.

    A source that hangs holds nobody up for more than ``patience_s``: it is left to itself, and not
    asked again. What it had told of the window by then is no mean, so it is left out.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        *,
        watches: Sequence[Watch] = (),
        interval_s: float = 0.2,
        patience_s: float = PATIENCE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sources = list(sources)
        self._watches = watches
        self._interval_s = interval_s
        self._patience_s = patience_s
        self._clock = clock
        self._sampling: _Sampling | None = None
        self._given_up: dict[str, str] = {}

    def start(self, pids: Sequence[int], endpoint: Endpoint) -> None:
        self.stop()
        sampling = _Sampling(self._sources, interval_s=self._interval_s, clock=self._clock)
        for watch in self._watches:  # before the sources: a GPU's library may take a while to open
            watch.begin(pids, endpoint)
        sampling.begin(pids, endpoint)
        self._sampling = sampling

    def stop(self) -> TelemetryWindow:
        sampling, self._sampling = self._sampling, None
        if sampling is None:
            return TelemetryWindow()
        found = [watch.end() for watch in self._watches]
        notes = dict(self._given_up)
        if not sampling.end(self._patience_s):
            notes |= self._give_up(sampling.asked)
        return sampling.window(combined(found), notes)

    def _give_up(self, source: Source) -> dict[str, str]:
        """What is to be noted now that it hangs."""
        self._sources.remove(source)
        said = f"has not answered for {self._patience_s:g} s"
        self._given_up[source.name] = f"{said}, and is not asked any more"
        return {source.silence: f"{source.name} {said}"}


class _Sampling:
    """The readings of one window, taken in a thread of their own from the opening of a source to
    its closing. ``asked`` is the source that was asked last."""

    asked: Source

    def __init__(
        self, sources: Sequence[Source], *, interval_s: float, clock: Callable[[], float]
    ) -> None:
        self._sources = tuple(sources)
        self._interval_s = interval_s
        self._clock = clock
        self._began = clock()
        self._opened_s = 0.0
        self._over = threading.Event()
        self._failure: Exception | None = None
        self._source: Source | None = None
        self._notes: dict[str, str] = {}
        self._series: list[tuple[float, float | None]] = []
        self._memory_mb: list[float] = []
        self._memory_total_mb: float | None = None
        self._gauges: dict[str, list[tuple[float, float | None]]] = {}
        self._gauge_sources: dict[str, str] = {}
        self._found = Disturbance()

    def begin(self, pids: Sequence[int], endpoint: Endpoint) -> None:
        self._thread = threading.Thread(
            target=self._run, args=(pids, endpoint), name="telemetry", daemon=True
        )
        self._thread.start()

    def end(self, patience_s: float) -> bool:
        """Take the last readings; False where they do not come. An error of ours, by which the
        thread has ended, is raised here."""
        self._over.set()
        self._thread.join(patience_s)
        self._whole = not self._thread.is_alive()
        if self._failure is not None:
            raise self._failure
        return self._whole

    # ------------------------------------------------------------------------ in the thread
    def _run(self, pids: Sequence[int], endpoint: Endpoint) -> None:
        try:
            source = self._first_available(pids, endpoint)
            if source is not None:
                self._read_until_over(source)
        except Exception as exc:  # noqa: BLE001  -- raised in `end`
            self._failure = exc

    def _first_available(self, pids: Sequence[int], endpoint: Endpoint) -> Source | None:
        for source in self._sources:
            self.asked = source
            try:
                self._notes.update(source.open(pids, endpoint))
            except Unavailable as exc:
                self._notes[source.name] = str(exc)
            else:
                return source
        return None

    def _read_until_over(self, source: Source) -> None:
        self._source, self._opened_s = source, self._now()
        try:
            self._read_memory(source)
            while not self._over.wait(self._interval_s):
                self._read(source)
            self._read(source)
            self._read_memory(source)
            self._found = source.disturbance()
        finally:
            source.close()

    def _now(self) -> float:
        return self._clock() - self._began

    def _read(self, source: Source) -> None:
        self._series.append((self._now(), source.utilization()))
        at, found = self._now(), source.gauges()
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

    # ------------------------------------------------------------------------ when it is over
    def window(self, watched: Disturbance, notes: Mapping[str, str]) -> TelemetryWindow:
        found = combined([watched, self._found])
        notes = {**self._notes, **found.notes, **notes}
        # Of a part of the window no mean is taken, nor a sum.
        whole = self._whole and LOST_GPU not in notes
        source = self._source
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
            name: self._total(series) if name in TOTALS else time_weighted_mean(series)
            for name, series in sorted(self._gauges.items())
        }
        return {
            name: Gauge(
                value=value, source=self._gauge_sources[name], series=known(self._gauges[name])
            )
            for name, value in values.items()
            if value is not None
        }

    def _total(self, series: Sequence[tuple[float, float | None]]) -> float | None:
        """Over the whole window: while the source was opened, nothing was counted, and it is taken
        to have been like the rest."""
        at, counted = series[-1]
        if counted is None or at <= self._opened_s:
            return counted
        return counted * at / (at - self._opened_s)


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
