"""Two configurations held against each other, under the same arrivals."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from autotune.core.intervals import Interval


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
