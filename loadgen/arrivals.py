"""Arrival schedules: when each request of an open loop is due.

A schedule is a pure function of arrival process, rate, seed and duration. A longer one begins
with the shorter one (the prefix property), so that two runs with one seed see the same traffic.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from autotune.core.errors import InputRefused
from autotune.core.workload import Arrival, ArrivalKind
from autotune.ports import LOOK_GROWTH

if TYPE_CHECKING:
    from numpy.typing import NDArray

MAX_ARRIVALS = 20_000_000
"""160 MB of offsets: more is a mistake in the rate or the duration."""

RATE_SHARE = 0.01
"""By how much the arrivals of a measured window may differ from the asked rate."""

LOOK_SHARE = 0.03
"""By how much those up to a look within it may, where draws allow it. Choosing more closely would
smooth the seconds before and after the first looks: at 100/s and looks from 3 s on, the counts of
the first seconds varied 0.8 times as much as the process with 3%, 0.7 times with 1%."""

_BLOCK = 1024
_DRAWS = 200
_WARM_UP = _DRAWS + 1
_LATEST_LOOK = 0.95


def schedule(arrival: Arrival, *, qps: float, seed: int, duration_s: float) -> NDArray[np.float64]:
    """Offsets in seconds, sorted, shape (n,), of all arrivals in [0, ``duration_s``).

    Gaps have mean 1 / ``qps``: fixed (constant), exponential (Poisson), gamma with shape 1/cv²
    (gamma), or those of a trace file, scaled and repeated (trace). InputRefused for a rate or a
    duration that no schedule can have and for a bad trace.
    """
    if not 0 < qps < math.inf or not 0 <= duration_s < math.inf:
        raise InputRefused("a schedule needs a rate above 0 and a finite duration", value=qps)
    if qps * duration_s > MAX_ARRIVALS:
        raise InputRefused(
            f"a schedule holds at most {MAX_ARRIVALS} requests",
            value=round(qps * duration_s),
            next_step="lower workload.target_qps or workload.measure_s",
        )
    if arrival.kind is ArrivalKind.CONSTANT:
        return _constant(qps, duration_s)
    if arrival.kind is ArrivalKind.TRACE:
        assert arrival.trace is not None
        return _repeated(read_trace(arrival.trace), qps, duration_s)
    return _renewal(
        1.0 if arrival.kind is ArrivalKind.POISSON else arrival.cv, qps, seed, duration_s
    )


def looks_s(first_look_s: float | None, measure_s: float) -> tuple[float, ...]:
    """When a window is looked at, in seconds since it opened: first after ``first_look_s``, then
    ever again after half as much time more, at last at its end. No look comes so shortly before
    the end that it could save nothing."""
    moments: list[float] = []
    moment = math.inf if first_look_s is None else first_look_s
    while 0 < moment < _LATEST_LOOK * measure_s:
        moments.append(moment)
        moment *= LOOK_GROWTH
    return (*moments, measure_s)


def warm_up(arrival: Arrival, *, qps: float, seed: int, duration_s: float) -> NDArray[np.float64]:
    """The `schedule` of a warm-up, of a seed derived from ``seed``: other arrivals than the
    window's, so that these do not depend on how long the warm-up took."""
    return schedule(arrival, qps=qps, seed=_derived(seed, _WARM_UP), duration_s=duration_s)


def schedule_at_rate(
    arrival: Arrival, *, qps: float, seed: int, duration_s: float, looks: Sequence[float]
) -> NDArray[np.float64]:
    """A `schedule` of a window that really offers ``qps`` up to each of the ``looks`` (seconds,
    ascending; the last is the window's full length).

    A few hundred Poisson arrivals are off their mean by some 5%, bursty ones by far more, and the
    seed would decide whether the asked rate was measured. So of the schedules of ``seed`` and of
    seeds derived from it, the first is taken whose arrivals are within `RATE_SHARE` of the rate
    (or within one request) in the full window and within `LOOK_SHARE` of it up to every look; if
    none of `_DRAWS` is, then of those that are nearest in the full window the one whose worst look
    is least off. Nothing is moved: between the looks it is the process, given its counts. A
    constant or a trace has one schedule.
    """
    random = arrival.kind in (ArrivalKind.POISSON, ArrivalKind.GAMMA)
    nearest, least = np.empty(0), (math.inf, math.inf)
    for draw in range(_DRAWS if random else 1):
        offsets = schedule(arrival, qps=qps, seed=_derived(seed, draw), duration_s=duration_s)
        off = _off_rate(offsets, qps, np.asarray(looks, dtype=np.float64))
        if off < least:
            nearest, least = offsets, off
        if least == (0.0, 0.0):
            break
    return nearest


