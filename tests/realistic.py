"""Realistic measurements without a server: a small simulated batcher makes their numbers.

One queue, ``instances`` servers that share ``cores``, dispatch of whatever waits up to the
batch limit, straight-line service times with noise. Everything is seeded.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from hdrh.histogram import HdrHistogram

from autotune.core.measurement import (
    BatchStat,
    LatencySummary,
    LoadResult,
    Measurement,
    Purpose,
    RequestSamples,
    ServerWindow,
    TelemetryWindow,
)
from autotune.core.records import DecisionRecord, StudyRecord, StudyState
from autotune.core.sla import Sla
from autotune.core.trial import Trial, TrialState
from search_spaces.candidate import Candidate

STARTED_AT = 1_790_000_000.0
SLA = Sla(latency_ms={95.0: 80.0})


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Service time of a batch of n: fixed_ms + each_ms·n, times the load on the cores."""

    fixed_ms: float = 1.5
    each_ms: float = 11.5
    cores: int = 2
    seed: int = 1


def a_candidate(batch: int, instances: int, delay_us: int = 0) -> Candidate:
    return Candidate({"max_batch_size": batch, "queue_delay_us": delay_us, "instances": instances})


def a_measurement(
    candidate: Candidate | None = None,
    *,
    qps: float = 80.0,
    window_s: float = 12.0,
    machine: Machine | None = None,
    samples: bool = True,
    purpose: Purpose = Purpose.TRIAL,
    invalid_because: tuple[str, ...] = (),
) -> Measurement:
    candidate = a_candidate(4, 2) if candidate is None else candidate
    machine = machine or Machine()
    instances, batch = int(candidate["instances"]), int(candidate["max_batch_size"])  # type: ignore[arg-type]
    rng = np.random.default_rng([machine.seed, batch, instances])
    count = int(qps * window_s)
    scheduled = np.sort(rng.uniform(0, window_s, count))
    done, batches, waits = _served(scheduled, batch, instances, machine, rng)
    sent = scheduled + rng.gamma(2.0, 0.0003, count)
    done = np.maximum(done, sent) + rng.gamma(2.0, 0.0006, count)
    latency_ms = (done - scheduled) * 1000
    busy = sum(machine.fixed_ms * n + machine.each_ms * n * s for s, n in batches.items())
    utilization = min(1.0, busy / 1000 / (window_s * machine.cores) + 0.04)
    each = machine.fixed_ms / batch + machine.each_ms
    load = LoadResult(
        offered_qps=count / window_s,
        achieved_qps=float(np.sum(done < window_s) / window_s),
        window_s=float(window_s),
        scheduled=count,
        sent=count,
        completed=count,
        ok=count,
        errors={},
        latency=LatencySummary.of(latency_ms),
        service_latency=LatencySummary.of((done - sent) * 1000),
        send_lag=LatencySummary.of((sent - scheduled) * 1000),
        generator_cpu=0.13,
        max_in_flight=int(latency_ms.max() / 1000 * qps) + 1,
        in_flight_cap_hit=False,
        histogram=histogram_of(latency_ms),
        samples=RequestSamples(
            scheduled_s=scheduled, sent_s=sent, done_s=done, ok=np.ones(count, dtype=np.bool_)
        )
        if samples
        else None,
    )
    return Measurement(
        purpose=purpose,
        started_at=STARTED_AT,
        load=load,
        server=ServerWindow(
            requests=count,
            executions=sum(batches.values()),
            failures=0,
            queue_ms=float(np.mean(waits) * 1000),
            compute_input_ms=0.21,
            compute_infer_ms=float(
                np.mean([machine.fixed_ms + machine.each_ms * s for s in batches])
            ),
            compute_output_ms=0.16,
            batches={
                size: BatchStat(executions=n, compute_ms=machine.fixed_ms + machine.each_ms * size)
                for size, n in sorted(batches.items())
            },
        ),
        telemetry=TelemetryWindow(
            utilization=utilization,
            source="process_cpu",
            memory_mb=180.0 + 95.0 * instances + 2.0 * batch,
            memory_source="process_pss",
            series=tuple(
                (round(at, 2), float(np.clip(utilization + rng.normal(0, 0.05), 0, 1)))
                for at in np.arange(0, window_s, 0.25)
            ),
            notes={"cores": str(machine.cores)},
        ),
        saturation_qps=1000 * min(instances, machine.cores) / each * 0.97,
        instances=instances,
        reload_s=0.6 + 0.3 * instances,
        invalid_because=invalid_because,
    )


