"""Figures as Plotly's plain data: ``{"data": [...], "layout": {...}}``.

No colour of text, grid or background is set: the page does that for its light and dark scheme.
Trace colours read on both. Every text that Plotly draws is escaped: it takes a little HTML.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any, TypeAlias

from autotune.core.explain import shown
from autotune.core.measurement import METRICS
from autotune.core.standing import Standing
from autotune.core.wording import rate_words, span
from dashboards.figures.data import (
    Batches,
    Distribution,
    Entry,
    Scatter,
    Shown,
    Split,
    StepSplit,
    Timeline,
    called,
    cut_ms,
    label,
    ticks,
    wide,
)

Figure: TypeAlias = dict[str, Any]

MARKS: dict[Standing, tuple[str, str]] = {
    Standing.MEETS: ("circle", "#1f9d78"),
    Standing.MISSES: ("triangle-up", "#d8693b"),
    Standing.UNDECIDED: ("diamond", "#c2961c"),
    Standing.DOUBTED: ("diamond-open", "#8b93a1"),
    Standing.INVALID: ("x", "#8b93a1"),
    Standing.FAILED: ("square-open", "#b4477e"),
    Standing.PRUNED: ("line-ew-open", "#8b93a1"),
    Standing.RUNNING: ("circle-open", "#8b93a1"),
}
"""Symbol and colour: told apart by either."""

DEFAULT_COLOUR, PICK_COLOUR, LIMIT_COLOUR = "#8b93a1", "#3b7dd8", "#cf4b4b"
_QUEUE, _INPUT, _INFER, _OUTPUT, _OUTSIDE = "#d8a13b", "#8fb8e8", "#3b7dd8", "#1d4f91", "#8b93a1"


def trace_id(words: str) -> str:
    """Plotly makes a selector of a trace's ``uid`` when the plot goes: with a space or a sign in it
    that fails, and the page with it."""
    return re.sub(r"[^A-Za-z0-9]+", "-", words)


def axis_title(metric: str) -> str:
    unit = METRICS[metric].unit
    shown_unit = {"": "", "1/s": " (requests/s)"}.get(unit, f" ({unit})")
    return label(metric) + shown_unit


def axis(title: str = "", **more: Any) -> dict[str, Any]:
    title_of = {"title": {"text": title, "standoff": 8}} if title else {}
    return {**title_of, "automargin": True, "zeroline": False, **more}


def layout(**more: Any) -> dict[str, Any]:
    return {
        "margin": {"l": 48, "r": 16, "t": 12, "b": 44},
        "legend": {
            "orientation": "h",
            "y": 1.02,
            "yanchor": "bottom",
            "x": 0,
            "xanchor": "left",
            "traceorder": "normal",
        },
        "hoverlabel": {"align": "left"},
        "showlegend": True,
        **more,
    }


# --------------------------------------------------------------------------------- the scatter
def draw_scatter(found: Scatter) -> Figure:
    """The front first, then one trace per standing, then what is marked. The page moves the
    points when other axes are chosen, by `scatter_values`."""
    by_number = {entry.number: entry for entry in found.entries}
    front = [by_number[n] for n in found.fronts.get(f"{found.x}|{found.y}", ())]
    name = "front" if found.front_meets else "front (none meets the SLA)"
    line = {"color": MARKS[Standing.MEETS][1], "width": 1.5, "dash": "dot"}
    traces = [
        _points(front, found, name, mode="lines", line=line, hoverinfo="skip", meta="front"),
        *(_standing_trace(found, standing) for standing in MARKS if _has(found, standing)),
        *(_marked(by_number[n], found, words) for n, words in _marks(found)),
    ]
    return {
        "data": traces,
        "layout": layout(
            xaxis=axis(_title(found, found.x), **_scale(found, found.x)),
            yaxis=axis(_title(found, found.y), **_scale(found, found.y)),
            shapes=limit_lines(found.limits, found.x, found.y),
            hovermode="closest",
        ),
    }


def _title(found: Scatter, metric: str) -> str:
    emulated = metric == "utilization" and any(entry.emulated for entry in found.entries)
    return axis_title(metric) + (" (emulated)" if emulated else "")


def _scale(found: Scatter, metric: str) -> dict[str, Any]:
    return scale(found.entries, metric)


def scale(members: Sequence[Shown], metric: str) -> dict[str, Any]:
    """A logarithmic axis where values spread wide."""
    values = [entry.metric(metric) for entry in members]
    if wide(values):
        known = (entry.interval(metric) for entry in members)
        return _logarithmic(
            [*values, *(end for one in known if one for end in (one.low, one.high))]
        )
    return {"type": "linear", "tickmode": "auto", "tickvals": None, "ticktext": None}


def _logarithmic(values: Iterable[float | None]) -> dict[str, Any]:
    """Labelled in full: Plotly's own labels between the powers of ten are single digits."""
    at = ticks(values)
    if not at:
        return {"type": "log", "tickmode": "auto", "tickvals": None, "ticktext": None}
    return {
        "type": "log",
        "tickmode": "array",
        "tickvals": at,
        "ticktext": [f"{value:,.10g}" for value in at],
    }


