"""The confidence intervals of a load phase, from its raw request times."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from autotune.core.intervals import LEVEL, Interval, percentile_intervals, rate_interval
from autotune.core.measurement import PERCENTILES, LoadResult, RequestSamples

if TYPE_CHECKING:
    from numpy.typing import NDArray


def latencies_ms(samples: RequestSamples, *, timeout_s: float) -> NDArray[np.float64]:
    """From the scheduled time, in schedule order, shape (n,); a request that got no good answer
    counts with its time-out."""
    latency_s = np.where(samples.ok, samples.done_s - samples.scheduled_s, timeout_s)
    return latency_s * 1e3


def intervals_of(
    load: LoadResult, *, timeout_s: float, level: float = LEVEL
) -> Mapping[str, Interval]:
    """By metric name: of every latency percentile and of ``achieved_qps``, each where there was
    enough to take it from; none without raw samples."""
    if load.samples is None:
        return {}
    latency_ms = latencies_ms(load.samples, timeout_s=timeout_s)
    latencies = percentile_intervals(latency_ms, PERCENTILES, level=level)
    found = {f"p{percentile:g}_ms": interval for percentile, interval in latencies.items()}
    answers = answers_interval(load, level=level)
    return found if answers is None else found | {"achieved_qps": answers}


def answers_interval(load: LoadResult, *, level: float = LEVEL) -> Interval | None:
    """Of the rate of good answers within the window, per second.

    It counts from the window's first answer on: what was answered before it had been asked before
    the window, and is not among the samples.
    """
    if load.samples is None:
        return None
    answered_s = load.samples.done_s[load.samples.ok]
    begins = float(np.min(answered_s, initial=load.window_s))
    return rate_interval(answered_s - begins, load.window_s - begins, level=level)


def saturation_interval(load: LoadResult, *, level: float = LEVEL) -> Interval | None:
    """Of the rate of completions in a saturation burst, per second: those of the whole window."""
    if load.samples is None:
        return None
    answered_s = load.samples.done_s[load.samples.ok]
    return rate_interval(answered_s, load.window_s, level=level)
