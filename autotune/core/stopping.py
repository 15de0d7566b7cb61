"""When a measured window is long enough."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from autotune.core.intervals import Interval, percentile_intervals, share_interval
from autotune.core.measured_intervals import intervals_of, latencies_ms
from autotune.core.measurement import Ended, LoadResult, RequestSamples
from autotune.core.sla import EDGE_REQUESTS, Sla, enough_samples
from autotune.core.steady import GROWTH_SHARE, growth_qps

DOUBT_LEVEL = 0.99
"""Of the intervals that end a window before its time: stricter than those that are shown, because
the window is looked at again and again."""
ABOUT = 0.95
"""A look at a slow server shows a little less than the time that has passed."""
PRECISE = 0.05
"""A latency known to within this share of itself is known well enough, whoever wants it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRule:
    """Looks at a window so far and says why it may end, or None to go on.

    It ends when the server falls behind, when a limit is broken beyond doubt, and when all limits
    are kept beyond doubt: at once if the trial is no ``contender`` (asked with its 95% intervals
    by metric name) or its tightest latency is known to within `PRECISE`, else after ``nominal_s``.
    One whose interval straddles a limit goes on, unless its verdict is only wanted of a contender
    (``outclassed_ends``) and it is none. A request that got no good answer counts with
    ``timeout_s``.
    """

    sla: Sla
    nominal_s: float
    contender: Callable[[Mapping[str, Interval]], bool]
    timeout_s: float = 10.0
    outclassed_ends: bool = False

    def __call__(self, so_far: LoadResult) -> Ended | None:
        samples = so_far.samples
        if samples is None or not so_far.scheduled:
            return None
        if _falls_behind(so_far, samples):
            return Ended.FELL_BEHIND
        latencies = self._latency_intervals(samples)
        if self._hopeless(latencies, samples):
            return Ended.HOPELESS
        if self._meets(latencies, so_far):
            return Ended.DECIDED if self._wanted_no_more(so_far) else None
        if self.outclassed_ends and not self.contender(self._intervals(so_far)):
            return Ended.OUTCLASSED
        return None

    def _latency_intervals(self, samples: RequestSamples) -> dict[float, Interval]:
        values = latencies_ms(samples, timeout_s=self.timeout_s)
        return percentile_intervals(values, self.sla.latency_ms, level=DOUBT_LEVEL)

    def _hopeless(self, latencies: Mapping[float, Interval], samples: RequestSamples) -> bool:
        limits = self.sla.latency_ms
        if any(known.low > limits[p] for p, known in latencies.items()):
            return True
        errors = share_interval(~samples.ok, level=DOUBT_LEVEL)
        return errors is not None and errors.low > self.sla.error_rate

    def _meets(self, latencies: Mapping[float, Interval], load: LoadResult) -> bool:
        limits = self.sla.latency_ms
        return (
            latencies.keys() >= limits.keys()
            and all(known.high <= limits[p] for p, known in latencies.items())
            and load.scheduled >= max(map(enough_samples, limits))
            and load.error_rate <= self.sla.error_rate
            and load.achieved_qps * load.window_s + EDGE_REQUESTS
            >= self.sla.min_achieved * load.scheduled
        )

    def _wanted_no_more(self, load: LoadResult) -> bool:
        if load.window_s >= ABOUT * self.nominal_s:
            return True
        intervals = self._intervals(load)
        tightest = intervals.get(self.sla.tightest_metric)
        precise = tightest is not None and tightest.relative_half_width <= PRECISE
        return precise or not self.contender(intervals)

    def _intervals(self, load: LoadResult) -> Mapping[str, Interval]:
        return intervals_of(load, timeout_s=self.timeout_s)


def _falls_behind(load: LoadResult, samples: RequestSamples) -> bool:
    closed_s = np.where(samples.done_s < load.window_s, samples.done_s, np.nan)
    growth = growth_qps(samples.scheduled_s, closed_s, load.window_s, level=DOUBT_LEVEL)
    return growth is not None and growth.low > GROWTH_SHARE * load.offered_qps
