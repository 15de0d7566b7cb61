"""The Pareto front of a set of points."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Point: TypeAlias = Sequence[float | None]
"""One value per dimension, None where it is unknown."""


def pareto_front(points: Sequence[Point], maximize: Sequence[bool]) -> list[int]:
    """Indices, ascending, of the points that no other point dominates.

    A point dominates another if it is at least as good in every dimension and better in one;
    ``maximize`` says for each dimension whether more is better. Equal points do not dominate each
    other: all of them stay. A point with an unknown (None or NaN) value can neither be on the
    front nor dominate. Without dimensions no point is better than another.
    """
    costs = _costs(points, maximize)
    known = np.flatnonzero(~np.isnan(costs).any(axis=1))
    if costs.shape[1] == 0:
        return [int(index) for index in known]
    # In lexicographic order a point comes after all that dominate it, and one that is dominated
    # is so by a point of the front.
    ordered = known[np.lexsort(costs[known].T[::-1])]
    if costs.shape[1] == 2:  # of two, all but a few are seen at once to be dominated
        second = costs[ordered, 1]
        ordered = ordered[second <= np.minimum.accumulate(second)]
    front: list[int] = []
    kept = np.empty((len(ordered), costs.shape[1]))
    for index in ordered:
        if not _dominated(costs[index], kept[: len(front)]):
            kept[len(front)] = costs[index]
            front.append(int(index))
    return sorted(front)


def dominates(one: Point, other: Point, maximize: Sequence[bool]) -> bool:
    """Whether ``one`` is at least as good as ``other`` everywhere and better somewhere."""
    first, second = _costs([one, other], maximize)
    return _dominated(second, first[np.newaxis])


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


def _dominated(point: NDArray[np.float64], others: NDArray[np.float64]) -> bool:
    no_worse = (others <= point).all(axis=1)
    better = (others < point).any(axis=1)
    return bool((no_worse & better).any())
