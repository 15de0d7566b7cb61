"""Trials with given figures, for tests of what is decided on them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from autotune.core.intervals import Interval
from autotune.core.measurement import (
    BatchStat,
    Ended,
    LatencySummary,
    LoadResult,
    Measurement,
    Purpose,
    ServerWindow,
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


# ------------------------------------------------------------------------------------- pipelines
WINDOW_S = 20.0
RATE = 18.0


def made_step(
    batch_ms: float,
    *,
    batch: int = 1,
    instances: int = 1,
    queue_ms: float = 0.0,
    rate: float = RATE,
    batches: Mapping[int, BatchStat] | None = None,
) -> ServerWindow:
    """A step that served ``rate`` requests a second for `WINDOW_S` in batches of ``batch``."""
    requests = round(rate * WINDOW_S)
    executions = round(requests / batch)
    return ServerWindow(
        requests=requests,
        executions=executions,
        failures=0,
        queue_ms=queue_ms,
        compute_input_ms=0.0,
        compute_infer_ms=batch_ms,
        compute_output_ms=0.0,
        batches=batches or {batch: BatchStat(executions=executions, compute_ms=batch_ms)},
        instances=instances,
    )


def made_pipeline(steps: Mapping[str, ServerWindow]) -> ServerWindow:
    """As the server tells it: sums over the steps, no batches of its own."""
    return ServerWindow(
        requests=min(step.requests for step in steps.values()),
        executions=0,
        failures=0,
        queue_ms=sum(step.queue_ms for step in steps.values()),
        compute_input_ms=0.0,
        compute_infer_ms=sum(step.compute_infer_ms for step in steps.values()),
        compute_output_ms=0.0,
        steps=steps,
    )


def made_pipeline_measurement(
    steps: Mapping[str, ServerWindow],
    *,
    p95: float,
    outside_ms: float = 80.0,
    within: tuple[float, float] | None = None,
    answered: float = RATE,
    ended: Ended = Ended.MAXIMUM,
    utilization: float = 0.7,
    purpose: Purpose = Purpose.TRIAL,
) -> Measurement:
    """Of a pipeline on an emulated accelerator that was offered `RATE` for `WINDOW_S`, and
    ``answered`` so many of them per second."""
    server = made_pipeline(steps)
    scheduled = round(RATE * WINDOW_S)
    load = made_load(
        p95=p95, scheduled=scheduled, achieved=answered, window_s=WINDOW_S, ended=ended
    )
    assert load.latency is not None
    mean_ms = server.queue_ms + server.compute_ms + outside_ms
    latency = replace(load.latency, mean_ms=mean_ms)
    measured = made_measurement(
        load=replace(load, latency=latency),
        saturation=max(answered, 1.0) * 1.1,
        instances=sum(step.instances for step in steps.values()),
        within=None if within is None else {"p95_ms": within},
        qps=RATE,
        purpose=purpose,
    )
    telemetry = replace(measured.telemetry, utilization=utilization, source="emulated")
    return replace(measured, server=server, telemetry=telemetry)


def starved_steps(
    *, workers: int, device: ServerWindow, preprocess_ms: float = 370.0, queue_ms: float = 1.0
) -> dict[str, ServerWindow]:
    """The published pipeline whose accelerator is starved by its preprocessing."""
    return {
        "preprocess": made_step(preprocess_ms, instances=workers, queue_ms=queue_ms),
        "device": device,
        "postprocess": made_step(95.0, instances=4, queue_ms=1.0),
    }


def starved_candidate(workers: int, batch: int, delay_us: int = 0) -> Candidate:
    return Candidate(
        {
            "preprocess.workers": workers,
            "device.max_batch_size": batch,
            "device.queue_delay_us": delay_us,
            "device.instances": 1,
            "postprocess.workers": 4,
            "postprocess.max_batch_size": 0,
        }
    )


def starved_trial(number: int, workers: int, batch: int, *measurements: Measurement) -> Trial:
    return Trial(
        number=number,
        candidate=starved_candidate(workers, batch),
        state=TrialState.OK,
        measurements=measurements,
    )


def starved_study(preprocess_ms: float = 370.0) -> list[Trial]:
    """A handful of trials of it: what was found (one worker, batch 1), too few workers, enough of
    them, a larger batch. With preprocessing as published none holds 800 ms; halved, one does."""
    full = 1000 / preprocess_ms
    one, four = min(RATE, full), min(RATE, 4 * full)
    device = made_step(150.0, batch=4, queue_ms=90.0)
    large = made_step(430.0, batch=16, queue_ms=380.0)
    p95 = preprocess_ms + 492.0
    untuned = {
        "preprocess": made_step(preprocess_ms, queue_ms=8200.0, rate=one),
        "device": made_step(72.0, rate=one),
        "postprocess": made_step(95.0, rate=one),
    }
    few = {
        "preprocess": made_step(preprocess_ms, instances=4, queue_ms=4100.0, rate=four),
        "device": made_step(110.0, batch=2, queue_ms=40.0, rate=four),
        "postprocess": made_step(95.0, instances=4, rate=four),
    }
    return [
        starved_trial(
            0,
            1,
            1,
            made_pipeline_measurement(
                untuned,
                p95=9600.0,
                answered=one,
                ended=Ended.FELL_BEHIND,
                utilization=0.12,
            ),
        ),
        starved_trial(
            1,
            4,
            4,
            made_pipeline_measurement(
                few, p95=5200.0, answered=four, ended=Ended.FELL_BEHIND, utilization=0.41
            ),
        ),
        starved_trial(
            2,
            12,
            8,
            made_pipeline_measurement(
                starved_steps(workers=12, device=device, preprocess_ms=preprocess_ms),
                p95=p95,
                within=(p95 - 22, p95 + 23),
            ),
        ),
        starved_trial(
            3,
            12,
            16,
            made_pipeline_measurement(
                starved_steps(workers=12, device=large, preprocess_ms=preprocess_ms),
                p95=p95 + 550,
                within=(p95 + 500, p95 + 620),
                utilization=0.82,
            ),
        ),
    ]
