"""From raw request times to a `LoadResult`. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np
from hdrh.histogram import HdrHistogram

from autotune.core.measurement import (
    LatencySummary,
    LoadResult,
    RequestSamples,
    RequestStatus,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

_HOUR_US = 3_600_000_000


class Code(IntEnum):
    """How a request ended, as the worker records it; an HTTP error is its status code."""

    PENDING = 0
    OK = 1
    TIMEOUT = 2
    CONNECTION = 3
    BAD_ANSWER = 4
    UNSENT = 5


_KINDS = {
    Code.PENDING: RequestStatus.TIMEOUT,
    Code.TIMEOUT: RequestStatus.TIMEOUT,
    Code.CONNECTION: RequestStatus.CONNECTION,
    Code.BAD_ANSWER: RequestStatus.BAD_ANSWER,
    Code.UNSENT: RequestStatus.UNSENT,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RawRun:
    """What the worker recorded of one phase, warm-up and tail included.

    ``scheduled_s``, ``sent_s``, ``done_s``: float64, shape (n,), seconds since the phase began,
    NaN for what did not happen; ``code``: int16, shape (n,), see `Code`. The measured window is
    [``opened_s``, ``closed_s``), on the same clock; ``generator_cpu``, ``max_in_flight`` and
    ``cap_hit`` (the in-flight cap held a request back) are of it alone. ``texts`` are the first
    words of each kind of failure in the phase, by its code.
    """

    scheduled_s: NDArray[np.float64]
    sent_s: NDArray[np.float64]
    done_s: NDArray[np.float64]
    code: NDArray[np.int16]
    opened_s: float
    closed_s: float
    generator_cpu: float
    max_in_flight: int
    cap_hit: bool
    texts: Mapping[int, str] = field(default_factory=dict)


def merged(runs: Sequence[RawRun]) -> RawRun:
    """One phase of which several processes each had a share, in the order in which the requests
    were due. ``generator_cpu`` is that of the process that was the busiest; ``max_in_flight`` may
    be too large: not all had the most at the same moment."""
    if len(runs) == 1:
        return runs[0]
    scheduled = np.concatenate([run.scheduled_s for run in runs])
    order = np.argsort(scheduled, kind="stable")
    return RawRun(
        scheduled_s=scheduled[order],
        sent_s=np.concatenate([run.sent_s for run in runs])[order],
        done_s=np.concatenate([run.done_s for run in runs])[order],
        code=np.concatenate([run.code for run in runs])[order],
        opened_s=max(run.opened_s for run in runs),
        closed_s=min(run.closed_s for run in runs),
        generator_cpu=max(run.generator_cpu for run in runs),
        max_in_flight=sum(run.max_in_flight for run in runs),
        cap_hit=any(run.cap_hit for run in runs),
        texts={code: text for run in runs for code, text in run.texts.items()},
    )


def summarise(
    run: RawRun,
    *,
    timeout_s: float,
    keep_samples: bool = True,
    completions: bool = False,
    histogram: bool = True,
) -> LoadResult:
    """The measured window of a run.

    Counts and latencies are of the requests scheduled in the window. ``achieved_qps`` is the rate
    of good answers that *arrived* in the window, whenever they were scheduled: a server that
    falls behind does not get credit for what it answered after the load was over. A request that
    is not settled counts as timed out. With ``completions`` the samples are of the requests that
    were scheduled before the window and answered in it too (their times are negative until then):
    of a burst it is the completions that count.
    """
    opens, closes = run.opened_s, run.closed_s
    window_s = round(closes - opens, 9)
    inside = (run.scheduled_s >= opens) & (run.scheduled_s < closes)
    scheduled, sent, done = run.scheduled_s[inside], run.sent_s[inside], run.done_s[inside]
    code = run.code[inside]
    ok = code == Code.OK
    latency_ms = _latency_ms(scheduled, done, ok, timeout_s)
    arrived = (run.code == Code.OK) & (run.done_s >= opens) & (run.done_s < closes)
    kept = inside | arrived if completions else inside
    return LoadResult(
        offered_qps=len(scheduled) / window_s,
        achieved_qps=int(np.count_nonzero(arrived)) / window_s,
        window_s=window_s,
        scheduled=len(scheduled),
        sent=int(np.count_nonzero(~np.isnan(sent))),
        completed=int(np.count_nonzero(~np.isnan(done))),
        ok=int(np.count_nonzero(ok)),
        errors=_errors(code[~ok]),
        latency=LatencySummary.of(latency_ms),
        service_latency=LatencySummary.of((done[ok] - sent[ok]) * 1e3),
        send_lag=LatencySummary.of((sent - scheduled)[~np.isnan(sent)] * 1e3),
        generator_cpu=run.generator_cpu,
        max_in_flight=run.max_in_flight,
        in_flight_cap_hit=run.cap_hit,
        histogram=_histogram(latency_ms) if histogram else "",
        samples=_samples(run, kept) if keep_samples else None,
        warmup_s=opens,
        error_texts={_kind(code): text for code, text in run.texts.items()},
    )


def _latency_ms(
    scheduled: NDArray[np.float64],
    done: NDArray[np.float64],
    ok: NDArray[np.bool_],
    timeout_s: float,
) -> NDArray[np.float64]:
    """From the scheduled time; a failure counts as a miss of at least the time-out."""
    return np.where(ok, done - scheduled, timeout_s) * 1e3


def _errors(codes: NDArray[np.int16]) -> dict[str, int]:
    return dict(Counter(map(_kind, codes.tolist())))


def _kind(code: int) -> str:
    return f"http_{code}" if code >= 100 else str(_KINDS[Code(code)])


def _histogram(latency_ms: NDArray[np.float64]) -> str:
    """The latencies in microseconds, three significant digits up to an hour, encoded."""
    histogram = HdrHistogram(1, _HOUR_US, 3)
    micros = np.clip(np.rint(latency_ms * 1e3), 1, _HOUR_US).astype(np.int64)
    for value, count in zip(*np.unique(micros, return_counts=True), strict=True):
        histogram.record_value(int(value), int(count))
    encoded: bytes = histogram.encode()
    return encoded.decode("ascii")


def _samples(run: RawRun, kept: NDArray[np.bool_]) -> RequestSamples:
    return RequestSamples(
        scheduled_s=run.scheduled_s[kept] - run.opened_s,
        sent_s=run.sent_s[kept] - run.opened_s,
        done_s=run.done_s[kept] - run.opened_s,
        ok=run.code[kept] == Code.OK,
    )
