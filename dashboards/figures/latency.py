"""Distributions of latency with their percentiles marked and the SLA's limits drawn across."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from autotune.core.measurement import LatencySummary, Measurement
from autotune.core.sla import Sla
from dashboards.figures.data import Distribution, distribution
from dashboards.figures.draw import LIMIT_COLOUR, PICK_COLOUR, Figure, draw_distributions

SECOND_COLOUR = "#d8693b"
COLOURS = (PICK_COLOUR, SECOND_COLOUR)


def draw_latencies(named: Sequence[tuple[str, Measurement | None]], sla: Sla) -> Figure | None:
    """One curve for each of up to two measurements; None where neither has a latency."""
    curves: dict[str, Distribution] = {}
    marked: dict[str, LatencySummary] = {}
    for colour, (name, measurement) in zip(COLOURS, named, strict=False):
        found = distribution(name, measurement)
        if found is not None and measurement is not None and measurement.load.latency is not None:
            curves[colour], marked[colour] = found, measurement.load.latency
    figure = draw_distributions(curves, sla.latency_ms)
    if figure is None:
        return None
    alone = len(curves) == 1
    figure["data"] += [_marks(colour, each, words=alone) for colour, each in marked.items()]
    figure["layout"]["shapes"] = _limits(sla.latency_ms)
    return figure


def _marks(colour: str, summary: LatencySummary, *, words: bool) -> dict[str, Any]:
    known = sorted(summary.percentiles_ms.items())
    return {
        "type": "scatter",
        "mode": "markers+text" if words else "markers",
        "x": [1 / (1 - p / 100) for p, _ in known],
        "y": [ms for _, ms in known],
        "text": [f"p{p:g} {ms:.1f}" for p, ms in known],
        "textposition": "top left",
        "marker": {"color": colour, "size": 8},
        "hovertemplate": "%{text} ms<extra></extra>",
        "showlegend": False,
        "cliponaxis": False,
    }


def _limits(limits: Mapping[float, float]) -> list[dict[str, Any]]:
    return [
        {
            "type": "line",
            "xref": "x domain",
            "yref": "y",
            "x0": 0,
            "x1": 1,
            "y0": ms,
            "y1": ms,
            "line": {"color": LIMIT_COLOUR, "width": 1.2, "dash": "dash"},
            "label": {
                "text": f"SLA p{percentile:g} ≤ {ms:g} ms",
                "textposition": "start",
                "yanchor": "bottom",
                "font": {"color": LIMIT_COLOUR, "size": 11},
            },
        }
        for percentile, ms in limits.items()
    ]
