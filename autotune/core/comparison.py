"""Two configurations held against each other, under the same arrivals.

Runs of both are interleaved (A B B A) and paired. What both members of a pair met together, the
arrivals, takes no part in their difference: blocks of requests are drawn again and again, the same
ones from both (a paired moving-block bootstrap: Künsch, "The jackknife and the bootstrap for
general stationary observations", Annals of Statistics 17, 1989). What differs from run to run of
one configuration on a real machine (its loading, frequencies, neighbours) no resampling within
runs can show, and a few pairs hardly: an allowance is made for it,
`LATENCY_RUN_TO_RUN` and `RATE_RUN_TO_RUN`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np

from autotune.core.errors import InputRefused
from autotune.core.intervals import LEVEL, Estimate, Interval, autocorrelation_time
from autotune.core.measured_intervals import latencies_ms
from autotune.core.measurement import METRICS, RequestSamples

if TYPE_CHECKING:
    from numpy.typing import NDArray

MEANINGFUL = 0.02
"""A smaller relative difference is a tie, however sure."""
RATE_RUN_TO_RUN = 0.01
LATENCY_RUN_TO_RUN = 0.025
"""The relative standard deviation that a figure of one configuration has from run to run beyond
what the requests within the runs account for; where there are `PAIRS_THAT_TELL`, a larger one is
taken from the pairs themselves. A queue magnifies what its server's speed does: at 70% load 1% of
the service time is some 2.5% of the p95."""
PAIRS_THAT_TELL = 4
LEAST_REQUESTS = 20
UNKNOWN = 0.10
"""The relative half width that a rate without an interval is taken to have."""
_REPLICATES = 1000
_TIMES_PER_BLOCK = 4
_LEAST_BLOCKS = 8
_CHUNK = 200_000


class Relation(StrEnum):
    """Of the second trial to the first."""

    BETTER = "better"
    WORSE = "worse"
    TIE = "tie"


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Trial ``second`` against trial ``first`` in ``metric``, from interleaved runs.

    ``effect`` is the relative change of the metric from the first to the second (0.1: a tenth
    more), with its 95% ``interval``; ``relation`` says which is better, in the metric's own
    direction, or that it is a tie. ``pairs`` is how many pairs of runs it rests on; ``taken_at`` is
    UTC seconds since the epoch.
    """

    first: int
    second: int
    metric: str
    effect: float
    interval: Interval
    relation: Relation
    pairs: int
    taken_at: float = 0.0

    def turned(self) -> Comparison:
        """The first against the second: the same, told from the other side."""
        interval = self.interval
        opposite = {Relation.BETTER: Relation.WORSE, Relation.WORSE: Relation.BETTER}
        return replace(
            self,
            first=self.second,
            second=self.first,
            effect=_turned(self.effect),
            interval=Interval(low=_turned(interval.high), high=_turned(interval.low)),
            relation=opposite.get(self.relation, self.relation),
        )


def _turned(effect: float) -> float:
    """From b/a - 1 to a/b - 1."""
    return 1 / (1 + effect) - 1 if effect > -1 else math.inf


