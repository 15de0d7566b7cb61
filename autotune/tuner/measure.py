"""Measure one applied candidate: an open-loop phase, then a saturation burst."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from autotune.core.errors import CandidateFailed
from autotune.core.intervals import Interval
from autotune.core.measured_intervals import intervals_of, saturation_interval
from autotune.core.measurement import (
    Ended,
    LoadResult,
    Measurement,
    Purpose,
    ServerWindow,
    TelemetryWindow,
)
from autotune.core.memory import RAN_OUT, answered_out_of_memory
from autotune.core.stopping import StopRule
from autotune.core.study import Study
from autotune.core.validity import (
    generator_bound,
    saturated,
    why_burst_invalid,
    why_invalid,
)
from autotune.core.workload import ArrivalKind
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
from autotune.tuner.phases import Phase
from search_spaces.candidate import MAX_BATCH_SIZE, Candidate

SATURATION_WARMUP_S = 0.5
"""Time for the burst's queue to build up before its completions are counted."""
DRAIN_POLL_S = 0.5
DRAIN_LIMIT_S = 60.0
"""How long a saturated server may take to work off its queue before the next step is taken."""


@dataclass(slots=True)
class _Instruments:
    """Reads the server's statistics and the telemetry over exactly the measured window, and says
    when that may close."""

    server: Server
    telemetry: Telemetry
    rule: Callable[[LoadResult], Ended | None]
    _start: StatisticsMark | None = field(default=None, init=False)
    window: ServerWindow | None = field(default=None, init=False)
    telemetry_window: TelemetryWindow = field(default_factory=TelemetryWindow, init=False)

    def opened(self) -> None:
        self._start = self.server.mark()
        self.telemetry.start(self.server.pids(), self.server.endpoint)

    def enough(self, so_far: LoadResult) -> Ended | None:
        return self.rule(so_far)

    def closed(self) -> None:
        # The statistics first: ending the telemetry takes a while, in which requests go on.
        end = self.server.mark()
        self.telemetry_window = self.telemetry.stop()
        if self._start is not None:
            self.window = self.server.between(self._start, end)


