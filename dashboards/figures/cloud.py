"""The points of a study of many trials: those that are drawn, each for those that it hides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from autotune.core.measurement import METRICS
from autotune.core.pareto import pareto_front
from autotune.core.sla import Sla
from autotune.core.standing import Standing
from autotune.core.study import Objective
from autotune.service_ports import TrialLine
from dashboards.figures.data import wide

MOST_POINTS = 1200
"""What a browser draws at once without a stutter, as shapes that need no graphics card."""
_COLUMNS, _ROWS = 220, 130
"""The finest grid that points are thinned by: about the size of a mark."""

Window: TypeAlias = tuple[tuple[float, float], tuple[float, float]]
"""The part of a plot that is looked at: (least, most) of x and of y, in the metrics' own units."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dot:
    """A drawn trial; ``hides`` others of its standing lie within a mark's width."""

    line: TrialLine
    hides: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Cloud:
    """``every`` trial that has a value on both axes decides how they are scaled; ``dots`` are those
    that are drawn. ``front`` is taken over the two axes, in the order of x: of those that meet the
    SLA, or where none does (``front_meets`` False) of all that were judged. ``without`` trials have
    no value on these axes. ``counts`` are by standing, of all that have."""

    x: str
    y: str
    every: tuple[TrialLine, ...]
    dots: tuple[Dot, ...]
    front: tuple[TrialLine, ...]
    front_meets: bool
    limits: Mapping[str, float]
    pick: int | None
    nearest: int | None
    counts: Mapping[Standing, int] = field(default_factory=dict)
    without: int = 0

    @property
    def thinned(self) -> bool:
        return any(dot.hides for dot in self.dots)


def cloud(  # noqa: PLR0913 - what is drawn, and how it is looked at
    lines: Sequence[TrialLine],
    x: str,
    y: str,
    *,
    sla: Sla,
    objectives: Sequence[Objective] = (),
    pick: int | None = None,
    standings: Sequence[Standing] | None = None,
    window: Window | None = None,
    most: int = MOST_POINTS,
) -> Cloud:
    """``standings`` are those that are shown (None: all). Of more than ``most`` points within the
    window (and around it, for who drags it), those are left out that a drawn one would cover; the
    front, the pick and trial 0 always stand."""
    known = [line for line in lines if line.metric(x) is not None and line.metric(y) is not None]
    judged = [line for line in known if line.violation is not None]
    meeting = [line for line in judged if line.standing is Standing.MEETS]
    front = _front(meeting or judged, x, y, objectives)
    shown = known if standings is None else [line for line in known if line.standing in standings]
    nearest = None if meeting else min(judged, key=_distance, default=None)
    kept = {line.number for line in front} | {0, pick, None if nearest is None else nearest.number}
    return Cloud(
        x=x,
        y=y,
        every=tuple(known),
        dots=tuple(_thinned(shown, (x, y), kept, window, most)),
        front=tuple(front),
        front_meets=bool(meeting),
        limits={limit.metric: limit.limit for limit in sla.limits},
        pick=pick,
        nearest=None if nearest is None or pick is not None else nearest.number,
        counts={s: sum(line.standing is s for line in known) for s in Standing},
        without=len(lines) - len(known),
    )


def known_metrics(lines: Sequence[TrialLine]) -> tuple[str, ...]:
    """Those of `METRICS` that at least one trial has a value of."""
    found = {name for line in lines for name in line.values}
    return tuple(name for name in METRICS if name in found)


def _distance(line: TrialLine) -> tuple[bool, float, int]:
    return line.standing is Standing.MISSES, line.violation or 0.0, line.number


def _front(
    judged: Sequence[TrialLine], x: str, y: str, objectives: Sequence[Objective]
) -> list[TrialLine]:
    better = {objective.metric: objective.maximize for objective in objectives}
    maximize = [better.get(name, METRICS[name].maximize) for name in (x, y)]
    found = pareto_front([(line.values[x], line.values[y]) for line in judged], maximize)
    return sorted((judged[at] for at in found), key=lambda one: (one.values[x], one.values[y]))


# -------------------------------------------------------------------------------------- thinning
def _thinned(
    lines: Sequence[TrialLine],
    axes: tuple[str, str],
    kept: set[int | None],
    window: Window | None,
    most: int,
) -> list[Dot]:
    if len(lines) <= most:
        return [Dot(line=line) for line in lines]
    values = [[line.values[name] for name in axes] for line in lines]
    at = np.array(values, dtype=np.float64)
    inside = _inside(at, window)
    seen = [line for line, is_in in zip(lines, inside, strict=True) if is_in]
    cells = _cells(_scaled(at[inside]), [line.standing for line in seen], most)
    return _one_a_cell(seen, cells, kept)


def _inside(at: NDArray[np.float64], window: Window | None) -> NDArray[np.bool_]:
    inside = np.ones(len(at), dtype=np.bool_)
    for axis, (least, most) in enumerate(window or ()):
        around = (most - least) / 2
        inside &= (at[:, axis] >= least - around) & (at[:, axis] <= most + around)
    return inside


def _scaled(at: NDArray[np.float64]) -> NDArray[np.float64]:
    """From 0 to 1 along each axis, as it is drawn."""
    columns = [np.log(column) if wide(column) else column for column in at.T]
    scaled = np.array(columns).T
    if not len(scaled):
        return scaled.reshape(0, 2)
    least, most = scaled.min(axis=0), scaled.max(axis=0)
    shares: NDArray[np.float64] = (scaled - least) / np.where(most > least, most - least, 1)
    return shares


def _cells(
    scaled: NDArray[np.float64], standings: Sequence[Standing], most: int
) -> NDArray[np.int64]:
    """The cell of each point, of a grid so coarse that at most ``most`` are occupied."""
    order = {standing: at for at, standing in enumerate(Standing)}
    kinds = np.array([order[standing] for standing in standings], dtype=np.int64)
    columns, rows = float(_COLUMNS), float(_ROWS)
    while True:
        across = (scaled[:, 0] * columns).astype(np.int64)
        up = (scaled[:, 1] * rows).astype(np.int64)
        cells = (kinds * 1000 + across) * 1000 + up
        if len(np.unique(cells)) <= most:
            return cells
        columns, rows = columns * 0.8, rows * 0.8


def _one_a_cell(
    lines: Sequence[TrialLine], cells: NDArray[np.int64], kept: set[int | None]
) -> list[Dot]:
    members: dict[int, list[TrialLine]] = {}
    for line, cell in zip(lines, cells.tolist(), strict=True):
        members.setdefault(cell, []).append(line)
    dots: list[Dot] = []
    for together in members.values():
        standing_out = [line for line in together if line.number in kept] or together[:1]
        hidden = len(together) - len(standing_out)
        dots += [
            Dot(line=line, hides=hidden if at == 0 else 0) for at, line in enumerate(standing_out)
        ]
    return sorted(dots, key=lambda dot: dot.line.number)
