"""The best trial so far, from what a list knows of each: quick where there are ten thousand.

It is no decision (see `autotune.core.decision`): noise in anything but memory is not weighed, and
nothing is confirmed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

from autotune.core.memory_noise import MEMORY, MemoryNoise
from autotune.core.sla import Sla
from autotune.core.standing import Standing
from autotune.core.study import PickRule


class Listed(Protocol):
    """A trial as a list has it."""

    @property
    def number(self) -> int: ...

    @property
    def standing(self) -> Standing: ...

    @property
    def violation(self) -> float | None: ...

    def metric(self, name: str) -> float | None: ...


_ORDER: dict[PickRule, tuple[str, ...]] = {
    PickRule.CHEAPEST: ("instances", MEMORY, ""),
    PickRule.FASTEST: ("", "instances", MEMORY),
    PickRule.MAX_THROUGHPUT: ("saturation_qps", "", "instances"),
    PickRule.BALANCED: ("", "instances", MEMORY),
}
"""What is compared first, second, third; empty: the latency that the SLA limits most tightly."""


def leading(lines: Sequence[Listed], rule: PickRule, sla: Sla, noise: MemoryNoise) -> int | None:
    """The number of the first by the rule of those that meet the SLA; where none does, of the one
    that comes nearest (an undecided one before any that misses); None where nothing was judged.
    ``noise`` is the study's: what memory varies by is no difference."""
    judged = [line for line in lines if line.violation is not None]
    meeting = [line for line in judged if line.standing is Standing.MEETS]
    if meeting:
        names = [name or sla.tightest_metric for name in _ORDER[rule]]
        return _first(meeting, names, noise).number
    nearest = min(judged, key=_distance, default=None)
    return None if nearest is None else nearest.number


def _first(lines: Sequence[Listed], names: Sequence[str], noise: MemoryNoise) -> Listed:
    """The least in the first of the metrics, of these in the second, …; the lowest number last."""
    left = list(lines)
    for name in names:
        least = min(_cost(line, name) for line in left)
        most = noise.reach(least) if name == MEMORY else least
        left = [line for line in left if _cost(line, name) <= most]
    return min(left, key=lambda line: line.number)


def _cost(line: Listed, name: str) -> float:
    value = line.metric(name)
    if value is None:
        return math.inf
    return -value if name == "saturation_qps" else value


def _distance(line: Listed) -> tuple[bool, float, int]:
    return line.standing is Standing.MISSES, line.violation or 0.0, line.number
