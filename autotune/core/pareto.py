"""The Pareto front of a set of points."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Point: TypeAlias = Sequence[float | None]
"""One value per dimension, None where it is unknown."""

Reach: TypeAlias = Callable[[float], float]
"""Up to which value another one counts as no more than it; at least the value, and growing with
it."""


def pareto_front(
    points: Sequence[Point], maximize: Sequence[bool], reach: Mapping[int, Reach] | None = None
) -> list[int]:
    """Indices, ascending, of the points that no point of the front dominates.

    A point dominates another if it is at least as good in every dimension and better in one;
    ``maximize`` says for each dimension whether more is better. Equal points do not dominate each
    other: all of them stay. A point with an unknown (None or NaN) value can neither be on the
    front nor dominate. Without dimensions no point is better than another.

    ``reach``, of at most one dimension, by its index, one that is minimised: a difference within it
    is none. What dominates then need not be transitive, and what is dominated by a point that
    itself is may stay; but it has no cycles (round a cycle all other dimensions would be equal, and
    being *more* is transitive), so that there is exactly one such front (the kernel of an acyclic
    graph: von Neumann and Morgenstern's stable set), whatever the order of the points.
    """
    table = _Table.of(points, maximize, reach or {})
    known = np.flatnonzero(~np.isnan(table.costs).any(axis=1))
    if table.costs.shape[1] == 0:
        return [int(index) for index in known]
    # In lexicographic order, the dimension with a reach last, a point comes after all that
    # dominate it.
    ordered = known[np.lexsort(table.costs[known].T[::-1])]
    if table.costs.shape[1] == 2 and not reach:  # all but a few are seen at once to be dominated
        second = table.costs[ordered, 1]
        ordered = ordered[second <= np.minimum.accumulate(second)]
    front: list[int] = []
    shape = (len(ordered), table.costs.shape[1])
    kept = _Table(costs=np.empty(shape), reaches=np.empty(shape))
    for index in ordered:
        if not _dominated(table.some([index]), kept.some(slice(len(front)))):
            kept.costs[len(front)] = table.costs[index]
            kept.reaches[len(front)] = table.reaches[index]
            front.append(int(index))
    return sorted(front)


def dominates(
    one: Point, other: Point, maximize: Sequence[bool], reach: Mapping[int, Reach] | None = None
) -> bool:
    """Whether ``one`` is at least as good as ``other`` everywhere and better somewhere."""
    table = _Table.of([one, other], maximize, reach or {})
    return _dominated(table.some([1]), table.some([0]))


def distance_to_utopia(points: Sequence[Point], maximize: Sequence[bool]) -> list[float]:
    """Euclidean distance of each point to the best value of every dimension, after each dimension
    is scaled so that its best is 0 and its worst 1 (one without spread counts nothing).

    The least distant point of a front is its knee (Zeleny's compromise solution, 1973). Every
    value must be known.
    """
    if not points:
        return []
    costs = _costs(points, maximize)
    best = costs.min(axis=0)
    spread = costs.max(axis=0) - best
    scaled = np.divide(costs - best, spread, out=np.zeros_like(costs), where=spread > 0)
    return [float(distance) for distance in np.sqrt((scaled**2).sum(axis=1))]


def _costs(points: Sequence[Point], maximize: Sequence[bool]) -> NDArray[np.float64]:
    """Shape (points, dimensions); less is better; unknown is NaN."""
    values = [[np.nan if value is None else value for value in point] for point in points]
    table = np.array(values, dtype=np.float64).reshape(len(points), len(maximize))
    return table * np.where(maximize, -1.0, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Table:
    """Both of shape (points, dimensions), less is better: the ``costs``, and up to which cost
    another point is no worse. A dimension with a reach is the last."""

    costs: NDArray[np.float64]
    reaches: NDArray[np.float64]

    @classmethod
    def of(
        cls, points: Sequence[Point], maximize: Sequence[bool], reach: Mapping[int, Reach]
    ) -> _Table:
        costs = _costs(points, maximize)
        reaches = costs.copy()
        for dimension, upto in reach.items():
            reaches[:, dimension] = [upto(float(cost)) for cost in costs[:, dimension]]
        last = sorted(range(costs.shape[1]), key=lambda dimension: dimension in reach)
        return cls(costs=costs[:, last], reaches=reaches[:, last])

    def some(self, chosen: slice | list[int]) -> _Table:
        return _Table(costs=self.costs[chosen], reaches=self.reaches[chosen])


def _dominated(point: _Table, others: _Table) -> bool:
    """Whether any of the ``others`` dominates the one ``point``."""
    no_worse = (others.costs <= point.reaches).all(axis=1)
    better = (others.reaches < point.costs).any(axis=1)
    return bool((no_worse & better).any())