def _has(found: Scatter, standing: Standing) -> bool:
    return any(e.standing is standing and e.measurement is not None for e in found.entries)


def _standing_trace(found: Scatter, standing: Standing) -> dict[str, Any]:
    symbol, colour = MARKS[standing]
    members = [entry for entry in found.entries if entry.standing is standing]
    return _points(
        members,
        found,
        str(standing),
        mode="markers",
        marker={"symbol": symbol, "color": colour, "size": 10, "line": {"width": 1}},
        error_x=error_bars(members, found.x, colour),
        error_y=error_bars(members, found.y, colour),
        text=[hover(entry) for entry in members],
        hovertemplate="%{text}<extra></extra>",
        meta="standing",
    )


def error_bars(members: Sequence[Shown], metric: str, colour: str) -> dict[str, Any]:
    """Plotly's error bars: how far the 95% interval reaches above and below each value."""
    reaches = [_reaches(entry, metric) for entry in members]
    return {
        "type": "data",
        "symmetric": False,
        "arrayminus": [below for below, _ in reaches],
        "array": [above for _, above in reaches],
        "color": _faint(colour),
        "thickness": 1.4,
        "width": 3,
    }


def _faint(colour: str) -> str:
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.55)"


def _reaches(entry: Shown, metric: str) -> tuple[float | None, float | None]:
    value, interval = entry.metric(metric), entry.interval(metric)
    if value is None or interval is None:
        return None, None
    return value - interval.low, interval.high - value


def _marks(found: Scatter) -> list[tuple[int, str]]:
    chosen, words = found.pick, "pick"
    if chosen is None:
        chosen = found.nearest_miss
        nearest = next((entry for entry in found.entries if entry.number == chosen), None)
        words = "" if nearest is None else called(nearest)
    if chosen is not None and chosen == found.default:
        return [(chosen, f"default = {words}")]
    wanted = [(found.default, "default"), (chosen, words)]
    return [(number, mark) for number, mark in wanted if number is not None]


def _marked(entry: Entry, found: Scatter, words: str) -> dict[str, Any]:
    colour = DEFAULT_COLOUR if words == "default" else PICK_COLOUR
    return _points(
        [entry],
        found,
        words,
        mode="markers+text",
        text=[f"<b>{words}</b>"],
        textposition="top right",
        textfont={"color": colour},
        marker={"symbol": "circle-open", "size": 20, "color": colour, "line": {"width": 2.5}},
        hoverinfo="skip",
        showlegend=False,
        cliponaxis=False,
        meta="mark",
    )


def _points(members: Sequence[Entry], found: Scatter, name: str, **more: Any) -> dict[str, Any]:
    return {
        "type": "scatter",
        "name": name,
        "x": [entry.metric(found.x) for entry in members],
        "y": [entry.metric(found.y) for entry in members],
        "customdata": [entry.number for entry in members],
        **more,
    }


def hover(entry: Shown) -> str:
    """A trial in a few lines: its number and standing, its candidate, what was measured."""
    parameters = [f"{name} = {value}" for name, value in entry.candidate.to_json().items()]
    metrics = ("p95_ms", "saturation_qps", "utilization", "instances")
    known = [f"{named(m, entry)} {told(entry, m)}" for m in metrics if entry.metric(m) is not None]
    head = f"<b>trial {entry.number}</b> · {entry.standing}"
    return "<br>".join([head, *map(escape, parameters), *map(escape, known)])


def named(metric: str, entry: Shown) -> str:
    """A metric in words; a utilization that is of no hardware is called emulated."""
    emulated = metric == "utilization" and entry.emulated
    return f"emulated {label(metric)}" if emulated else label(metric)