def _served(
    arrivals: np.ndarray, batch: int, instances: int, machine: Machine, rng: np.random.Generator
) -> tuple[np.ndarray, Counter[int], np.ndarray]:
    free = [0.0] * instances
    done, waits = np.empty_like(arrivals), np.empty_like(arrivals)
    sizes: Counter[int] = Counter()
    slow = max(1.0, instances / machine.cores)
    first = 0
    while first < len(arrivals):
        start = max(heapq.heappop(free), arrivals[first])
        waiting = int(np.searchsorted(arrivals, start, side="right")) - first
        size = max(1, min(batch, waiting))
        took = (machine.fixed_ms + machine.each_ms * size) / 1000 * slow * rng.normal(1, 0.04)
        heapq.heappush(free, start + took)
        done[first : first + size] = start + took
        waits[first : first + size] = start - arrivals[first : first + size]
        sizes[size] += 1
        first += size
    return done, sizes, waits


def histogram_of(latency_ms: np.ndarray) -> str:
    """The latencies as the load generator stores them: an encoded HDR histogram in microseconds."""
    histogram = HdrHistogram(1, 3_600_000_000, 3)
    for value in latency_ms:
        histogram.record_value(int(value * 1000))
    encoded = histogram.encode()
    return encoded.decode() if isinstance(encoded, bytes) else encoded


def a_trial(number: int, candidate: Candidate, **measured: object) -> Trial:
    return Trial(
        number=number,
        candidate=candidate,
        state=TrialState.OK,
        measurements=(a_measurement(candidate, **measured),),  # type: ignore[arg-type]
        started_at=STARTED_AT + 20 * number,
        ended_at=STARTED_AT + 20 * number + 18,
    )


def a_study_of_trials() -> list[Trial]:
    """A dozen ok trials (some miss the SLA), and one each of the other states."""
    shapes = [(1, 1), (1, 2), (2, 1), (2, 2), (4, 1), (4, 2), (8, 1), (8, 2), (16, 1), (16, 2)]
    shapes += [(1, 3), (4, 4), (8, 3)]
    trials = [
        a_trial(number, a_candidate(batch, instances, 2000 if batch == 8 else 0))
        for number, (batch, instances) in enumerate(shapes)
    ]
    number = len(trials)
    lag = "the generator fell behind: p99 send lag 41.0 ms is above 10 ms"
    invalid = a_candidate(32, 2, 4000)
    return [
        *trials,
        Trial(
            number=number,
            candidate=invalid,
            state=TrialState.INVALID,
            measurements=(a_measurement(invalid, invalid_because=(lag,)),),
            reason=f"measured 2 times, never validly: {lag}",
        ),
        Trial(
            number=number + 1,
            candidate=a_candidate(64, 8),
            state=TrialState.FAILED,
            reason="the model did not load: failed to allocate shared memory region",
        ),
        Trial(
            number=number + 2,
            candidate=a_candidate(64, 1, 500),
            state=TrialState.PRUNED,
            reason="dominated: a smaller batch at the same delay already saturates",
        ),
    ]


def a_record(trials: Sequence[Trial] = (), name: str = "ocr") -> StudyRecord:
    return StudyRecord(
        id=1,
        name=name,
        state=StudyState.DONE,
        definition={"study": name},
        digest="9f3c5a2b7d1e4f60",
        created_at=STARTED_AT,
        ended_at=STARTED_AT + 283,
        environment={
            "host": {"os": "Debian GNU/Linux 12", "cores": 2, "cpu": "Xeon (AVX512-VNNI)"},
            "server": {"triton": "2.51.0", "launch": "embedded", "model_sha256": "4be1…77a0"},
            "python": "3.11.7",
            "gpu": None,
        },
        trials=len(trials),
    )


def a_decision(pick: int | None, rule: str = "cheapest") -> DecisionRecord:
    return DecisionRecord(
        study_id=1, taken_at=STARTED_AT + 280, rule=rule, pick=pick, detail={}, exported_to=None
    )
