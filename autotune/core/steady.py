"""Whether a load has settled: no start-up transient any more, and no queue that keeps growing."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np

from autotune.core.intervals import Interval

if TYPE_CHECKING:
    from numpy.typing import NDArray

LEAST_REQUESTS = 20
"""Below that nothing is said of a steady state or of growth."""
GROWTH_SHARE = 0.02
"""A server falls behind when the requests in flight grow by more than this share of the offered
rate, beyond doubt."""
_BATCH = 5
_KEPT = 5
_SECTIONS = 24
_RETURNING = 0.7
"""A stable queue always comes back, so its slope varies less than a random walk's: with this share
of a random walk's error, ever longer windows of simulated queues at 90% load (one and two servers,
a batcher; 30 to 500 requests per second) are called growing in at most 1 to 2% of the phases."""


def steady(latencies_ms: NDArray[np.float64]) -> bool:
    """Whether latencies in the order of their requests, shape (n,), have come to a steady state.

    MSER-5 (White, "An effective truncation heuristic for bias reduction in simulation output",
    Simulation 69, 1997): of the means of five requests each, as many are cut off at the start as
    make the standard error of the rest's mean least. Steady is a series whose cut lies in its first
    half; a shorter one than `LEAST_REQUESTS` is not yet.
    """
    if len(latencies_ms) < LEAST_REQUESTS:
        return False
    batches = len(latencies_ms) // _BATCH
    means = latencies_ms[: batches * _BATCH].reshape(batches, _BATCH).mean(axis=1)
    means = means - means.mean()
    last = max(batches // 2, batches - _KEPT)
    rest = np.arange(batches, 0, -1)[: last + 1]
    sums = np.cumsum(means[::-1])[::-1][: last + 1]
    squares = np.cumsum(means[::-1] ** 2)[::-1][: last + 1]
    cut = int(np.argmin((squares - sums**2 / rest) / rest**2))
    return 2 * cut < batches


def growth_qps(
    scheduled_s: NDArray[np.float64],
    done_s: NDArray[np.float64],
    until_s: float,
    *,
    level: float = 0.99,
) -> Interval | None:
    """By how many requests per second the requests in flight grow over [0, ``until_s``).

    ``scheduled_s``, ``done_s``: shape (n,), seconds since the window opened; NaN for a request that
    is still open. The slope is that of a straight line through the number in flight at equally
    spaced times. Its error is taken from that of a random walk, 6/5 of the variance of its steps
    (Durlauf and Phillips, "Trends versus random walks in time series analysis", Econometrica 56,
    1988), which the queue of a server without spare capacity is; see `_RETURNING`.
    The count begins when the first requests are answered, since those from before the window are
    not known. None where that is not within the first half, and for too few requests.
    """
    if len(scheduled_s) < LEAST_REQUESTS:
        return None
    answered = done_s[~np.isnan(done_s)]
    begins = float(np.max(answered[:3], initial=-math.inf))
    if not 0 <= begins <= until_s / 2:
        return None
    times = np.linspace(begins, until_s, _SECTIONS + 1)
    begun, ended = np.sort(scheduled_s), np.sort(answered)
    open_ = np.searchsorted(begun, times) - np.searchsorted(ended, times)
    length = until_s - begins
    centred = times - times.mean()
    slope = float(centred @ open_ / (centred @ centred))
    step = float(np.std(np.diff(open_), ddof=1))
    error = _RETURNING * math.sqrt(1.2 * _SECTIONS) * step / length
    half = NormalDist().inv_cdf(0.5 + level / 2) * error
    return Interval(low=slope - half, high=slope + half)