def value_words(entry: Shown, metric: str) -> str:
    """A metric's value; of a saturation, whether it is only a lower bound."""
    value = entry.metric(metric)
    if metric == "saturation_qps" and value is not None:
        return rate_words(value, bounded=bool(entry.saturation_bound))
    return shown(metric, value)


def told(entry: Shown, metric: str) -> str:
    """A metric's value with its interval where it has one: ``64.4 ms (58–73)``."""
    interval = entry.interval(metric)
    text = value_words(entry, metric)
    return text if interval is None else f"{text} ({span(interval)})"


def limit_lines(limits: Mapping[str, float], x: str, y: str) -> list[dict[str, Any]]:
    line = {"color": LIMIT_COLOUR, "width": 1.5, "dash": "dash"}
    shapes = []
    for metric, along, across in ((x, "x", "y"), (y, "y", "x")):
        if metric in limits:
            limit = limits[metric]
            ends = {f"{along}0": limit, f"{along}1": limit, f"{across}0": 0, f"{across}1": 1}
            refs = {f"{along}ref": along, f"{across}ref": f"{across} domain"}
            words = {"text": "SLA", "font": {"color": LIMIT_COLOUR, "size": 11}}
            shapes.append({"type": "line", "line": line, "label": words, **ends, **refs})
    return shapes


def scatter_values(found: Scatter) -> dict[str, Any]:
    """What the page needs to choose other axes: by trial number and metric, the values, and how far
    their intervals reach below and above."""
    return {
        "values": {
            str(entry.number): {metric: entry.metric(metric) for metric in found.metrics}
            for entry in found.entries
        },
        "reaches": {
            str(entry.number): {metric: _reaches(entry, metric) for metric in found.metrics}
            for entry in found.entries
        },
        "fronts": {pair: list(front) for pair, front in found.fronts.items()},
        "scales": {metric: _scale(found, metric) for metric in found.metrics},
        "titles": {metric: _title(found, metric) for metric in found.metrics},
        "limits": dict(found.limits),
        "trials": len(found.entries),
    }


# ---------------------------------------------------------------------- the latency distribution
_TICKS = (0.0, 0.5, 0.9, 0.95, 0.99, 0.999, 0.9999, 0.99999)


def draw_distributions(
    curves: Mapping[str, Distribution], limits: Mapping[float, float]
) -> Figure | None:
    """Latency by percentile, the tail spread out: x is 1 / (1 - share), log. ``curves`` by the
    colour to draw each in; ``limits`` are the SLA's, percentile → ms, drawn as points."""
    if not curves:
        return None
    traces = [_curve(colour, curve) for colour, curve in curves.items()]
    if limits:
        traces.append(_limit_points(limits))
    deepest = max(_depth(curve.shares[-1], curve.count) for curve in curves.values())
    shares = [share for share in _TICKS if 1 / (1 - share) <= deepest * 1.05]
    latencies = [ms for curve in curves.values() for ms in curve.latency_ms] + list(limits.values())
    return {
        "data": traces,
        "layout": layout(
            xaxis=axis(
                "share of requests",
                type="log",
                tickvals=[1 / (1 - share) for share in shares],
                ticktext=[f"{share * 100:g}%" for share in shares],
            ),
            yaxis=axis("latency (ms)", **_logarithmic(latencies)),
            hovermode="closest",
        ),
    }


def _depth(share: float, count: int) -> float:
    """1 / (1 - share); the slowest request of all stands at twice the number of requests."""
    return min(1 / max(1 - share, 1e-9), 2.0 * max(count, 1))


def _curve(colour: str, curve: Distribution) -> dict[str, Any]:
    texts = [
        f"{share * 100:.4g}% within {ms:.1f} ms"
        for share, ms in zip(curve.shares, curve.latency_ms, strict=True)
    ]
    return {
        "type": "scatter",
        "name": escape(curve.name) + ("" if curve.exact else " (percentiles only)"),
        "x": [_depth(share, curve.count) for share in curve.shares],
        "y": list(curve.latency_ms),
        "text": texts,
        "hovertemplate": "%{text}<extra>%{fullData.name}</extra>",
        # A single point makes no line: requests that all took the same, or only one.
        "mode": "lines" if curve.exact and len(curve.shares) > 1 else "lines+markers",
        "line": {"color": colour, "width": 2, "shape": "vh" if curve.exact else "linear"},
    }


