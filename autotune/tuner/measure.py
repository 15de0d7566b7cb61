"""Measure one applied candidate: a phase at the target rate, then a saturation burst."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from autotune.core.measurement import (
    LoadResult,
    Measurement,
    Purpose,
    ServerWindow,
    TelemetryWindow,
)
from autotune.core.study import Study
from autotune.core.validity import saturated, why_invalid
from autotune.ports import (
    Applied,
    Clock,
    LoadDriver,
    LoadPlan,
    OpenLoop,
    Saturate,
    Server,
    StatisticsMark,
    Telemetry,
)
from search_spaces.candidate import MAX_BATCH_SIZE, Candidate

ATTEMPTS = 3
"""How often an invalid measurement is taken in all, before it is given up."""
SATURATION_WARMUP_S = 0.5
"""Time for the burst's queue to build up before its completions are counted."""
DRAIN_POLL_S = 0.5
DRAIN_LIMIT_S = 60.0
"""How long a saturated server may take to work off its queue before the next step is taken."""


@dataclass(slots=True)
class _Instruments:
    """Reads the server's statistics and the telemetry over exactly the measured window."""

    server: Server
    telemetry: Telemetry
    _start: StatisticsMark | None = field(default=None, init=False)
    window: ServerWindow | None = field(default=None, init=False)
    telemetry_window: TelemetryWindow = field(default_factory=TelemetryWindow, init=False)

    def opened(self) -> None:
        self._start = self.server.mark()
        self.telemetry.start(self.server.pids(), self.server.endpoint)

    def closed(self) -> None:
        # The statistics first: ending the telemetry takes a while, in which requests go on.
        end = self.server.mark()
        self.telemetry_window = self.telemetry.stop()
        if self._start is not None:
            self.window = self.server.between(self._start, end)


class _NoInstruments:
    def opened(self) -> None: ...

    def closed(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurer:
    """Owns the order of one measurement; ServerFailed and LoadFailed pass through."""

    study: Study
    load: LoadDriver
    telemetry: Telemetry
    clock: Clock

    def measure(
        self, server: Server, candidate: Candidate, applied: Applied, purpose: Purpose
    ) -> Measurement:
        started_at = self.clock.now()
        instruments = _Instruments(server, self.telemetry)
        result = self._at_target(server, instruments)
        invalid = why_invalid(result, self.study.sla)
        saturation = None if invalid else self._saturation(server, candidate, applied)
        return Measurement(
            purpose=purpose,
            started_at=started_at,
            load=result,
            server=instruments.window,
            telemetry=instruments.telemetry_window,
            saturation_qps=saturation,
            instances=applied.instances,
            reload_s=applied.seconds,
            invalid_because=invalid,
        )

    def _at_target(self, server: Server, instruments: _Instruments) -> LoadResult:
        work = self.study.workload
        # One seed for every candidate: all face the same arrivals, so that a difference between
        # two of them is not a difference of luck.
        mode = OpenLoop(qps=work.offered_qps, arrival=work.arrival, seed=self.study.seed)
        plan = LoadPlan(
            mode=mode,
            warmup_s=work.warmup_s,
            measure_s=work.measure_s,
            timeout_s=work.timeout_s,
            max_in_flight=work.max_in_flight,
            tail_s=min(work.timeout_s, max(1.0, 2 * self.study.sla.tightest_latency_ms / 1000)),
        )
        try:
            result = self.load.run(server.endpoint, plan, instruments)
        finally:
            self.telemetry.stop()  # a phase that failed in its window has not closed it
        if saturated(result):
            self._let_drain(server, instruments.window)
        return result

    def _let_drain(self, server: Server, loaded: ServerWindow | None) -> None:
        """Wait until the server has worked off what the load left behind: requests that timed out
        at the client are still served, and would be measured with what comes next. It is idle when
        nothing ends for as long as two of its executions take."""
        batches = loaded.batches.values() if loaded is not None else ()
        slowest_s = max((batch.compute_ms for batch in batches), default=0.0) / 1000
        poll_s = max(DRAIN_POLL_S, 2 * slowest_s)
        mark = server.mark()
        for _ in range(math.ceil(DRAIN_LIMIT_S / poll_s)):
            self.clock.sleep(poll_s)
            after = server.mark()
            done = server.between(mark, after)
            if done.requests == 0 and done.executions == 0 and done.failures == 0:
                return
            mark = after

    def _saturation(self, server: Server, candidate: Candidate, applied: Applied) -> float | None:
        """Completed per second with more requests open than the server can hold in batches."""
        work = self.study.workload
        if work.saturation_s == 0:
            return None
        plan = LoadPlan(
            mode=Saturate(in_flight=min(enough_in_flight(candidate, applied), work.max_in_flight)),
            warmup_s=SATURATION_WARMUP_S,
            measure_s=work.saturation_s,
            timeout_s=work.timeout_s,
            max_in_flight=work.max_in_flight,
        )
        result = self.load.run(server.endpoint, plan, _NoInstruments())
        server.mark()  # one that died in the burst has failed; it is not slow
        return result.achieved_qps


def enough_in_flight(candidate: Candidate, applied: Applied) -> int:
    """Open requests that keep every instance's next batch full: three batches per instance (one
    running, two that the batcher may hold ready), and at least 16."""
    batch = candidate.get(MAX_BATCH_SIZE)
    size = max(batch, 1) if isinstance(batch, int) else 16
    return max(16, math.ceil(3 * size * max(applied.instances, 1)))
