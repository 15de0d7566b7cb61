"""How often a champion that did not change is called drifted, and a change is found, on simulated
queues.

    python -m tests.benchmarks.drifting [--seeds 100]

Two windows of 12 s at 100 requests/s, a night apart, under the same arrivals, as the nights of a
schedule have them; in the second one the service time is longer by the given share. Every night's
speed is its own: off by a normal deviation of the given share. Judged is the p95 alone.

    python -m tests.benchmarks.drifting --rates [--seeds 20000]

How often an unchanged saturation throughput is called drifted, which is judged by its intervals:
their half widths the night before and tonight, errors normal as the intervals have them, and what
the nights are off by themselves. Seeded; never passes or fails.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import sys

import numpy as np

from autotune.core.drift import Observation, drift_between
from autotune.core.intervals import Interval, percentile_interval
from autotune.core.measurement import (
    LatencySummary,
    Measurement,
    Purpose,
    RequestSamples,
    TelemetryWindow,
    Traffic,
)
from autotune.core.sla import Sla
from tests.benchmarks.comparing import QUEUES, WINDOW_S
from tests.benchmarks.queues import Queue
from tests.fakes import load_result

SLA = Sla(latency_ms={95.0: 1000.0})
WARMUP_S = 5.0
NO_LATENCIES = dataclasses.replace(
    load_result(100.0, offered_qps=100.0, window_s=WINDOW_S), latency=None
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--rates", action="store_true")
    given = parser.parse_args()
    if given.rates:
        rates(given.seeds or 20_000)
    else:
        latencies(given.seeds or 100)


def latencies(seeds: int) -> None:
    shares = (0.0, 0.05, 0.10, 0.20)
    sys.stdout.write(
        "| queue | load | night to night | unchanged: drifted | +5%: found | +10%: found |"
        " +20%: found |\n|---|---|---|---|---|---|---|\n"
    )
    for name, queue in QUEUES.items():
        for load in (0.5, 0.7):
            for wobble in (0.0, 0.01):
                at = dataclasses.replace(queue, load=load)
                cells = " | ".join(f"{found(at, s, wobble, seeds):.1%}" for s in shares)
                sys.stdout.write(f"| {name} | {load:.0%} | {wobble:.0%} | {cells} |\n")
                sys.stdout.flush()


def rates(seeds: int) -> None:
    sys.stdout.write("| before | tonight | night to night | drifted |\n|---|---|---|---|\n")
    for before, tonight in ((0.05, 0.05), (0.02, 0.08), (0.01, 0.10), (0.02, 0.02)):
        for wobble in (0.0, 0.01):
            rng = np.random.default_rng(7)
            told = sum(
                drift_between(
                    _of_rate(rng, before, wobble),
                    _of_rate(rng, tonight, wobble),
                    SLA,
                    timeout_s=10.0,
                ).drifted
                for _ in range(seeds)
            )
            widths = f"| ± {before:.0%} | ± {tonight:.0%} | {wobble:.0%} |"
            sys.stdout.write(f"{widths} {told / seeds:.2%} |\n")
            sys.stdout.flush()


def _of_rate(rng: np.random.Generator, half: float, wobble: float) -> Observation:
    """A saturation of 100/s, measured with an error that its 95% interval tells."""
    value = 100 * math.exp(rng.normal(0, half / 1.96) + rng.normal(0, wobble))
    ends = Interval(low=value * math.exp(-half), high=value * math.exp(half))
    measured = Measurement(
        purpose=Purpose.TRIAL,
        started_at=0.0,
        load=NO_LATENCIES,
        server=None,
        telemetry=TelemetryWindow(),
        saturation_qps=value,
        instances=1,
        intervals={"saturation_qps": ends},
    )
    return Observation(study_id=1, at=0.0, measurements=(measured,), environment={})


def found(queue: Queue, slower: float, wobble: float, seeds: int) -> float:
    """The share of nights that are told as drifted to the worse; of unchanged ones either way."""
    told = 0
    for seed in range(1, seeds + 1):
        rng = np.random.default_rng([seed, 7])
        speeds = 1 + wobble * rng.standard_normal(2)
        nights = [
            _seen(queue, seed, noise, factor)
            for noise, factor in enumerate((speeds[0], speeds[1] * (1 + slower)))
        ]
        drift = drift_between(*nights, SLA, timeout_s=10.0)
        told += drift.worse if slower else drift.drifted
    return told / seeds


def _seen(queue: Queue, seed: int, noise: int, factor: float) -> Observation:
    at = dataclasses.replace(queue, load=queue.load * factor)
    scheduled, done = at.phase(seed=seed, warmup_s=WARMUP_S, measure_s=WINDOW_S, noise=noise)
    latencies = (done - scheduled) * 1e3
    summary = LatencySummary.of(latencies)
    interval = percentile_interval(latencies, 95.0)
    assert summary is not None
    assert interval is not None
    load = load_result(100.0, offered_qps=queue.qps, window_s=WINDOW_S)
    samples = RequestSamples(
        scheduled_s=scheduled, sent_s=scheduled, done_s=done, ok=np.ones(len(done), bool)
    )
    measured = Measurement(
        purpose=Purpose.TRIAL,
        started_at=0.0,
        load=dataclasses.replace(load, latency=summary, samples=samples),
        server=None,
        telemetry=TelemetryWindow(),
        saturation_qps=None,
        instances=1,
        intervals={"p95_ms": interval},
        traffic=Traffic(qps=queue.qps, arrival="poisson", cv=1.0, seed=seed),
    )
    return Observation(study_id=noise, at=0.0, measurements=(measured,), environment={})


if __name__ == "__main__":
    main()
