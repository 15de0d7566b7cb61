"""Trials with given figures, for tests of what is decided on them."""

from __future__ import annotations

from collections.abc import Mapping

from autotune.core.intervals import Interval
from autotune.core.measurement import (
    Ended,
    LatencySummary,
    LoadResult,
    Measurement,
    Purpose,
    TelemetryWindow,
    Traffic,
)
from autotune.core.trial import Trial, TrialState
from search_spaces.candidate import Candidate


def made_load(
    *,
    p95: float | None = 40.0,
    p99: float | None = None,
    scheduled: int = 1000,
    ok: int | None = None,
    achieved: float | None = None,
    window_s: float = 10.0,
    ended: Ended = Ended.MAXIMUM,
) -> LoadResult:
    good = scheduled if ok is None else ok
    latency = None
    if p95 is not None:
        tail = p95 * 1.2 if p99 is None else p99
        percentiles = {50.0: p95 / 2, 90.0: p95 * 0.9, 95.0: p95, 99.0: tail}
        latency = LatencySummary(
            count=scheduled, mean_ms=p95 / 2, max_ms=tail * 2, percentiles_ms=percentiles
        )
    return LoadResult(
        offered_qps=scheduled / window_s,
        achieved_qps=good / window_s if achieved is None else achieved,
        window_s=window_s,
        scheduled=scheduled,
        sent=scheduled,
        completed=scheduled,
        ok=good,
        errors={} if good == scheduled else {"http_503": scheduled - good},
        latency=latency,
        service_latency=latency,
        send_lag=None,
        generator_cpu=0.2,
        max_in_flight=10,
        in_flight_cap_hit=False,
        ended=ended,
    )


def made_measurement(
    *,
    load: LoadResult | None = None,
    p95: float | None = 40.0,
    saturation: float | None = 150.0,
    utilization: float | None = 0.5,
    memory: float | None = 500.0,
    instances: int = 1,
    purpose: Purpose = Purpose.TRIAL,
    invalid: tuple[str, ...] = (),
    within: Mapping[str, tuple[float, float]] | None = None,
    qps: float | None = None,
    cv: float | None = 1.0,
    seed: int = 0,
    accuracy_drop: float | None = None,
) -> Measurement:
    """``within``: the ends of the 95% interval by metric; ``qps``, ``cv``, ``seed``: what was
    offered."""
    return Measurement(
        purpose=purpose,
        started_at=0.0,
        load=made_load(p95=p95) if load is None else load,
        server=None,
        telemetry=TelemetryWindow(utilization=utilization, memory_mb=memory),
        saturation_qps=saturation,
        instances=instances,
        invalid_because=invalid,
        intervals={name: Interval(*ends) for name, ends in (within or {}).items()},
        traffic=None if qps is None else Traffic(qps=qps, arrival="gamma", cv=cv, seed=seed),
        accuracy_drop=accuracy_drop,
    )


def made_trial(number: int, *measurements: Measurement, state: TrialState = TrialState.OK) -> Trial:
    return Trial(
        number=number,
        candidate=Candidate({"max_batch_size": number + 1}),
        state=state,
        measurements=measurements,
    )