def _limit_points(limits: Mapping[float, float]) -> dict[str, Any]:
    found = sorted(limits.items())
    return {
        "type": "scatter",
        "name": "SLA",
        "x": [1 / (1 - percentile / 100) for percentile, _ in found],
        "y": [limit for _, limit in found],
        "text": [f"SLA: p{percentile:g} at most {limit:g} ms" for percentile, limit in found],
        "hovertemplate": "%{text}<extra></extra>",
        "mode": "markers",
        "marker": {
            "symbol": "line-ew-open",
            "size": 26,
            "color": LIMIT_COLOUR,
            "line": {"width": 3},
        },
    }


# --------------------------------------------------------------------------- where the time goes
def draw_splits(splits: Sequence[Split]) -> Figure | None:
    """Stacked bars, one per trial, first on top."""
    if not splits:
        return None
    parts = (
        ("queue", _QUEUE, [s.queue_ms for s in splits]),
        ("input", _INPUT, [s.compute_input_ms for s in splits]),
        ("inference", _INFER, [s.compute_infer_ms for s in splits]),
        ("output", _OUTPUT, [s.compute_output_ms for s in splits]),
        ("outside the server", _OUTSIDE, [s.outside_ms for s in splits]),
    )
    names = [escape(s.name) for s in splits]
    traces = [
        {
            "type": "bar",
            "orientation": "h",
            "name": name,
            "y": names,
            "x": values,
            "marker": {"color": colour},
            "hovertemplate": "%{y}<br>" + name + " %{x:.2f} ms<extra></extra>",
        }
        for name, colour, values in parts
    ]
    return {
        "data": traces,
        "layout": layout(
            barmode="stack",
            bargap=0.35,
            xaxis=axis("mean per request (ms)"),
            yaxis=axis(autorange="reversed", type="category", ticklabelstandoff=6),
        ),
    }


_STEP_COLOURS = ("#3b7dd8", "#1f9d78", "#b4477e", "#c2961c", "#7a5fc7", "#d8693b")
"""One per step, in turn."""


def draw_step_splits(splits: Sequence[StepSplit]) -> Figure | None:
    """Stacked bars, one per trial, first on top: of each step the time in its queue, hatched, and
    its compute time; the step that limits is written on."""
    if not splits:
        return None
    steps = list(dict.fromkeys(part.step for split in splits for part in split.parts))
    traces = [
        trace
        for at, step in enumerate(steps)
        for trace in _step_traces(splits, step, _STEP_COLOURS[at % len(_STEP_COLOURS)])
    ]
    if any(split.outside_ms for split in splits):
        traces.append(_bar("in no step", splits, [split.outside_ms for split in splits], _OUTSIDE))
    longest = cut_ms(splits)
    across = axis("mean per request (ms)")
    return {
        "data": traces,
        "layout": layout(
            barmode="stack",
            bargap=0.35,
            xaxis=across if longest is None else {**across, "range": [0, longest]},
            yaxis=axis(autorange="reversed", type="category", ticklabelstandoff=6),
            annotations=[] if longest is None else _cut_off(splits, longest),
        ),
    }


def _step_traces(splits: Sequence[StepSplit], step: str, colour: str) -> list[dict[str, Any]]:
    parts = [next((p for p in split.parts if p.step == step), None) for split in splits]
    waits = [None if p is None else p.queue_ms for p in parts]
    queue = _bar(f"{step}, in its queue", splits, waits, colour)
    compute = _bar(step, splits, [None if p is None else p.compute_ms for p in parts], colour)
    known = [None if p is None else p.batch for p in parts]
    batches = ["" if batch is None else f"<br>mean batch {batch:.1f}" for batch in known]
    limits = [p is not None and p.limits for p in parts]
    queued = [p is not None and p.queue_ms > p.compute_ms for p in parts]
    queue |= {
        "showlegend": False,
        **_words([limit and most for limit, most in zip(limits, queued, strict=True)]),
        "opacity": 0.55,
        "marker": {"color": colour, "pattern": {"shape": "/", "solidity": 0.35}},
    }
    compute |= {
        **_words([limit and not most for limit, most in zip(limits, queued, strict=True)]),
        "insidetextfont": {"color": "#ffffff"},
        "customdata": batches,
        "hovertemplate": f"%{{y}}<br>{escape(step)} %{{x:.2f}} ms%{{customdata}}<extra></extra>",
    }
    return [queue, compute]


def _words(limits: Sequence[bool]) -> dict[str, Any]:
    """Written on the longer part of the step that limits, where it begins: its end may be cut
    off."""
    return {
        "text": ["limits" if limit else "" for limit in limits],
        "textposition": "inside",
        "insidetextanchor": "start",
        "textangle": 0,
    }


