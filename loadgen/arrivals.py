"""Arrival schedules: when each request of an open loop is due.

A schedule is a pure function of arrival process, rate, seed and duration. A longer one begins
with the shorter one (the prefix property), so that two runs with one seed see the same traffic.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from autotune.core.errors import InputRefused
from autotune.core.workload import Arrival, ArrivalKind

if TYPE_CHECKING:
    from numpy.typing import NDArray

MAX_ARRIVALS = 20_000_000
"""160 MB of offsets: more is a mistake in the rate or the duration."""

RATE_SHARE = 0.01
"""By how much the arrivals of a measured window may differ from the asked rate."""

_BLOCK = 4096
_DRAWS = 200


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


def schedule_at_rate(
    arrival: Arrival, *, qps: float, seed: int, duration_s: float, window_s: tuple[float, float]
) -> NDArray[np.float64]:
    """A `schedule` that really offers ``qps`` within the window (its start and end).

    A few hundred Poisson arrivals are off their mean by some 5%, bursty ones by far more, and the
    seed would decide whether the asked rate was measured. So of the schedules of ``seed`` and of
    seeds derived from it, the first is taken whose arrivals in the window are within `RATE_SHARE`
    of it (or within one request), else the nearest of `_DRAWS`: the process given its count. A
    constant or a trace has one schedule.
    """
    opens, closes = window_s
    wanted = qps * (closes - opens)
    random = arrival.kind in (ArrivalKind.POISSON, ArrivalKind.GAMMA)
    nearest, least = np.empty(0), math.inf
    for draw in range(_DRAWS if random else 1):
        offsets = schedule(arrival, qps=qps, seed=_derived(seed, draw), duration_s=duration_s)
        count = int(np.count_nonzero((offsets >= opens) & (offsets < closes)))
        off = abs(count - wanted)
        if off < least:
            nearest, least = offsets, off
        if least <= max(1.0, RATE_SHARE * wanted):
            break
    return nearest


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
