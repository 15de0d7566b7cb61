"""Simulated queues, for checking statistics against a truth that is known.

They are no model of Triton: what matters is that their latencies depend on one another as those
behind a real queue do.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autotune.core.measurement import LatencySummary, LoadResult, RequestSamples

FIXED_MS, EACH_MS = 5.0, 2.5
"""The dynamic batcher's service time for a batch of n is in proportion to FIXED_MS + EACH_MS·n."""

_DRAWS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """``servers`` with gamma service times, or one that takes up to ``batch`` waiting requests at
    once, offered ``qps`` by arrivals with ``arrival_cv``: at ``load`` (1: as much as it can take).
    """

    qps: float = 100.0
    load: float = 0.7
    servers: int = 1
    service_cv: float = 0.1
    batch: int = 1
    arrival_cv: float = 1.0

    def phase(
        self, *, seed: int, warmup_s: float, measure_s: float, exact: bool = True, noise: int = 0
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """When the requests of a window were scheduled and done, in seconds since it opened, shape
        (n,) each. ``exact``: the window is offered ``qps`` within 1%, as the load generator does.
        Another ``noise`` draws other service times for the same arrivals.
        """
        closes = warmup_s + measure_s
        arrivals = self._arrivals(np.random.default_rng(seed), closes)
        for draw in range(1, _DRAWS if exact else 0):
            inside = np.count_nonzero(arrivals >= warmup_s)
            if abs(inside - self.qps * measure_s) <= max(1.0, 0.01 * self.qps * measure_s):
                break
            arrivals = self._arrivals(np.random.default_rng([seed, draw]), closes)
        done = self._served(arrivals, np.random.default_rng([seed, 1 + noise]))
        inside = arrivals >= warmup_s
        return arrivals[inside] - warmup_s, done[inside] - warmup_s

    def latencies_ms(self, *, seed: int, warmup_s: float, measure_s: float) -> NDArray[np.float64]:
        scheduled, done = self.phase(seed=seed, warmup_s=warmup_s, measure_s=measure_s)
        return (done - scheduled) * 1e3

    def true_percentiles_ms(
        self, percentiles: list[float], *, requests: int = 2_000_000, seed: int = 10**6
    ) -> list[float]:
        """From one long run."""
        scheduled, done = self.phase(
            seed=seed, warmup_s=1000 / self.qps, measure_s=requests / self.qps, exact=False
        )
        return [float(v) for v in np.percentile((done - scheduled) * 1e3, percentiles)]

    def _arrivals(self, rng: np.random.Generator, closes: float) -> NDArray[np.float64]:
        shape = 1 / self.arrival_cv**2
        count = self.qps * closes
        more = math.ceil(count + 10 * self.arrival_cv * math.sqrt(count) + 10)
        times = np.cumsum(rng.gamma(shape, 1 / (shape * self.qps), more))
        return times[times < closes]

    def _served(
        self, arrivals: NDArray[np.float64], rng: np.random.Generator
    ) -> NDArray[np.float64]:
        if self.batch > 1:
            return _batched(arrivals, self.batch, self._batch_scale())
        mean_s = self.load * self.servers / self.qps
        shape = 1 / self.service_cv**2
        service = rng.gamma(shape, mean_s / shape, len(arrivals))
        return _queued(arrivals, service, self.servers)

    def _batch_scale(self) -> float:
        """Seconds per unit of service time, so that full batches take qps / load."""
        full = FIXED_MS + EACH_MS * self.batch
        return self.batch * self.load / self.qps / full


def _queued(
    arrivals: NDArray[np.float64], service: NDArray[np.float64], servers: int
) -> NDArray[np.float64]:
    """First come, first served."""
    if servers == 1:
        ends = np.cumsum(service)
        result: NDArray[np.float64] = ends + np.maximum.accumulate(arrivals - (ends - service))
        return result
    free = [0.0] * servers
    done = []
    for arrived, takes in zip(arrivals.tolist(), service.tolist(), strict=True):
        ends_at = max(free[0], arrived) + takes
        heapq.heapreplace(free, ends_at)
        done.append(ends_at)
    return np.array(done)


def _batched(arrivals: NDArray[np.float64], largest: int, scale: float) -> NDArray[np.float64]:
    times = arrivals.tolist()
    done = np.empty(len(times))
    first, now = 0, 0.0
    while first < len(times):
        now = max(now, times[first])
        last = first + 1
        while last < len(times) and last - first < largest and times[last] <= now:
            last += 1
        now += scale * (FIXED_MS + EACH_MS * (last - first))
        done[first:last] = now
        first = last
    return done


def load_of(
    scheduled_s: NDArray[np.float64],
    done_s: NDArray[np.float64],
    *,
    window_s: float,
    timeout_s: float = 10.0,
) -> LoadResult:
    """What the load generator says of the window [0, ``window_s``) of an otherwise idle machine:
    of the requests scheduled in it, each ok if it was done within its time-out."""
    inside = scheduled_s < window_s
    scheduled, done = scheduled_s[inside], done_s[inside]
    ok = done - scheduled <= timeout_s
    done = np.where(ok, done, np.nan)
    latency_ms = np.where(ok, done - scheduled, timeout_s) * 1e3
    failed = len(ok) - int(ok.sum())
    return LoadResult(
        offered_qps=len(scheduled) / window_s,
        achieved_qps=float(np.count_nonzero(done < window_s)) / window_s,
        window_s=window_s,
        scheduled=len(scheduled),
        sent=len(scheduled),
        completed=int(ok.sum()),
        ok=int(ok.sum()),
        errors={"timeout": failed} if failed else {},
        latency=LatencySummary.of(latency_ms),
        service_latency=LatencySummary.of((done[ok] - scheduled[ok]) * 1e3),
        send_lag=None,
        generator_cpu=0.1,
        max_in_flight=1,
        in_flight_cap_hit=False,
        samples=RequestSamples(scheduled_s=scheduled, sent_s=scheduled, done_s=done, ok=ok),
    )
