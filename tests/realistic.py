"""Realistic measurements without a server: a small simulated batcher makes their numbers.

One queue, ``instances`` servers that share ``cores``, dispatch of whatever waits up to the
batch limit, straight-line service times with noise. Everything is seeded.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from hdrh.histogram import HdrHistogram

from autotune.core.comparison import Comparison, Relation
from autotune.core.intervals import Estimate, Interval, percentile_interval, rate_interval
from autotune.core.judged import judge_trial
from autotune.core.measurement import (
    PERCENTILES,
    BatchStat,
    Ended,
    LatencySummary,
    LoadResult,
    Measurement,
    Purpose,
    RequestSamples,
    ServerWindow,
    TelemetryWindow,
    Traffic,
)
from autotune.core.records import DecisionRecord, StudyRecord, StudyState
from autotune.core.sla import Sla
from autotune.core.study import ModelSource, Objective, Robust, Study
from autotune.core.trial import Trial, TrialState
from autotune.core.workload import Workload
from search_spaces import library
from search_spaces.candidate import Candidate
from search_spaces.space import parse_space

_ENDS = {1: Ended.FELL_BEHIND, 2: Ended.DECIDED}
"""Why the window of a trial with so many instances ends."""
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
    ended: Ended = Ended.DECIDED,
    cv: float = 1.0,
) -> Measurement:
    candidate = a_candidate(4, 2) if candidate is None else candidate
    machine = machine or Machine()
    instances, batch = int(candidate["instances"]), int(candidate["max_batch_size"])  # type: ignore[arg-type]
    rng = np.random.default_rng([machine.seed, batch, instances])
    count = int(qps * window_s)
    scheduled = _arrivals(count, window_s, cv, rng)
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
        warmup_s=2.4,
        steady=True,
        ended=ended,
    )
    saturation_qps = 1000 * min(instances, machine.cores) / each * 0.97
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
            foreign_cpu=0.02,
            notes={"cores": str(machine.cores)},
        ),
        saturation_qps=saturation_qps,
        instances=instances,
        reload_s=0.6 + 0.3 * instances,
        invalid_because=invalid_because,
        intervals=_intervals(latency_ms, done[done < window_s], window_s, saturation_qps),
        traffic=Traffic(qps=qps, arrival="poisson" if cv == 1 else "gamma", cv=cv, seed=0),
        saturation_s=3.0,
    )


def _arrivals(count: int, window_s: float, cv: float, rng: np.random.Generator) -> np.ndarray:
    """Poisson arrivals, or bursty ones above a coefficient of variation of 1."""
    if cv == 1:
        return np.sort(rng.uniform(0, window_s, count))
    at = np.cumsum(rng.gamma(1 / cv**2, 1.0, count + 1))
    return at[:count] * window_s / at[-1]


def _intervals(
    latency_ms: np.ndarray, done_s: np.ndarray, window_s: float, saturation_qps: float
) -> dict[str, Interval]:
    found = {f"p{p:g}_ms": percentile_interval(latency_ms, p) for p in PERCENTILES}
    found["achieved_qps"] = rate_interval(done_s, window_s)
    found["saturation_qps"] = Interval(low=0.98 * saturation_qps, high=1.02 * saturation_qps)
    return {name: interval for name, interval in found.items() if interval is not None}


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
        a_trial(
            number,
            a_candidate(batch, instances, 2000 if batch == 8 else 0),
            ended=_ENDS.get(instances, Ended.MAXIMUM),
            window_s={1: 4.2, 2: 12.0}.get(instances, 6.0),
        )
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
            reason="ran out of memory: the server cannot load it: CUDA out of memory",
        ),
        Trial(
            number=number + 2,
            candidate=a_candidate(64, 1, 500),
            state=TrialState.PRUNED,
            reason=f"asks for at least as much memory as trial {number + 1}, which ran out of it",
        ),
    ]


def a_finished_study(pick: int = 5, rival: int = 7) -> list[Trial]:
    """`a_study_of_trials` with all that comes after the search: a canary, finals of the pick and a
    rival, their capacity, the pick's neighbourhood, its confirmation, and two measurements that
    were not believed."""
    trials = a_study_of_trials()
    lag = "the load generator fell behind its schedule: send lag p99 11.2 ms, allowed 8.0 ms"
    other = "23% of this machine's processor was taken by other processes, allowed 10%"
    more: dict[int, list[Measurement]] = {
        0: [_again(trials[0], purpose=Purpose.CANARY, window_s=4.0)],
        3: [_again(trials[3], invalid_because=(lag,), window_s=2.0)],
    }
    for number in (pick, rival):
        finals = [_again(trials[number], purpose=Purpose.FINAL, seed=s) for s in (2, 3)]
        probes = [
            _again(trials[number], purpose=Purpose.CAPACITY, qps=qps, window_s=12.0)
            for qps in (112.0, 158.0, 126.0, 142.0)
        ]
        more[number] = [*finals, *probes]
    more[rival].insert(1, _again(trials[rival], purpose=Purpose.FINAL, invalid_because=(other,)))
    for qps in (64.0, 96.0):
        for cv in (1.0, 1.5):
            probe = _again(trials[pick], purpose=Purpose.ROBUST, qps=qps, cv=cv, window_s=8.0)
            more[pick].append(probe)
    more[pick].append(_again(trials[pick], purpose=Purpose.CONFIRM, seed=4))
    return [
        replace(trial, measurements=_ordered(trial.measurements, more.get(trial.number, [])))
        for trial in trials
    ]


def _again(
    trial: Trial, *, seed: int = 1, purpose: Purpose = Purpose.TRIAL, **measured: object
) -> Measurement:
    machine = Machine(seed=seed)
    return a_measurement(
        trial.candidate,
        machine=machine,
        purpose=purpose,
        **measured,  # type: ignore[arg-type]
    )


def _ordered(own: Sequence[Measurement], more: Sequence[Measurement]) -> tuple[Measurement, ...]:
    """What was taken again stands before what was believed in its stead."""
    before = [m for m in more if m.purpose is Purpose.TRIAL]
    return (*before, *own, *(m for m in more if m.purpose is not Purpose.TRIAL))


def estimated(trial: Trial, metric: str) -> Estimate:
    """What its evidence says of a metric, which must be known."""
    judged = judge_trial(trial, SLA)
    assert judged is not None
    known = judged.estimate(metric)
    assert known is not None
    return known


def comparisons(pick: int = 5, rival: int = 7) -> list[Comparison]:
    """Of the pick against its rival: a tie in latency, better in throughput."""
    return [
        Comparison(
            first=rival,
            second=pick,
            metric="p95_ms",
            effect=-0.042,
            interval=Interval(low=-0.093, high=0.012),
            relation=Relation.TIE,
            pairs=2,
            taken_at=STARTED_AT + 260,
        ),
        Comparison(
            first=rival,
            second=pick,
            metric="saturation_qps",
            effect=0.031,
            interval=Interval(low=0.011, high=0.049),
            relation=Relation.BETTER,
            pairs=2,
            taken_at=STARTED_AT + 260,
        ),
    ]


def a_study() -> Study:
    """What `a_finished_study` was run for."""
    return Study(
        name="ocr",
        model=ModelSource(name="ocr", onnx=Path("ocr.onnx")),
        workload=Workload(target_qps=80.0, headroom=1.0),
        sla=SLA,
        space=parse_space(library.load("batching"), "batching"),
        objectives=(Objective.of("saturation_qps"), Objective.of("p95_ms")),
        robust=Robust(qps=0.2, cv=(1.0, 1.5)),
    )


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
