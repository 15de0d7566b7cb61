"""A model's champion over its nights: a metric with intervals, and what was put into service."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from html import escape
from typing import Any

from autotune.core.measurement import METRICS
from autotune.core.promotions import Promotion, PromotionState
from autotune.core.schedules import NightRun
from autotune.core.standing import Standing
from dashboards.figures.draw import (
    DEFAULT_COLOUR,
    LIMIT_COLOUR,
    MARKS,
    PICK_COLOUR,
    Figure,
    axis,
    axis_title,
    layout,
)

CLOSE = 0.04
"""Of the nights' reach: what is nearer than this has no room for words of its own."""
MOST_WORDS = 3
SIDES = {"champion": ("circle", PICK_COLOUR), "challenger": ("diamond-open", "#d8693b")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A night's figure: of ``side`` champion or challenger, at a time in UTC seconds."""

    side: str
    at: float
    value: float
    low: float | None
    high: float | None
    words: str
    run: int


def metrics_of(nights: Sequence[NightRun]) -> list[str]:
    """What is known of any champion, in the order of their names' first night."""
    found = (_figures(night, "champion") for night in reversed(nights))
    return [m for m in dict.fromkeys(name for each in found for name in each) if m in METRICS]


def points(nights: Sequence[NightRun], metric: str) -> list[Point]:
    """Oldest first."""
    return [
        point
        for night in reversed(nights)
        for side in SIDES
        if (point := _point(night, side, metric)) is not None
    ]


def _figures(night: NightRun, side: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = (night.summary.get(side) or {}).get("figures") or {}
    return found


def _point(night: NightRun, side: str, metric: str) -> Point | None:
    found = _figures(night, side).get(metric)
    if not found or found.get("value") is None:
        return None
    low, high = found.get("interval") or (None, None)
    outcome = str(night.outcome or night.state).replace("_", " ")
    return Point(
        side=side,
        at=night.scheduled_for,
        value=found["value"],
        low=low,
        high=high,
        words=f"run {night.id}: {outcome}",
        run=night.id,
    )


def draw_nights(
    found: Sequence[Point],
    metric: str,
    champions: Sequence[Promotion],
    *,
    limit: float | None,
    zone: tzinfo = UTC,
) -> Figure | None:
    """Times stand in ``zone``: Plotly shows them as they are given."""
    if not found:
        return None
    return {
        "data": [trace for side in SIDES if (trace := _trace(found, side, metric, zone))],
        "layout": layout(
            xaxis=axis(type="date"),
            yaxis=axis(axis_title(metric), rangemode="tozero", tickformat=_format(metric)),
            shapes=[*_changes(found, champions, zone), *_limit(found, limit)],
            hovermode="closest",
            margin={"l": 48, "r": 16, "t": 40, "b": 44},
        ),
    }


def _format(metric: str) -> str:
    return ".0%" if metric == "utilization" else ""


def _trace(found: Sequence[Point], side: str, metric: str, zone: tzinfo) -> dict[str, Any] | None:
    own = [point for point in found if point.side == side]
    if not own:
        return None
    symbol, colour = SIDES[side]
    unit = METRICS[metric].unit.replace("1/s", "/s")
    return {
        "type": "scatter",
        "mode": "lines+markers" if side == "champion" else "markers",
        "name": side,
        "x": [_local(point.at, zone) for point in own],
        "y": [point.value for point in own],
        "error_y": {
            "type": "data",
            "symmetric": False,
            "array": [None if p.high is None else p.high - p.value for p in own],
            "arrayminus": [None if p.low is None else p.value - p.low for p in own],
            "color": colour,
            "thickness": 1.3,
            "width": 4,
        },
        "line": {"color": colour, "width": 1.4},
        "marker": {"symbol": symbol, "color": colour, "size": 9},
        "text": [escape(point.words) for point in own],
        "customdata": [point.run for point in own],
        "hovertemplate": f"%{{text}}<br>%{{y:.4g}} {unit}<extra>{side}</extra>",
    }


def _local(at: float, zone: tzinfo) -> str:
    return datetime.fromtimestamp(at, tz=zone).replace(tzinfo=None).isoformat(timespec="seconds")


def _changes(
    found: Sequence[Point], champions: Sequence[Promotion], zone: tzinfo
) -> list[dict[str, Any]]:
    """A line wherever something was put into service, or rolled back, since the first night."""
    first = found[0].at
    moments = []
    for each in champions:
        undone = each.state in (PromotionState.ROLLED_BACK, PromotionState.FAILED)
        if each.applied_at is not None and each.applied_at >= first:
            moments.append((each.applied_at, f"promotion {each.id}", MARKS[Standing.MEETS][1]))
        if undone and each.decided_at is not None and each.decided_at >= first:
            moments.append((each.decided_at, "rolled back", DEFAULT_COLOUR))
    reach = max([found[-1].at, *(at for at, _, _ in moments)]) - first
    told = _labels(sorted(moments), CLOSE * reach)
    return [_upright(_local(at, zone), words, colour) for at, words, colour in told]


def _labels(
    moments: Sequence[tuple[float, str, str]], close_s: float
) -> list[tuple[float, str, str]]:
    """Moments that would print their words over one another have them all at the first of them."""
    groups: list[list[tuple[float, str, str]]] = []
    for moment in moments:
        if groups and moment[0] - groups[-1][0][0] <= close_s:
            groups[-1].append(moment)
        else:
            groups.append([moment])
    return [
        (at, _joined([words for _, words, _ in group]) if not place else "", colour)
        for group in groups
        for place, (at, _, colour) in enumerate(group)
    ]


def _joined(words: Sequence[str]) -> str:
    rest = len(words) - MOST_WORDS
    return ", ".join(words[:MOST_WORDS]) + (f" and {rest} more" if rest > 0 else "")


def _upright(at: str, words: str, colour: str) -> dict[str, Any]:
    return {
        "type": "line",
        "xref": "x",
        "yref": "y domain",
        "x0": at,
        "x1": at,
        "y0": 0,
        "y1": 1,
        "line": {"color": colour, "width": 1.3, "dash": "dot"},
        "label": {
            "text": f'<span style="color:{colour}">{words}</span>'
            if words
            else "",  # not the SLA's
            "textposition": "end",
            "xanchor": "right",
            "font": {"size": 11},
        },
    }


def _limit(found: Sequence[Point], limit: float | None) -> list[dict[str, Any]]:
    if limit is None or limit > 4 * max(point.value for point in found):
        return []
    return [
        {
            "type": "line",
            "xref": "x domain",
            "yref": "y",
            "x0": 0,
            "x1": 1,
            "y0": limit,
            "y1": limit,
            "line": {"color": LIMIT_COLOUR, "width": 1.3, "dash": "dash"},
            "label": {
                "text": "SLA",
                "textposition": "start",
                "yanchor": "top",  # above it may be nothing of the plot
                "font": {"size": 11},
            },
        }
    ]
