"""Confidence intervals for what a load phase measured.

Latencies behind a queue are autocorrelated: one long busy period delays a hundred requests in a
row, so that a thousand of them tell no more than a few dozen independent ones would. An interval
that takes them for independent is far too narrow, and sections (batch means) need more of them
than a load phase has. So the number of requests is deflated to an *effective* number first, and
the interval is the exact binomial one (Clopper and Pearson) for that many.

The two ends are not alike. What goes wrong with a short window is that it happened to miss the long
busy periods that make the tail: it shows too low a percentile and too little dependence at once.
So the upper end is taken for fewer effective observations still. By how many was calibrated on
simulated queues: see `CORRECTION`, ``tests/benchmarks/coverage.py``, and docs/benchmarks.md for the
coverage reached.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

LEVEL = 0.95
"""Of the intervals that are shown, stored and judged by."""
CORRECTION = (10.0, 80.0)
"""For the upper end, a window of n requests with an estimated autocorrelation time τ is taken to
have one of τ·(1 + a·√(τ/n) + b·τ/n)."""
LEAST_REQUESTS = 20
"""Below that no interval is given."""
SECTIONS = 10
_WINDOW = 5.0
_TAIL_SHARE = 0.1
_LONG = 4096


@dataclass(frozen=True, slots=True)
class Interval:
    """From ``low`` to ``high``, in the unit of what it is an interval of."""

    low: float
    high: float

    @property
    def relative_half_width(self) -> float:
        """Half its width as a share of its middle."""
        middle = (self.low + self.high) / 2
        return (self.high - self.low) / 2 / middle if middle > 0 else math.inf

    def overlaps(self, other: Interval) -> bool:
        return self.low <= other.high and other.low <= self.high


@dataclass(frozen=True, slots=True)
class Estimate:
    """A measured value with its 95% interval; None where there was too little to take one from."""

    value: float
    interval: Interval | None = None


def percentile_interval(
    values: NDArray[np.float64], percentile: float, *, level: float = LEVEL
) -> Interval | None:
    """For a percentile of the distribution that a series in time order, shape (n,), was drawn
    from; None for fewer than `LEAST_REQUESTS`.

    Where the upper end lies beyond what so few effective observations can show, it is
    extrapolated by the exponential tail that queues have.
    """
    return percentile_intervals(values, (percentile,), level=level).get(percentile)


def percentile_intervals(
    values: NDArray[np.float64], percentiles: Iterable[float], *, level: float = LEVEL
) -> dict[float, Interval]:
    """`percentile_interval` of several percentiles; empty for too few values.

    The dependence is the mean of that of the ranks and that of being above the percentile: the
    latter is the right one, and too noisy alone in a short series.
    """
    count = len(values)
    if count < LEAST_REQUESTS:
        return {}
    order = np.argsort(values)
    ordered = values[order]
    of_ranks = autocorrelation_time(_ranks(order, ordered))
    found = {}
    for percentile in percentiles:
        share = percentile / 100
        threshold = ordered[max(math.ceil(share * count) - 1, 0)]
        of_tail = autocorrelation_time((values > threshold).astype(np.float64))
        low, high = _ends(share, (of_ranks + of_tail) / 2, count, level)
        lowest = ordered[max(math.ceil(low * count) - 1, 0)]
        highest = max(_upper(ordered, high), float(threshold))
        found[percentile] = Interval(low=float(lowest), high=highest)
    return found


def _ranks(order: NDArray[np.intp], ordered: NDArray[np.float64]) -> NDArray[np.float64]:
    """In the order of time; of equal values the same."""
    places = np.arange(len(ordered), dtype=np.float64)
    places[1:][ordered[1:] == ordered[:-1]] = 0
    ranks = np.empty_like(places)
    ranks[order] = np.maximum.accumulate(places)
    return ranks


def _ends(share: float, time: float, count: int, level: float) -> tuple[float, float]:
    """The shares of the distribution below the two ends of the interval."""
    from scipy import special  # noqa: PLC0415  -- half a second, for what few commands need

    root, linear = CORRECTION
    ratio = time / count
    many = max(2.0, count / time)
    few = max(2.0, many / (1 + root * math.sqrt(ratio) + linear * ratio))
    beyond = (1 - level) / 2
    low = special.betaincinv(share * many, (1 - share) * many + 1, beyond)
    high = special.betaincinv(share * few + 1, (1 - share) * few, 1 - beyond)
    return float(low), float(high)


def _upper(ordered: NDArray[np.float64], rank: float) -> float:
    count = len(ordered)
    observed = 1 - 5 / count
    if rank <= observed:
        return float(ordered[math.ceil(rank * count) - 1])
    tail = max(10, int(_TAIL_SHARE * count))
    threshold = ordered[count - tail - 1]
    scale = float(np.mean(ordered[count - tail :] - threshold))
    return float(threshold) + scale * math.log(tail / count / max(1 - rank, 1e-9))


def autocorrelation_time(values: NDArray[np.float64]) -> float:
    """One plus twice the sum of the autocorrelations of a series, shape (n,), in observations; at
    least 1, at most n / 2.

    The sum ends where the lag exceeds five times the sum so far (Sokal, "Monte Carlo Methods in
    Statistical Mechanics", 1997); their bias of −τ/n, from the mean that is estimated too, is
    added back. A long series is taken in means of neighbours, which leaves the variance of the
    whole mean, and so the product of variance and time, as it is.
    """
    count, variance = len(values), float(values.var())
    if variance <= 1e-12:
        return 1.0
    each = math.ceil(count / _LONG)
    if each > 1:
        whole = count // each
        means = values[: whole * each].reshape(whole, each).mean(axis=1)
        share = each * float(means.var()) / variance
        return min(max(share * _time(means), 1.0), count / 2)
    return _time(values)


def _time(values: NDArray[np.float64]) -> float:
    count = len(values)
    centred = values - values.mean()
    size = 1 << (2 * count - 1).bit_length()
    spectrum = np.fft.rfft(centred, size)
    covariance = np.fft.irfft(spectrum * np.conj(spectrum), size)[:count]
    if covariance[0] <= 1e-12 * count:
        return 1.0
    correlation = covariance / covariance[0]
    lags = np.arange(count)
    time = 1.0
    for _ in range(3):
        sums = 2 * np.cumsum(correlation + time / count) - 1
        ends = np.flatnonzero(lags >= _WINDOW * sums)
        time = float(sums[ends[0]] if len(ends) else sums[-1])
        time = min(max(time, 1.0), count / 2)
    return time


def rate_interval(
    times_s: NDArray[np.float64], window_s: float, *, level: float = LEVEL
) -> Interval | None:
    """For the rate, per second, of events at ``times_s`` within [0, ``window_s``): Student's t
    over the counts of ten sections. None where a section would expect fewer than two."""
    if np.count_nonzero((times_s >= 0) & (times_s < window_s)) < 2 * SECTIONS:
        return None
    counts, _ = np.histogram(times_s, bins=SECTIONS, range=(0.0, window_s))
    rates = counts / (window_s / SECTIONS)
    mean = float(rates.mean())
    error = float(rates.std(ddof=1)) / math.sqrt(SECTIONS)
    half = student_quantile(SECTIONS - 1, 0.5 + level / 2) * error
    return Interval(low=max(0.0, mean - half), high=mean + half)


def student_quantile(freedom: int, share: float) -> float:
    """The quantile of Student's t with ``freedom`` degrees of freedom."""
    from scipy import special  # noqa: PLC0415  -- half a second, for what few commands need

    return float(special.stdtrit(freedom, share))


def share_interval(happened: NDArray[np.bool_], *, level: float = LEVEL) -> Interval | None:
    """For the share of requests, in time order, shape (n,), to which something happens: the
    binomial one of Clopper and Pearson, for the effective number of them; None for fewer than
    `LEAST_REQUESTS`."""
    count = len(happened)
    if count < LEAST_REQUESTS:
        return None
    from scipy import special  # noqa: PLC0415  -- half a second, for what few commands need

    effective = count / autocorrelation_time(happened.astype(np.float64))
    hits = float(np.mean(happened)) * effective
    beyond = (1 - level) / 2
    low = special.betaincinv(hits, effective - hits + 1, beyond) if hits > 0 else 0.0
    high = special.betaincinv(hits + 1, effective - hits, 1 - beyond) if hits < effective else 1.0
    return Interval(low=float(low), high=float(high))
