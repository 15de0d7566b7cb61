"""How often an interval of a latency percentile holds the truth, and how often the rule that ends a
window early is right, on simulated queues whose truth is known.

    python -m tests.benchmarks.coverage [--seeds 100]

Poisson (or burstier) arrivals at 100 requests/s, offered exactly as the load generator does; the
truth is of a run of a million requests. Prints Markdown tables; seeded; never passes or fails.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import sys
from collections import Counter
from collections.abc import Callable
from functools import cache
from itertools import accumulate, repeat
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from autotune.core.intervals import SECTIONS, Interval, percentile_interval
from autotune.core.measurement import Ended
from autotune.core.sla import Sla
from autotune.core.stopping import StopRule
from tests.benchmarks.queues import Queue, load_of

Method: TypeAlias = Callable[[NDArray[np.float64], float], Interval]

WARMUP_S = 15.0
QUEUES = {
    "1 server, cv 0.1": Queue(service_cv=0.1),
    "1 server, cv 0.5": Queue(service_cv=0.5),
    "2 servers, cv 0.1": Queue(servers=2, service_cv=0.1),
    "4 servers, cv 0.5": Queue(servers=4, service_cv=0.5),
    "batches to 8": Queue(batch=8),
    "1 server, bursts (cv 2)": Queue(arrival_cv=2.0),
}
LOADS = (0.5, 0.7, 0.85, 0.92)
WINDOWS = (300, 1200, 5000)
NOMINAL_S, MAXIMUM_S, FIRST_LOOK_S = 12.0, 36.0, 3.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=100)
    seeds = range(1, 1 + parser.parse_args().seeds)
    _print_coverage(seeds)
    _print_stopping(seeds)


# --------------------------------------------------------------------------------------- coverage
def _print_coverage(seeds: range) -> None:
    cells = ["queue", "load", "percentile", "requests", "coverage", "truth below", "truth above"]
    _row(*cells, "± width", "i.i.d. covers", "10 sections cover")
    _row(*["---"] * 10)
    for name, queue in QUEUES.items():
        for load in LOADS:
            loaded = dataclasses.replace(queue, load=load)
            for percentile in (95.0,) if load != 0.7 else (50.0, 95.0, 99.0):
                for requests in WINDOWS:
                    cells = coverage(loaded, percentile, requests, seeds)
                    _row(name, f"{load:.0%}", f"p{percentile:g}", str(requests), *cells)


def coverage(queue: Queue, percentile: float, requests: int, seeds: range) -> list[str]:
    """What the table says of one queue, percentile and window."""
    truth = _truth(queue, percentile)
    window_s = requests / queue.qps
    windows = [
        queue.latencies_ms(seed=seed, warmup_s=WARMUP_S, measure_s=window_s) for seed in seeds
    ]
    ours = [interval(values, percentile) for values in windows]
    below = np.mean([truth < i.low for i in ours])
    above = np.mean([truth > i.high for i in ours])
    width = np.median([(i.high - i.low) / 2 / truth for i in ours])
    return [
        f"{1 - below - above:.0%}",
        f"{below:.0%}",
        f"{above:.0%}",
        f"{width:.0%}",
        *(f"{_covered(windows, percentile, truth, other):.0%}" for other in (_iid, _sections)),
    ]


def _truth(queue: Queue, percentile: float) -> float:
    return _truths(queue)[percentile]


@cache
def _truths(queue: Queue) -> dict[float, float]:
    percentiles = [50.0, 95.0, 99.0]
    values = queue.true_percentiles_ms(percentiles, requests=1_000_000)
    return dict(zip(percentiles, values, strict=True))


def interval(values: NDArray[np.float64], percentile: float) -> Interval:
    found = percentile_interval(values, percentile)
    assert found is not None
    return found


def _covered(
    windows: list[NDArray[np.float64]], percentile: float, truth: float, method: Method
) -> float:
    found = [method(values, percentile) for values in windows]
    return float(np.mean([i.low <= truth <= i.high for i in found]))


def _iid(values: NDArray[np.float64], percentile: float) -> Interval:
    """Of order statistics, as if requests were independent."""
    low, high = stats.binom.ppf([0.025, 0.975], len(values), percentile / 100)
    ordered = np.sort(values)
    return Interval(ordered[max(int(low) - 1, 0)], ordered[min(int(high), len(values) - 1)])


def _sections(values: NDArray[np.float64], percentile: float) -> Interval:
    """Student's t over the percentiles of ten sections."""
    parts = [np.percentile(part, percentile) for part in np.array_split(values, SECTIONS)]
    half = stats.t.ppf(0.975, SECTIONS - 1) * np.std(parts, ddof=1) / math.sqrt(SECTIONS)
    return Interval(np.mean(parts) - half, np.mean(parts) + half)