def _off_rate(
    offsets: NDArray[np.float64], qps: float, looks: NDArray[np.float64]
) -> tuple[float, float]:
    """By how much the arrivals are off the rate, relative to it, beyond what is allowed: in the
    full window, and at the worst look."""
    wanted = qps * looks
    off = np.abs(np.searchsorted(offsets, looks) - wanted)
    share = np.full(len(looks), LOOK_SHARE)
    share[-1] = RATE_SHARE
    beyond = np.where(off > np.maximum(1.0, share * wanted), off / wanted, 0.0)
    return float(beyond[-1]), float(beyond.max())


def _derived(seed: int, draw: int) -> int:
    """The seed itself for the first draw."""
    if draw == 0:
        return seed
    return int(np.random.SeedSequence([seed, draw]).generate_state(1, np.uint64)[0])


def read_trace(path: Path) -> NDArray[np.float64]:
    """The timestamps of a trace file, in seconds, rebased to 0, shape (n,) with n ≥ 2.

    One number per line; blank lines and lines that begin with # are skipped. InputRefused with
    the line number for anything else, for a time before its predecessor and for an empty trace.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise InputRefused(
            "the trace file cannot be read", value=str(path), next_step=str(exc)
        ) from exc
    times: list[float] = []
    for number, line in enumerate(text.splitlines(), start=1):
        entry = line.strip()
        if entry and not entry.startswith("#"):
            times.append(_timestamp(entry, times, f"{path}, line {number}"))
    if len(times) < 2 or times[-1] == times[0]:
        raise InputRefused(
            "a trace needs at least two arrivals at different times",
            value=f"{path}: {len(times)} line(s)",
            next_step="write one arrival time in seconds per line, in order",
        )
    return np.array(times, dtype=np.float64) - times[0]


def _timestamp(entry: str, before: list[float], where: str) -> float:
    try:
        time = float(entry)
    except ValueError:
        time = math.nan
    if not math.isfinite(time):
        raise InputRefused(f"{where}: an arrival time is a number of seconds", value=entry)
    if before and time < before[-1]:
        raise InputRefused(
            f"{where}: arrival times must not decrease",
            value=f"{entry} after {before[-1]:g}",
            next_step="sort the file by time",
        )
    return time


def _constant(qps: float, duration_s: float) -> NDArray[np.float64]:
    offsets = np.arange(math.ceil(qps * duration_s) + 1, dtype=np.float64) / qps
    return offsets[offsets < duration_s]


def _renewal(cv: float, qps: float, seed: int, duration_s: float) -> NDArray[np.float64]:
    # Blocks of a fixed size, each summed by itself: the same floating-point operations whatever
    # the duration, so that the prefix property holds to the last bit.
    blocks: list[NDArray[np.float64]] = []
    reached = 0.0
    for gaps in _gap_blocks(cv, qps, np.random.default_rng(seed)):
        block = reached + np.cumsum(gaps)
        blocks.append(block)
        reached = float(block[-1])
        if reached >= duration_s:
            break
    offsets = np.concatenate(blocks)
    return offsets[offsets < duration_s]


def _gap_blocks(cv: float, qps: float, rng: np.random.Generator) -> Iterator[NDArray[np.float64]]:
    shape = 1 / cv**2
    while True:
        yield rng.gamma(shape, 1 / (shape * qps), size=_BLOCK)


def _repeated(trace: NDArray[np.float64], qps: float, duration_s: float) -> NDArray[np.float64]:
    """The trace at ``qps``, over and over; the gap between two rounds is the trace's mean gap."""
    count = len(trace)
    scaled = trace * ((count - 1) / trace[-1] / qps)
    period = count / qps
    rounds = max(1, math.ceil(duration_s / period))
    starts = np.arange(rounds, dtype=np.float64) * period
    offsets: NDArray[np.float64] = (starts[:, None] + scaled[None, :]).ravel()
    return offsets[offsets < duration_s]