def compare_latency(  # noqa: PLR0913  -- two trials, one metric, their runs and when
    first: int,
    second: int,
    percentile: float,
    runs: Sequence[tuple[RequestSamples, RequestSamples]],
    *,
    timeout_s: float,
    taken_at: float,
) -> Comparison:
    """Trials ``first`` and ``second`` in a latency percentile of all their runs together.

    ``runs`` pairs a run of the first with one of the second under the same arrivals; of runs of
    different lengths the common beginning is compared. A request without a good answer counts with
    ``timeout_s``. The same runs always give the same answer. InputRefused where no pair has
    `LEAST_REQUESTS` in common.
    """
    pairs = [pair for pair in (_common(run, timeout_s) for run in runs) if pair is not None]
    if not pairs:
        raise InputRefused(
            f"a comparison needs a pair of runs with at least {LEAST_REQUESTS} requests each",
            value=len(runs),
            next_step="measure for longer: finals.measure_s",
        )
    share = percentile / 100
    singles = np.array([_log_ratio(pair, share) for pair in pairs])
    log_ratio = _log_ratio(tuple(np.concatenate(side) for side in zip(*pairs, strict=True)), share)
    replicates = _resampled(pairs, share, np.random.default_rng(0))
    low, high = np.quantile(replicates, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    variance = float(np.var(replicates)) * len(pairs)
    interval = _widened(
        log_ratio,
        (log_ratio - float(low), float(high) - log_ratio),
        _run_to_run(singles, variance, LATENCY_RUN_TO_RUN) / len(pairs),
    )
    metric = f"p{percentile:g}_ms"
    return _told((first, second), metric, log_ratio, interval, pairs=len(pairs), taken_at=taken_at)


def percentiles_in_common(
    run: tuple[RequestSamples, RequestSamples], percentile: float, *, timeout_s: float
) -> tuple[float, float] | None:
    """A latency percentile of both, in milliseconds, over the requests that `compare_latency`
    compares; None where those are fewer than `LEAST_REQUESTS`."""
    pair = _common(run, timeout_s)
    if pair is None:
        return None
    first, second = (np.quantile(side, percentile / 100, method="inverted_cdf") for side in pair)
    return float(first), float(second)


def compare_rates(
    first: int,
    second: int,
    metric: str,
    pairs: Sequence[tuple[Estimate, Estimate]],
    *,
    taken_at: float,
) -> Comparison:
    """Trials ``first`` and ``second`` in a rate of `METRICS` such as ``saturation_qps``, by the
    geometric mean of the pairs' ratios. InputRefused where no pair has rates above 0."""
    known = [(a, b) for a, b in pairs if a.value > 0 and b.value > 0]
    if not known:
        raise InputRefused(
            f"a comparison in {metric} needs a pair of rates above 0",
            value=len(pairs),
            next_step="measure both with a saturation burst: workload.saturation_s",
        )
    ratios = np.array([math.log(b.value / a.value) for a, b in known])
    squares = [_half(a) ** 2 + _half(b) ** 2 for a, b in known]
    half = math.sqrt(sum(squares)) / len(known)
    variance = sum(squares) / len(known) / _normal() ** 2
    log_ratio = float(ratios.mean())
    interval = _widened(
        log_ratio, (half, half), _run_to_run(ratios, variance, RATE_RUN_TO_RUN) / len(known)
    )
    return _told((first, second), metric, log_ratio, interval, pairs=len(known), taken_at=taken_at)


def _told(  # noqa: PLR0913  -- what a comparison consists of
    trials: tuple[int, int],
    metric: str,
    log_ratio: float,
    interval: Interval,
    *,
    pairs: int,
    taken_at: float,
) -> Comparison:
    first, second = trials
    effect = math.expm1(log_ratio)
    return Comparison(
        first=first,
        second=second,
        metric=metric,
        effect=effect,
        interval=interval,
        relation=relation(metric, effect, interval),
        pairs=pairs,
        taken_at=taken_at,
    )


def _common(
    run: tuple[RequestSamples, RequestSamples], timeout_s: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
    first, second = (latencies_ms(samples, timeout_s=timeout_s) for samples in run)
    count = min(len(first), len(second))
    return (first[:count], second[:count]) if count >= LEAST_REQUESTS else None


def _log_ratio(pair: Sequence[NDArray[np.float64]], share: float) -> float:
    first, second = (np.quantile(side, share, method="inverted_cdf") for side in pair)
    return math.log(second / first)


def _resampled(
    pairs: Sequence[tuple[NDArray[np.float64], NDArray[np.float64]]],
    share: float,
    rng: np.random.Generator,
) -> NDArray[np.float64]:
    """The log ratio of the percentile pooled over the pairs, shape (`_REPLICATES`,), each pair
    resampled in blocks."""
    parts = []
    for replicates in _chunks(sum(len(first) for first, _ in pairs)):
        drawn = [_blocks(first, second, replicates, rng) for first, second in pairs]
        sides = (np.concatenate(side, axis=1) for side in zip(*drawn, strict=True))
        first, second = (_row_quantile(side, share) for side in sides)
        parts.append(np.log(second / first))
    return np.concatenate(parts)


def _chunks(requests: int) -> Iterator[int]:
    most = max(1, _CHUNK // requests)
    for begun in range(0, _REPLICATES, most):
        yield min(most, _REPLICATES - begun)


def _blocks(
    first: NDArray[np.float64],
    second: NDArray[np.float64],
    replicates: int,
    rng: np.random.Generator,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    count = len(first)
    length = _block_length(first, second)
    starts = rng.integers(0, count - length + 1, size=(replicates, math.ceil(count / length)))
    index = (starts[:, :, None] + np.arange(length)).reshape(replicates, -1)[:, :count]
    return first[index], second[index]


def _block_length(first: NDArray[np.float64], second: NDArray[np.float64]) -> int:
    """Some times as long as the dependence of the latencies, but `_LEAST_BLOCKS` at least."""
    time = max(autocorrelation_time(first), autocorrelation_time(second))
    return max(1, min(math.ceil(_TIMES_PER_BLOCK * time), len(first) // _LEAST_BLOCKS))


def _row_quantile(rows: NDArray[np.float64], share: float) -> NDArray[np.float64]:
    rank = max(math.ceil(share * rows.shape[1]) - 1, 0)
    quantiles: NDArray[np.float64] = np.partition(rows, rank, axis=1)[:, rank]
    return quantiles


def _half(rate: Estimate) -> float:
    return UNKNOWN if rate.interval is None else rate.interval.relative_half_width


def _normal() -> float:
    return NormalDist().inv_cdf((1 + LEVEL) / 2)


def _run_to_run(ratios: NDArray[np.float64], explained: float, deviation: float) -> float:
    """The variance of one pair's log ratio that its requests do not explain, at least that of two
    runs with a relative ``deviation`` each."""
    least = 2 * deviation**2
    if len(ratios) < PAIRS_THAT_TELL:
        return least
    return max(least, float(np.var(ratios, ddof=1)) - explained)


def _widened(log_ratio: float, halves: tuple[float, float], variance: float) -> Interval:
    """Both half widths, in logarithms, widened by the ``variance`` from run to run."""
    more = _normal() * math.sqrt(variance)
    below, above = (math.hypot(max(half, 0.0), more) for half in halves)
    return Interval(low=math.expm1(log_ratio - below), high=math.expm1(log_ratio + above))


def relation(metric: str, effect: float, interval: Interval) -> Relation:
    """In the metric's own direction: a tie where the interval holds 0 or the effect is smaller
    than `MEANINGFUL`."""
    if interval.low <= 0 <= interval.high or abs(effect) < MEANINGFUL:
        return Relation.TIE
    return Relation.BETTER if (effect > 0) == METRICS[metric].maximize else Relation.WORSE