# --------------------------------------------------------------------------------------- stopping
def _print_stopping(seeds: range) -> None:
    sys.stdout.write("\n")
    _row(
        "queue", "load", "limit / true p95", "right", "wrong", "undecided", "mean window s", "ends"
    )
    _row(*["---"] * 8)
    for name in ("1 server, cv 0.1", "2 servers, cv 0.1", "batches to 8"):
        for load in (0.5, 0.7, 0.85):
            queue = dataclasses.replace(QUEUES[name], load=load)
            truth = _truth(queue, 95.0)
            for share in (0.5, 0.8, 0.95, 1.05, 1.25, 2.0):
                ends = [ended(queue, share * truth, seed) for seed in seeds]
                _row(name, f"{load:.0%}", f"{share:g}", *_told(ends, meets=share > 1))
    queue = dataclasses.replace(QUEUES["1 server, cv 0.1"], load=1.1)
    ends = [ended(queue, 2000.0, seed) for seed in seeds]
    _row("1 server, cv 0.1", "110%", "2 s", *_told(ends, meets=False))


def ended(queue: Queue, limit_ms: float, seed: int) -> tuple[Ended, float, str]:
    """Why the window of no contender ended, after how many seconds, and what its 95% interval says
    then. One that does not end is at most `MAXIMUM_S` long; looks are as the load driver's."""
    scheduled, done = queue.phase(seed=seed, warmup_s=5.0, measure_s=MAXIMUM_S)
    rule = StopRule(
        sla=Sla(latency_ms={95.0: limit_ms}), nominal_s=NOMINAL_S, contender=lambda _: False
    )
    looks = accumulate(repeat(1.5), lambda seconds, by: seconds * by, initial=FIRST_LOOK_S)
    for seconds in looks:
        load = load_of(scheduled, done, window_s=min(seconds, MAXIMUM_S))
        reason = rule(load)
        if reason is not None or seconds >= MAXIMUM_S:
            break
    if reason in {Ended.FELL_BEHIND, Ended.HOPELESS}:
        return reason, load.window_s, "misses"
    assert load.samples is not None
    known = interval((load.samples.done_s - load.samples.scheduled_s) * 1e3, 95.0)
    verdict = "meets" if known.high <= limit_ms else "misses" if known.low > limit_ms else "open"
    return reason or Ended.MAXIMUM, load.window_s, verdict


def _told(ends: list[tuple[Ended, float, str]], *, meets: bool) -> list[str]:
    verdicts = Counter(verdict for _, _, verdict in ends)
    right, wrong = ("meets", "misses") if meets else ("misses", "meets")
    reasons = Counter(str(reason) for reason, _, _ in ends)
    return [
        *(f"{verdicts[verdict] / len(ends):.0%}" for verdict in (right, wrong, "open")),
        f"{np.mean([seconds for _, seconds, _ in ends]):.1f}",
        ", ".join(f"{reason} {count / len(ends):.0%}" for reason, count in reasons.most_common()),
    ]


def _row(*cells: str) -> None:
    sys.stdout.write("| " + " | ".join(cells) + " |\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