def _bar(
    name: str, splits: Sequence[StepSplit], values: Sequence[float | None], colour: str
) -> dict[str, Any]:
    return {
        "type": "bar",
        "orientation": "h",
        "name": escape(name),
        "y": [escape(split.name) for split in splits],
        "x": list(values),
        "marker": {"color": colour},
        "hovertemplate": f"%{{y}}<br>{escape(name)} %{{x:.2f}} ms<extra></extra>",
    }


def _cut_off(splits: Sequence[StepSplit], longest: float) -> list[dict[str, Any]]:
    """How long the bars really are that reach beyond the axis."""
    return [
        {
            "x": longest,
            "y": escape(split.name),
            "xanchor": "right",
            "text": f"<b>{split.total_ms:,.0f} ms →</b>",
            "showarrow": False,
            "font": {"color": "#ffffff"},
            "bgcolor": "#5d6572",
            "borderpad": 3,
        }
        for split in splits
        if split.total_ms > longest
    ]


# ------------------------------------------------------------------------------------- batches
def draw_batches(found: Batches | None) -> Figure | None:
    """None also where all batches were of one size: words say that better."""
    if found is None or len(found.sizes) == 1:
        return None
    total = sum(found.executions) or 1
    return {
        "data": [
            {
                "type": "bar",
                "name": "executions",
                "x": [str(size) for size in found.sizes],
                "y": [count / total for count in found.executions],
                "customdata": list(zip(found.executions, found.compute_ms, strict=True)),
                "marker": {"color": PICK_COLOUR},
                "width": 0.6,
                "hovertemplate": "batch of %{x}<br>%{customdata[0]} executions (%{y:.1%})<br>"
                "%{customdata[1]:.2f} ms each<extra></extra>",
            }
        ],
        "layout": layout(
            showlegend=False,
            bargap=0.25,
            xaxis=axis("batch size", type="category"),
            yaxis=axis("share of executions", tickformat=".0%", rangemode="tozero"),
        ),
    }


# ------------------------------------------------------------------------------------ timeline
def draw_timeline(found: Timeline | None, limit_ms: float | None) -> Figure | None:
    """Latency above, utilization below, over the same seconds."""
    if found is None:
        return None
    both = bool(found.slices_s) and bool(found.utilization_s)
    traces = []
    if found.slices_s:
        traces += [
            _line("slowest", found.slices_s, found.max_ms, MARKS[Standing.MISSES][1], "y"),
            _line("median", found.slices_s, found.median_ms, PICK_COLOUR, "y"),
        ]
    if found.utilization_s:
        name = f"utilization ({escape(found.source or 'unknown source')})"
        colour = MARKS[Standing.MEETS][1]
        traces.append(
            {
                **_line(name, found.utilization_s, found.utilization, colour, "y2"),
                "hovertemplate": "%{x:.1f} s: %{y:.0%}<extra>%{fullData.name}</extra>",
            }
        )
    placed = layout(xaxis=axis("seconds of the measured window", anchor="y2" if both else None))
    if found.slices_s:
        domain = [0.45, 1] if both else [0, 1]
        placed["yaxis"] = axis("latency (ms)", domain=domain, rangemode="tozero")
        placed["shapes"] = _limit_across(limit_ms, max(found.max_ms))
    if found.utilization_s:
        domain = [0, 0.36] if both else [0, 1]
        placed["yaxis2"] = axis("busy", domain=domain, range=[0, 1.05], tickformat=".0%")
    return {"data": traces, "layout": placed}


def _line(
    name: str, x: Sequence[float], y: Sequence[float], colour: str, axis: str
) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": list(x),
        "y": list(y),
        "yaxis": axis,
        "line": {"color": colour, "width": 1.8},
        "hovertemplate": "%{x:.1f} s: %{y:.1f} ms<extra>%{fullData.name}</extra>",
    }


def _limit_across(limit_ms: float | None, highest_ms: float) -> list[dict[str, Any]]:
    """The SLA's line where it is near enough not to flatten what was measured."""
    if limit_ms is None or limit_ms > 3 * highest_ms:
        return []
    line = {"color": LIMIT_COLOUR, "width": 1.5, "dash": "dash"}
    ends = {"x0": 0, "x1": 1, "y0": limit_ms, "y1": limit_ms}
    return [{"type": "line", "xref": "x domain", "yref": "y", "line": line, **ends}]
