"""What one parameter can be: a list of values, or a range."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from search_spaces.candidate import Value

GRID_POINTS = 8
"""A range is walked in at most this many points by a grid, its two ends always among them."""


def same(one: object, other: object) -> bool:
    """Equal in type and value: 1, 1.0 and true are three different settings."""
    return type(one) is type(other) and one == other


@dataclass(frozen=True, slots=True, kw_only=True)
class Values:
    """An explicit list, in the order given."""

    values: tuple[Value, ...]

    def contains(self, value: Value) -> bool:
        return any(same(value, known) for known in self.values)

    def grid(self) -> tuple[Value, ...]:
        return self.values

    def size(self) -> int:
        return len(self.values)

    def sample(self, rng: np.random.Generator) -> Value:
        return self.values[int(rng.integers(len(self.values)))]

    def whole(self) -> tuple[Value, ...]:
        return self.values


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """All numbers from ``low`` to ``high``, both included; with a ``step``, low + k·step alone.

    ``integer`` ranges hold ints alone, others floats alone. ``log`` ranges are sampled evenly in
    the logarithm; their ``low`` is above 0 and they have no step.
    """

    low: float
    high: float
    integer: bool
    log: bool = False
    step: float | None = None

    @property
    def steps(self) -> int | None:
        """How many steps lead from ``low`` to the last value; None without a step."""
        if self.step is None:
            return None
        return math.floor((self.high - self.low) / self.step + 1e-9)

    def contains(self, value: Value) -> bool:
        if type(value) is not (int if self.integer else float):
            return False
        if not self.low <= value <= self.high:
            return False
        if self.step is None:
            return True
        offset = (value - self.low) / self.step
        return abs(offset - round(offset)) < 1e-9

    def size(self) -> int | None:
        """How many values; None where they are not countable."""
        if self.steps is not None:
            return self.steps + 1
        return int(self.high) - int(self.low) + 1 if self.integer else None

    def grid(self) -> tuple[Value, ...]:
        """The points that a grid walks: every value where there are at most `GRID_POINTS` or a
        step says which; doublings of ``low`` and then ``high`` for a log range of ints; else
        `GRID_POINTS` points, evenly spaced on the range's scale.
        """
        size = self.size()
        if size is not None and (self.step is not None or size <= GRID_POINTS):
            return self.whole()
        if self.log and self.integer and self.high / self.low <= 2 ** (GRID_POINTS - 2):
            doublings = int(math.log2(self.high / self.low))
            powers = [int(self.low) * 2**k for k in range(doublings + 1)]
            return tuple(sorted({*powers, int(self.high)}))
        spaced = np.geomspace if self.log else np.linspace
        points = spaced(self.low, self.high, GRID_POINTS)
        points[0], points[-1] = self.low, self.high
        return tuple(dict.fromkeys(self._typed(float(point)) for point in points))

    def whole(self) -> tuple[Value, ...]:
        """Every value of a countable range, ascending."""
        size, step = self.size(), self.step or 1
        assert size is not None, "a continuous range has no list of values"
        return tuple(self._typed(self.low + k * step) for k in range(size))

    def sample(self, rng: np.random.Generator) -> Value:
        if self.log:
            point = math.exp(rng.uniform(math.log(self.low), math.log(self.high)))
            return self._typed(min(max(point, self.low), self.high))
        size = self.size()
        if size is None:
            return float(rng.uniform(self.low, self.high))
        return self._typed(self.low + int(rng.integers(size)) * (self.step or 1))

    def _typed(self, point: float) -> int | float:
        return round(point) if self.integer else float(f"{point:.12g}")


Domain: TypeAlias = Values | Range
