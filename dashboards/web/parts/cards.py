"""Sections, figures in a row, facts in two columns, plots with words beside them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dash import dcc, html
from dash.development.base_component import Component

from autotune.core.measurement import METRICS
from autotune.core.wording import percent, span
from dashboards.figures.data import Shown, label
from dashboards.figures.draw import Figure, value_words
from dashboards.web.parts.words import aria

PLOT: Any = {
    "displaylogo": False,
    "showSendToCloud": False,
    "responsive": True,
    "doubleClick": "reset+autosize",
    "modeBarButtonsToRemove": ["select2d", "lasso2d", "autoScale2d"],
    "toImageButtonOptions": {"format": "svg"},
}
"""How Plotly behaves; its image button makes the file in the browser."""

_UNSEEN: Any = {"visible": False}
NOTHING: Any = {"data": [], "layout": {"xaxis": _UNSEEN, "yaxis": _UNSEEN}}
"""A plot without anything, its axes included: what is not there yet is not drawn as if it were."""


def section(title: str, *content: Any, name: str, beside: Any = None) -> Component:
    """A card under a heading; ``name`` is its id, ``beside`` stands at the heading's right."""
    heading = html.H2(title, id=f"h-{name}")
    head = heading if beside is None else html.Div([heading, beside], className="section-head")
    return html.Section([head, *content], id=name, **aria(labelledby=f"h-{name}"))


def plot(name: str, said: str, *, figure: Figure | None = None, tall: bool = False) -> Component:
    """A plot; ``said`` says what it shows to those who do not see it. What a callback has to say
    of its content goes to ``<name>-note``."""
    return html.Figure(
        [
            html.Div(
                dcc.Graph(
                    id=name,
                    figure=NOTHING if figure is None else figure,
                    config=PLOT,
                    responsive=True,
                ),
                className="plot tall" if tall else "plot",
            ),
            html.Figcaption(
                "Reading …" if figure is None else None,
                id=f"{name}-note",
                className="quiet",
                **aria(live="polite"),
            ),
        ],
        className="figure",
        role="group",
        **aria(label=said),
    )


def facts(rows: Sequence[tuple[str, Any]]) -> Component:
    return html.Dl(
        [html.Div([html.Dt(name), html.Dd(value)]) for name, value in rows], className="facts"
    )


def figures(line: Shown, before: Shown | None, metrics: Sequence[str]) -> Component:
    """Figures of a trial in a row, each against another's (the configuration in service)."""
    return html.Dl([_figure(line, before, metric) for metric in metrics], className="cards")


def _figure(line: Shown, before: Shown | None, metric: str) -> Component:
    interval = line.interval(metric)
    more: list[Component] = []
    if interval is not None:
        more.append(html.Span(span(interval), className="interval", title="95% interval"))
    if before is not None and before.number != line.number:
        more.append(html.Span(f"was {value_words(before, metric)}", className="before"))
        more += _change(line, before, metric)
    emulated = " (emulated)" if metric == "utilization" and line.emulated else ""
    return html.Div(
        [
            html.Dt(label(metric) + emulated),
            html.Dd([html.Span(value_words(line, metric), className="after"), *more]),
        ],
        className="card",
    )


def _change(line: Shown, before: Shown, metric: str) -> list[Component]:
    old, new = before.metric(metric), line.metric(metric)
    if not old or new is None or old == new:
        return []
    if abs(new / old - 1) < 0.005:
        return []
    better = (new > old) == METRICS[metric].maximize and metric != "utilization"
    return [html.Span(percent(new / old - 1, 0), className=f"change{' good' if better else ''}")]
