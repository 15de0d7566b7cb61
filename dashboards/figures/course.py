"""A measured window over its seconds: latency, requests in flight, throughput, how busy it was.

Latency, requests in flight and throughput come from the raw times of the requests, where they are
stored; the rest from telemetry."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

import numpy as np

from autotune.core.measurement import EMULATED, GAUGES, Measurement, RequestSamples
from autotune.core.standing import Standing
from dashboards.figures.data import Timeline, label, timeline
from dashboards.figures.draw import LIMIT_COLOUR, MARKS, PICK_COLOUR, Figure, axis, layout

SLICES = 60
"""Into how many parts the window is cut for what is counted per second."""
SHARES = ("sm_active", "tensor_active", "dram_active")
"""Gauges that are drawn with the utilization: shares of time, too."""
_COLOURS = ("#b4477e", "#7a5fc7", "#c2961c")
_GAP = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """``in_flight`` by the moments ``flight_s``: requests that were due and not yet answered.
    ``throughput`` in good answers per second of each slice around ``rate_s``. ``gauges`` are series
    of (seconds, share) pairs. Empty is unknown."""

    timeline: Timeline
    offered_qps: float
    flight_s: tuple[float, ...] = ()
    in_flight: tuple[int, ...] = ()
    rate_s: tuple[float, ...] = ()
    throughput: tuple[float, ...] = ()
    gauges: Mapping[str, Sequence[tuple[float, float]]] = field(default_factory=dict)


def course(measurement: Measurement | None) -> Course | None:
    """None where nothing of it was recorded."""
    found = timeline(measurement)
    if measurement is None or found is None:
        return None
    load, gauges = measurement.load, measurement.telemetry.gauges
    flight = _in_flight(load.samples, load.window_s) if load.samples is not None else ((), ())
    rate = _throughput(load.samples, load.window_s) if load.samples is not None else ((), ())
    return Course(
        timeline=found,
        offered_qps=load.offered_qps,
        flight_s=flight[0],
        in_flight=flight[1],
        rate_s=rate[0],
        throughput=rate[1],
        gauges={
            name: [pair for pair in gauges[name].series if math.isfinite(pair[1])]
            for name in SHARES
            if name in gauges and gauges[name].series
        },
    )


def _in_flight(
    samples: RequestSamples, window_s: float
) -> tuple[tuple[float, ...], tuple[int, ...]]:
    """At so many moments: due by then, less answered by then."""
    at = np.linspace(0, window_s, 4 * SLICES + 1)
    due = np.sort(samples.scheduled_s)
    done = np.sort(samples.done_s[np.isfinite(samples.done_s)])
    counts = np.searchsorted(due, at, side="right") - np.searchsorted(done, at, side="right")
    return tuple(map(float, at)), tuple(map(int, counts))


def _throughput(
    samples: RequestSamples, window_s: float
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    if not window_s > 0:
        return (), ()
    edges = np.linspace(0, window_s, SLICES // 2 + 1)
    counts, _ = np.histogram(samples.done_s[samples.ok & np.isfinite(samples.done_s)], bins=edges)
    width = edges[1] - edges[0]
    return tuple(map(float, edges[:-1] + width / 2)), tuple(map(float, counts / width))


# ----------------------------------------------------------------------------------- the drawing
def draw_course(found: Course | None, limit_ms: float | None) -> Figure | None:
    """Panels one below another over the same seconds, those that are known."""
    if found is None:
        return None
    panels = [
        panel
        for panel in (_latency(found, limit_ms), _flight(found), _rate(found), _busy(found))
        if panel
    ]
    heights = [2.0 if panel["title"] == "latency (ms)" else 1.0 for panel in panels]
    domains = _domains(heights)
    traces: list[dict[str, Any]] = []
    placed = layout(
        xaxis=axis("seconds of the measured window", anchor=_name("y", len(panels) - 1)),
        hovermode="x",
        showlegend=False,
        annotations=[],
        margin={"l": 48, "r": 16, "t": 30, "b": 44},
    )
    for at, (panel, domain) in enumerate(zip(panels, domains, strict=True)):
        name = _name("y", at)
        traces += [{**trace, "yaxis": name} for trace in panel["traces"]]
        placed[_name("yaxis", at)] = axis(domain=domain, nticks=4, **panel["axis"])
        placed["annotations"].append(_heading(panel, domain[1]))
    return {"data": traces, "layout": placed}


def _heading(panel: dict[str, Any], top: float) -> dict[str, Any]:
    """What a panel shows, its lines named in their colours: a legend of all would be far off."""
    lines = [
        f'<span style="color:{trace["line"]["color"]}">━ {trace["name"]}</span>'
        for trace in panel["traces"]
    ]
    return {
        "xref": "paper",
        "yref": "paper",
        "x": 0,
        "y": top,
        "xanchor": "left",
        "yanchor": "bottom",
        "align": "left",
        "showarrow": False,
        "text": "  ".join([f"<b>{panel['title']}</b>", *lines]),
        "font": {"size": 12},
    }


def _name(axis_name: str, at: int) -> str:
    return axis_name if at == 0 else f"{axis_name}{at + 1}"


def _domains(heights: Sequence[float]) -> list[list[float]]:
    """Of panels from the top down."""
    free = 1 - _GAP * (len(heights) - 1)
    top, domains = 1.0, []
    for height in heights:
        bottom = top - free * height / sum(heights)
        domains.append([max(bottom, 0.0), top])
        top = bottom - _GAP
    return domains


def _line(
    name: str, x: Sequence[float], y: Sequence[float], colour: str, words: str, **more: Any
) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": escape(name),
        "x": list(x),
        "y": list(y),
        "line": {"color": colour, "width": 1.6, **more},
        "hovertemplate": f"{words}<extra>%{{fullData.name}}</extra>",
    }


def _latency(found: Course, limit_ms: float | None) -> dict[str, Any] | None:
    """With the SLA's line where it is near enough not to flatten what was measured."""
    line = found.timeline
    if not line.slices_s:
        return None
    words = "%{y:.1f} ms"
    traces = [
        _line("slowest", line.slices_s, line.max_ms, MARKS[Standing.MISSES][1], words),
        _line("median", line.slices_s, line.median_ms, PICK_COLOUR, words),
    ]
    if limit_ms is not None and limit_ms <= 3 * max(line.max_ms):
        ends = (0.0, max(line.slices_s[-1], *found.rate_s[-1:]))
        name = f"SLA {limit_ms:g} ms"
        traces.append(_line(name, ends, (limit_ms,) * 2, LIMIT_COLOUR, words, dash="dash"))
    return {"title": "latency (ms)", "axis": {"rangemode": "tozero"}, "traces": traces}


