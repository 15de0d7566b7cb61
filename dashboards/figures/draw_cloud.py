"""The Pareto plot of a study's page, as Plotly's plain data.

What the symbols mean stands beside it, where each can be switched off.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from autotune.core.standing import Standing
from autotune.service_ports import TrialLine
from dashboards.figures.cloud import Cloud, Dot
from dashboards.figures.draw import (
    DEFAULT_COLOUR,
    MARKS,
    PICK_COLOUR,
    Figure,
    axis,
    axis_title,
    error_bars,
    hover,
    layout,
    limit_lines,
    scale,
    trace_id,
)

_TITLE_PX, _DIGIT_PX = 34, 7
FEW_BARS = 150
"""Up to so many points each has its error bars; of more only the front has."""


def draw_cloud(found: Cloud) -> Figure:
    """The front, then one trace per standing, then the marks. What the reader has zoomed to stays,
    until other axes are chosen."""
    few = len(found.dots) <= FEW_BARS
    traces = [_front(found, bars=not few)]
    # What was judged lies over what was not, and what meets the SLA over what does not.
    upwards = [standing for standing in reversed(MARKS) if _has(found, standing)]
    traces += [_standing(found, standing, bars=few) for standing in upwards]
    traces += _marks(found)
    axes = f"{found.x}|{found.y}"
    return {
        "data": traces,
        "layout": layout(
            xaxis=_axis(found, found.x, axes),
            yaxis=_axis(found, found.y, axes),
            margin={"l": _left_px(found), "r": 16, "t": 12, "b": 52},
            shapes=limit_lines(found.limits, found.x, found.y),
            hovermode="closest",
            showlegend=False,
            uirevision="kept",
            dragmode="zoom",
        ),
    }


def _axis(found: Cloud, metric: str, axes: str) -> dict[str, Any]:
    """Its margin is fixed: to find one out Plotly draws everything twice."""
    scaled = scale(found.every, metric)
    return axis(axis_title(metric), **scaled, uirevision=axes, automargin=False)


def _left_px(found: Cloud) -> int:
    """Room for the title and the longest number of the upright axis."""
    ends = [line.values[found.y] for line in found.every]
    numbers = [f"{end:,.4g}" for end in (min(ends), max(ends))] if ends else []
    return _TITLE_PX + _DIGIT_PX * max([4, *map(len, numbers)])


def _has(found: Cloud, standing: Standing) -> bool:
    return any(dot.line.standing is standing for dot in found.dots)


def _front(found: Cloud, *, bars: bool) -> dict[str, Any]:
    colour = MARKS[Standing.MEETS if found.front_meets else Standing.MISSES][1]
    more: dict[str, Any] = {}
    if bars:
        more = {
            "error_x": error_bars(found.front, found.x, colour),
            "error_y": error_bars(found.front, found.y, colour),
        }
    return _points(
        found.front,
        found,
        "front" if found.front_meets else "front (none meets the SLA)",
        mode="lines",
        line={"color": colour, "width": 1.5, "dash": "dot"},
        hoverinfo="skip",
        **more,
    )


def _standing(found: Cloud, standing: Standing, *, bars: bool) -> dict[str, Any]:
    symbol, colour = MARKS[standing]
    members = [dot for dot in found.dots if dot.line.standing is standing]
    lines = [dot.line for dot in members]
    more: dict[str, Any] = {}
    if bars:
        more = {
            "error_x": error_bars(lines, found.x, colour),
            "error_y": error_bars(lines, found.y, colour),
        }
    return _points(
        lines,
        found,
        f"{standing} ({found.counts[standing]:,})",
        uid=trace_id(standing),
        mode="markers",
        marker={
            "symbol": symbol,
            "color": colour,
            "size": 9 if bars else 7,
            "opacity": 1 if bars else 0.75,
            "line": {"width": 1},
        },
        text=[_hover(dot) for dot in members],
        hovertemplate="%{text}<extra></extra>",
        **more,
    )


def _hover(dot: Dot) -> str:
    hidden = f"<br><i>and {dot.hides:,} more here: zoom in</i>" if dot.hides else ""
    return hover(dot.line) + hidden


def _marks(found: Cloud) -> list[dict[str, Any]]:
    by_number = {dot.line.number: dot.line for dot in found.dots}
    chosen = found.pick if found.pick is not None else found.nearest
    words = "pick" if found.pick is not None else "nearest"
    wanted = [(0, "default", DEFAULT_COLOUR), (chosen, words, PICK_COLOUR)]
    if chosen == 0:
        wanted = [(0, f"default = {words}", PICK_COLOUR)]
    return [
        _mark(by_number[number], found, name, colour)
        for number, name, colour in wanted
        if number in by_number
    ]


def _mark(line: TrialLine, found: Cloud, words: str, colour: str) -> dict[str, Any]:
    return _points(
        [line],
        found,
        words,
        uid=trace_id(f"mark-{words}"),
        mode="markers+text",
        text=[f"<b>{words}</b>"],
        textposition="top center",
        textfont={"color": colour},
        marker={"symbol": "circle-open", "size": 18, "color": colour, "line": {"width": 2.5}},
        hoverinfo="skip",
        showlegend=False,
        cliponaxis=False,
    )


def _points(lines: Sequence[TrialLine], found: Cloud, name: str, **more: Any) -> dict[str, Any]:
    return {
        "type": "scatter",
        "name": name,
        "x": [line.metric(found.x) for line in lines],
        "y": [line.metric(found.y) for line in lines],
        "customdata": [line.number for line in lines],
        **more,
    }
