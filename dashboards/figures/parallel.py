"""Parallel coordinates: each trial a line across its parameters and its metrics.

Drawn as plain lines, not by Plotly's own kind of trace: that one needs WebGL, and scripts made at
run time, which the pages' security policy refuses.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from autotune.core.explain import shown
from autotune.service_ports import TrialLine
from dashboards.figures.data import label, wide
from dashboards.figures.draw import MARKS, PICK_COLOUR, Figure, layout, trace_id
from dashboards.figures.effects import in_order, value_words, varied

MOST_LINES = 300
MOST_PARAMETERS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """``at`` places a trial from 0 to 1 (None: it has no value); ``ticks`` are (place, words)."""

    title: str
    at: Callable[[TrialLine], float | None]
    ticks: tuple[tuple[float, str], ...]


def axes_of(lines: Sequence[TrialLine], metrics: Sequence[str]) -> list[Axis]:
    """Of what was varied, then of the metrics."""
    parameters = [_parameter(lines, name) for name in varied(lines)[:MOST_PARAMETERS]]
    known = (_metric(lines, name) for name in metrics)
    return [*parameters, *(axis for axis in known if axis is not None)]


def _parameter(lines: Sequence[TrialLine], name: str) -> Axis:
    values = [line.candidate.values[name] for line in lines if name in line.candidate.values]
    told = in_order(values)
    place = {words: at / max(len(told) - 1, 1) for at, words in enumerate(told)}

    def at(line: TrialLine) -> float | None:
        candidate = line.candidate.values
        return place[value_words(candidate[name])] if name in candidate else None

    return Axis(title=name, at=at, ticks=tuple((place[words], words) for words in told))


def _metric(lines: Sequence[TrialLine], name: str) -> Axis | None:
    values = [line.values[name] for line in lines if name in line.values]
    if not values:
        return None
    scaled: Callable[[float], float] = math.log if wide(values) else float
    least, most = min(values), max(values)
    reach = scaled(most) - scaled(least)

    def at(line: TrialLine) -> float | None:
        value = line.values.get(name)
        if value is None:
            return None
        return (scaled(value) - scaled(least)) / reach if reach else 0.5

    ticks = (
        ((0.0, shown(name, least)), (1.0, shown(name, most)))
        if reach
        else ((0.5, shown(name, least)),)
    )
    return Axis(title=label(name), at=at, ticks=ticks)


def chosen(
    lines: Sequence[TrialLine], pick: int | None, front: Sequence[int], most: int = MOST_LINES
) -> list[TrialLine]:
    """At most so many of those that were measured, evenly over their numbers; pick and front are
    always among them."""
    measured = [line for line in lines if line.values]
    kept = {*front, pick}
    others = [line for line in measured if line.number not in kept]
    left = max(most - len(measured) + len(others), 0)
    step = max(math.ceil(len(others) / left), 1) if left else len(others) + 1
    drawn = [*(line for line in measured if line.number in kept), *others[::step]]
    return sorted(drawn, key=lambda line: line.number)


def draw_parallel(
    axes: Sequence[Axis], lines: Sequence[TrialLine], pick: int | None
) -> Figure | None:
    """None where there are not two axes, or nothing was measured."""
    if len(axes) < 2 or not lines:
        return None
    standings = [s for s in reversed(MARKS) if any(line.standing is s for line in lines)]
    traces = [
        _trace(
            axes,
            [line for line in lines if line.standing is standing],
            str(standing),
            line={"color": MARKS[standing][1], "width": 1},
            opacity=0.4,
        )
        for standing in standings
    ]
    picked = [line for line in lines if line.number == pick]
    if picked:
        traces.append(_trace(axes, picked, "pick", line={"color": PICK_COLOUR, "width": 3}))
    return {
        "data": traces,
        "layout": layout(
            xaxis={
                "tickvals": list(range(len(axes))),
                "ticktext": [_broken(axis.title) for axis in axes],
                "side": "top",
                "showgrid": False,
                "zeroline": False,
                "fixedrange": True,
                "range": [-0.35, len(axes) - 0.65],
            },
            yaxis={"visible": False, "range": [-0.06, 1.06], "fixedrange": True},
            shapes=[_upright(at) for at in range(len(axes))],
            annotations=[
                _words(at, place, words)
                for at, axis in enumerate(axes)
                for place, words in axis.ticks
            ],
            hovermode="closest",
            uirevision="kept",
            showlegend=False,
            margin={"l": 16, "r": 16, "t": 56, "b": 12},
        ),
    }


def _trace(
    axes: Sequence[Axis], lines: Sequence[TrialLine], name: str, **more: Any
) -> dict[str, Any]:
    x: list[float | None] = []
    y: list[float | None] = []
    number: list[int | None] = []
    for line in lines:
        places = [axis.at(line) for axis in axes]
        x += [*range(len(axes)), None]
        y += [*places, None]
        number += [line.number] * len(axes) + [None]
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "uid": trace_id(f"p-{name}"),
        "x": x,
        "y": y,
        "customdata": number,
        "connectgaps": False,
        "hovertemplate": "trial %{customdata}<extra>%{fullData.name}</extra>",
        **more,
    }


def _broken(title: str) -> str:
    """In two lines where it is long."""
    step, _, name = escape(title).rpartition(".")
    return (
        f"{step}.<br>{name}" if step else name.replace("_", "_<br>", 1) if len(name) > 12 else name
    )


def _upright(at: int) -> dict[str, Any]:
    line = {"color": "rgba(128,136,150,0.55)", "width": 1}
    return {"type": "line", "x0": at, "x1": at, "y0": 0, "y1": 1, "line": line, "layer": "below"}


def _words(at: int, place: float, words: str) -> dict[str, Any]:
    return {
        "x": at,
        "y": place,
        "text": escape(words),
        "showarrow": False,
        "xanchor": "left",
        "xshift": 4,
        "font": {"size": 10},
        "bgcolor": "rgba(128,136,150,0.01)",
    }