def _flight(found: Course) -> dict[str, Any] | None:
    if not found.flight_s:
        return None
    line = _line("in flight", found.flight_s, found.in_flight, "#7a5fc7", "%{y}", shape="hv")
    return {"title": "requests", "axis": {"rangemode": "tozero"}, "traces": [line]}


def _rate(found: Course) -> dict[str, Any] | None:
    if not found.rate_s:
        return None
    answered = _line("answers per second", found.rate_s, found.throughput, "#1f9d78", "%{y:.1f}/s")
    ends = (found.rate_s[0], found.rate_s[-1])
    offered = _line("offered", ends, (found.offered_qps,) * 2, "#8b93a1", "%{y:.1f}/s", dash="dot")
    return {"title": "per second", "axis": {"rangemode": "tozero"}, "traces": [answered, offered]}


def _busy(found: Course) -> dict[str, Any] | None:
    line = found.timeline
    traces = []
    if line.utilization_s:
        emulated = "emulated " if line.source == EMULATED else ""
        name = f"{emulated}utilization ({line.source or 'unknown source'})"
        traces.append(_line(name, line.utilization_s, line.utilization, "#c2961c", "%{y:.0%}"))
    for colour, (gauge, series) in zip(_COLOURS, found.gauges.items(), strict=False):
        at, shares = zip(*series, strict=True) if series else ((), ())
        traces.append(_line(label(gauge), at, shares, colour, "%{y:.0%}"))
    if not traces:
        return None
    return {"title": "busy", "axis": {"range": [0, 1.05], "tickformat": ".0%"}, "traces": traces}


def told_gauges(measurement: Measurement) -> list[tuple[str, str, str]]:
    """What telemetry knows beside utilization: its name, its mean over the window, what it is."""
    return [
        (label(name), _shown(name, gauge.value), f"{GAUGES.get(name, name)} (by {gauge.source})")
        for name, gauge in measurement.telemetry.gauges.items()
    ]


def _shown(name: str, value: float) -> str:
    if name in (*SHARES, "sm_occupancy"):
        return f"{value:.1%}"
    units = {"power_w": " W", "energy_j": " J", "temperature_c": " °C"}
    unit = (
        " MHz"
        if name.endswith("_mhz")
        else " MB/s"
        if name.endswith("_mb_s")
        else units.get(name, "")
    )
    return f"{value:,.0f}{unit}"