@dataclass(slots=True)
class _BurstInstruments:
    """Reads the telemetry alone, over the burst's window."""

    server: Server
    telemetry: Telemetry
    window: TelemetryWindow = field(default_factory=TelemetryWindow, init=False)

    def opened(self) -> None:
        self.telemetry.start(self.server.pids(), self.server.endpoint)

    def enough(self, so_far: LoadResult) -> Ended | None: ...

    def closed(self) -> None:
        self.window = self.telemetry.stop()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Burst:
    """A saturation burst, why it is not to be believed, and whether it is only known to be at least
    so much, since the load generator could send no more."""

    load: LoadResult
    invalid: tuple[str, ...]
    at_least: bool

    @property
    def interval(self) -> Interval | None:
        return None if self.at_least else saturation_interval(self.load)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurer:
    """Owns the order of one measurement; ServerFailed and LoadFailed pass through. CandidateFailed
    where an answer under load says that memory ran out, however many there are of it."""

    study: Study
    load: LoadDriver
    telemetry: Telemetry
    clock: Clock

    def measure(
        self,
        server: Server,
        candidate: Candidate,
        applied: Applied,
        purpose: Purpose,
        phase: Phase,
    ) -> Measurement:
        started_at = self.clock.now()
        work, sla = self.study.workload, self.study.sla
        rule = StopRule(
            sla=sla,
            nominal_s=phase.nominal_s,
            contender=lambda intervals: phase.contender(intervals, applied.instances),
            timeout_s=work.timeout_s,
            outclassed_ends=phase.outclassed_ends,
        )
        instruments = _Instruments(server, self.telemetry, rule)
        result = self._run(server, instruments, phase)
        exact = phase.arrival.kind in (ArrivalKind.CONSTANT, ArrivalKind.POISSON)
        invalid = why_invalid(
            result,
            sla,
            telemetry=instruments.telemetry_window,
            trust=self.study.trust,
            asked_qps=phase.traffic.qps if exact else None,
        )
        burst = None
        if phase.burst and not invalid:
            burst = self._saturation(server, candidate, applied)
        return Measurement(
            purpose=purpose,
            started_at=started_at,
            load=result,
            server=instruments.window,
            telemetry=_noted(instruments.telemetry_window, burst),
            saturation_qps=None if burst is None else burst.load.achieved_qps,
            instances=applied.instances,
            reload_s=applied.seconds,
            invalid_because=invalid if burst is None else burst.invalid,
            intervals=self._intervals(result, burst),
            traffic=phase.traffic,
            saturation_s=0.0 if burst is None else SATURATION_WARMUP_S + burst.load.window_s,
            price_per_hour=self.study.server.price_per_hour,
        )

    def _intervals(self, result: LoadResult, burst: _Burst | None) -> dict[str, Interval]:
        found = dict(intervals_of(result, timeout_s=self.study.workload.timeout_s))
        if burst is not None and burst.interval is not None:
            found["saturation_qps"] = burst.interval
            found |= _cost(burst.interval, self.study.server.price_per_hour)
        return found

    def _run(self, server: Server, instruments: _Instruments, phase: Phase) -> LoadResult:
        work = self.study.workload
        plan = LoadPlan(
            mode=OpenLoop(qps=phase.traffic.qps, arrival=phase.arrival, seed=phase.traffic.seed),
            warmup_s=work.warmup_s,
            measure_s=phase.longest_s,
            timeout_s=work.timeout_s,
            max_in_flight=phase.max_in_flight,
            tail_s=min(work.timeout_s, max(1.0, 2 * self.study.sla.tightest_latency_ms / 1000)),
            until_steady=True,
            first_look_s=phase.first_look_s,
        )
        try:
            result = self.load.run(server.endpoint, plan, instruments)
        finally:
            self.telemetry.stop()  # a phase that failed in its window has not closed it
        _refuse_out_of_memory(result)
        if saturated(result) or result.ended is Ended.HOPELESS:
            # One that was ended early may have a queue that its short window does not show.
            self._let_drain(server, instruments.window)
        return result

    def _let_drain(self, server: Server, loaded: ServerWindow | None) -> None:
        """Wait until the server has worked off what the load left behind: requests that timed out
        at the client are still served, and would be measured with what comes next. It is idle when
        nothing ends for as long as two of its executions take."""
        windows = () if loaded is None else (loaded, *loaded.steps.values())
        batches = [batch.compute_ms for window in windows for batch in window.batches.values()]
        slowest_s = max(batches, default=0.0) / 1000
        poll_s = max(DRAIN_POLL_S, 2 * slowest_s)
        mark = server.mark()
        for _ in range(math.ceil(DRAIN_LIMIT_S / poll_s)):
            self.clock.sleep(poll_s)
            after = server.mark()
            done = server.between(mark, after)
            if done.requests == 0 and done.executions == 0 and done.failures == 0:
                return
            mark = after

    def _saturation(self, server: Server, candidate: Candidate, applied: Applied) -> _Burst:
        """A burst with more requests open than the server can hold in batches."""
        work = self.study.workload
        plan = LoadPlan(
            mode=Saturate(in_flight=min(enough_in_flight(candidate, applied), work.max_in_flight)),
            warmup_s=SATURATION_WARMUP_S,
            measure_s=work.saturation_s,
            timeout_s=work.timeout_s,
            max_in_flight=work.max_in_flight,
        )
        instruments = _BurstInstruments(server, self.telemetry)
        try:
            result = self.load.run(server.endpoint, plan, instruments)
        finally:
            self.telemetry.stop()
        server.mark()  # one that died in the burst has failed; it is not slow
        _refuse_out_of_memory(result)
        trust = self.study.trust
        return _Burst(
            load=result,
            invalid=why_burst_invalid(result, instruments.window, trust),
            at_least=generator_bound(result, trust),
        )


def _refuse_out_of_memory(load: LoadResult) -> None:
    answer = answered_out_of_memory(load)
    if answer:
        raise CandidateFailed(f"{RAN_OUT} under load: {answer}")


def _cost(saturation: Interval, price_per_hour: float | None) -> dict[str, Interval]:
    """The interval of `Measurement.cost_per_1000`; none without a price."""
    if price_per_hour is None or saturation.low <= 0:
        return {}
    per_second = price_per_hour / 3600
    low, high = (1000 * per_second / qps for qps in (saturation.high, saturation.low))
    return {"cost_per_1000": Interval(low=low, high=high)}


def _noted(telemetry: TelemetryWindow, burst: _Burst | None) -> TelemetryWindow:
    if burst is None or not burst.at_least:
        return telemetry
    note = (
        f"at least this: the load generator used {burst.load.generator_cpu:.0%} of its core and"
        " could send no more"
    )
    return replace(telemetry, notes={**telemetry.notes, "saturation": note})


def enough_in_flight(candidate: Candidate, applied: Applied) -> int:
    """Open requests that keep every instance's next batch full, in every step of a pipeline: three
    batches per instance (one running, two that the batcher may hold ready), and at least 16."""
    parts = applied.by_step or {"": applied.instances}
    batches = {step: _largest_batch(candidate.of(step), step, applied) for step in parts}
    return max(16, sum(3 * batches[step] * max(count, 1) for step, count in parts.items()))


def _largest_batch(part: Candidate, step: str, applied: Applied) -> int:
    """As the candidate says, else as it was found to be loaded; 16 where that is not known."""
    size = part.get(MAX_BATCH_SIZE)
    return max(size, 1) if isinstance(size, int) else applied.largest_batches.get(step, 16)
