"""How often two runs of one configuration are called different, and a true difference is found, on
simulated queues.

    python -m tests.benchmarks.comparing [--seeds 50]

Each comparison is of A B B A with windows of 12 s at 100 requests/s, at an A whose load is given; B
takes the given share more service time. Every run's speed is its own: off by a normal deviation of
the given share, as on a machine that is never twice the same. Seeded; never passes or fails.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections import Counter

import numpy as np

from autotune.core.comparison import Comparison, compare_latency
from autotune.core.measurement import RequestSamples
from tests.benchmarks.queues import Queue

WINDOW_S = 12.0
QUEUES = {
    "1 server, cv 0.1": Queue(),
    "1 server, cv 0.5": Queue(service_cv=0.5),
    "2 servers, cv 0.1": Queue(servers=2),
    "batches to 8": Queue(batch=8),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=50)
    seeds = parser.parse_args().seeds
    sys.stdout.write(
        "| queue | load | run to run | A/A not a tie | A/B +5%: found | A/B +10%: found |\n"
        "|---|---|---|---|---|---|\n"
    )
    for name, queue in QUEUES.items():
        for load in (0.5, 0.7):
            for wobble in (0.0, 0.01):
                shares = [
                    share_found(dataclasses.replace(queue, load=load), slower, wobble, seeds)
                    for slower in (0.0, 0.05, 0.10)
                ]
                cells = " | ".join(f"{share:.0%}" for share in shares)
                sys.stdout.write(f"| {name} | {load:.0%} | {wobble:.0%} | {cells} |\n")
                sys.stdout.flush()


def share_found(queue: Queue, slower: float, wobble: float, seeds: int) -> float:
    """The share of comparisons that call B worse; of equal ones, that call it better or worse."""
    told = Counter(
        str(compared(queue, slower, wobble, seed).relation) for seed in range(1, seeds + 1)
    )
    found = told["worse"] + (told["better"] if slower == 0 else 0)
    return found / seeds


def compared(queue: Queue, slower: float, wobble: float, seed: int, pairs: int = 2) -> Comparison:
    """The p95 of a queue against one whose service takes ``slower`` more."""
    speeds = np.random.default_rng([seed, 77]).normal(1.0, wobble, size=(pairs, 2))
    runs = [
        (
            _run(queue, float(speeds[pair, 0]), seed, 2 * pair),
            _run(queue, float(speeds[pair, 1]) * (1 + slower), seed, 2 * pair + 1),
        )
        for pair in range(pairs)
    ]
    return compare_latency(0, 1, 95.0, runs, timeout_s=10.0, taken_at=0.0)


def _run(queue: Queue, service: float, seed: int, noise: int) -> RequestSamples:
    slowed = dataclasses.replace(queue, load=queue.load * service)
    scheduled, done = slowed.phase(seed=seed, warmup_s=2.0, measure_s=WINDOW_S, noise=noise)
    return RequestSamples(
        scheduled_s=scheduled, sent_s=scheduled, done_s=done, ok=np.ones(len(done), dtype=bool)
    )


if __name__ == "__main__":
    main()
