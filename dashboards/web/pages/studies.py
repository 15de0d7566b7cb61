"""All studies, newest first: state, model, SLA, best so far, progress of those that run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dash import ALL, Dash, Input, Output, State, ctx, dcc, html, no_update
from dash.development.base_component import Component

from autotune.core.explain import shown
from autotune.core.records import StudyState
from autotune.service_ports import Desks, StudySummary
from dashboards.figures.data import label
from dashboards.web.parts import notes
from dashboards.web.parts.callbacks import answers
from dashboards.web.parts.progress import progress_of, running, seconds_left
from dashboards.web.parts.states import badge
from dashboards.web.parts.tables import Column, Sorted, table
from dashboards.web.parts.words import UNKNOWN, count, duration, when
from dashboards.web.routing import Asked, Page

EVERY_MS = 2500
LATEST = 200
_EVERY_STATE = "all"
_NEWEST = Sorted(by="started", down=True)
_COLUMNS = (
    Column(key="study", title="Study", sortable=True),
    Column(key="state", title="State", sortable=True),
    Column(key="model", title="Model", sortable=True),
    Column(key="sla", title="SLA"),
    Column(key="best", title="Best so far", sortable=True),
    Column(key="trials", title="Trials", number=True, sortable=True),
    Column(key="progress", title="Progress"),
    Column(key="started", title="Started", sortable=True),
    Column(key="took", title="Took", number=True, sortable=True),
)


def layout(_desks: Desks, _asked: Asked) -> Component:
    return html.Div(
        [
            html.H1("Studies", tabIndex=-1),
            html.Div(
                [
                    html.Div(
                        [
                            html.Label("Find", htmlFor="studies-find"),
                            dcc.Input(
                                id="studies-find",
                                type="search",
                                placeholder="name or model",
                                debounce=False,
                            ),
                        ],
                        className="field",
                    ),
                    html.Div(
                        [
                            html.Label("State", htmlFor="studies-state"),
                            dcc.Dropdown(
                                id="studies-state",
                                options=[_EVERY_STATE, *map(str, StudyState)],
                                value=_EVERY_STATE,
                                clearable=False,
                                searchable=False,
                            ),
                        ],
                        className="field",
                    ),
                ],
                className="controls",
            ),
            html.Div(html.P("Reading …", className="quiet"), id="studies-list"),
            dcc.Store(id="studies-order", data={"by": _NEWEST.by, "down": _NEWEST.down}),
            dcc.Store(id="studies-shown"),
            dcc.Interval(id="studies-tick", interval=EVERY_MS),
        ]
    )


def register(dash_app: Dash, desks: Desks) -> None:
    @answers(
        dash_app,
        Output("studies-list", "children"),
        Output("studies-shown", "data"),
        Input("studies-tick", "n_intervals"),
        Input("studies-find", "value"),
        Input("studies-state", "value"),
        Input("studies-order", "data"),
        State("studies-shown", "data"),
    )
    def show(
        _tick: int | None,
        words: str | None,
        state: str,
        order: Mapping[str, Any],
        before: str | None,
    ) -> tuple[Any, Any]:
        found = desks.studies.studies(limit=LATEST)
        stamp = _stamp(found)
        if ctx.triggered_id == "studies-tick" and stamp == before:
            return no_update, no_update
        return listed(found, words or "", state, Sorted(**order)), stamp

    @answers(
        dash_app,
        Output("studies-order", "data"),
        Input({"sort": "studies", "by": ALL}, "n_clicks"),
        State("studies-order", "data"),
        prevent_initial_call=True,
    )
    def sort(clicks: Sequence[int | None], order: Mapping[str, Any]) -> Any:
        if not any(clicks) or not isinstance(ctx.triggered_id, dict):
            return no_update
        by = ctx.triggered_id["by"]
        return {"by": by, "down": not order["down"] if by == order["by"] else False}


def _stamp(found: Sequence[StudySummary]) -> str:
    """What is the same while nothing that is shown has changed."""
    seen = [
        (
            s.record.id,
            s.record.state,
            s.record.trials,
            s.best,
            s.job and dict(s.job.progress),
            seconds_left(s.job),
        )
        for s in found
    ]
    return str(hash(repr(seen)))


def listed(
    found: Sequence[StudySummary], words: str, state: str, order: Sorted = _NEWEST
) -> Component:
    if not found:
        return notes.empty(
            "No study has been run yet.",
            "Run one: ",
            notes.command("autotune tune study.yaml"),
            ", or see one on this machine's CPU: ",
            notes.command("autotune demo"),
        )
    chosen = [s for s in found if _matches(s, words.strip().lower(), state)]
    if not chosen:
        newest = "the newest " if len(found) >= LATEST else ""
        looked = f"Of {newest}{count(len(found), 'study', 'studies')}, none matches."
        return notes.empty("No study is like that.", looked)
    rows = [_row(summary) for summary in sorted(chosen, key=_KEYS[order.by], reverse=order.down)]
    shown_ = table("studies", "Studies", _COLUMNS, rows, order=order)
    return html.Div([shown_, notes.newest(found, LATEST)])


def _matches(summary: StudySummary, words: str, state: str) -> bool:
    named = f"{summary.record.name} {summary.model}".lower()
    return words in named and state in (_EVERY_STATE, summary.record.state)


_KEYS: Mapping[str, Callable[[StudySummary], Any]] = {
    "study": lambda s: (s.record.name.lower(), s.record.id),
    "state": lambda s: (s.record.state, s.record.id),
    "model": lambda s: (s.model.lower(), s.record.id),
    "best": lambda s: (_latency(s) is None, _latency(s) or 0.0, s.record.id),
    "trials": lambda s: (s.record.trials, s.record.id),
    "started": lambda s: (s.record.created_at, s.record.id),
    "took": lambda s: (_took(s) or 0.0, s.record.id),
}


def _row(summary: StudySummary) -> Mapping[str, Any]:
    record = summary.record
    href = f"/study/{record.id}"
    return {
        "study": [
            dcc.Link(record.name, href=href),
            html.Small(f"run {record.id}", className="quiet under"),
        ],
        "state": badge(record.state),
        "model": summary.model,
        "sla": summary.sla,
        "best": _best(summary),
        "trials": f"{record.trials:,}",
        "progress": progress_of(summary.job, record, summary.planned),
        "started": when(record.created_at),
        "took": duration(_took(summary)),
    }


def _best(summary: StudySummary) -> Any:
    if summary.best is None:
        return UNKNOWN
    metrics = [m for m in (_latency_name(summary), "saturation_qps") if m]
    known = [(m, summary.best_metrics.get(m)) for m in metrics]
    words = ", ".join(f"{label(m)} {shown(m, value)}" for m, value in known if value is not None)
    href = f"/study/{summary.record.id}/trial/{summary.best}"
    nearest = "" if summary.best_meets else " (none meets it; this comes nearest)"
    return [dcc.Link(f"trial {summary.best}", href=href), html.Small(f" {words}{nearest}")]


def _latency_name(summary: StudySummary) -> str:
    """The latency that the SLA names first."""
    first = summary.sla.partition(" ")[0]
    return f"{first}_ms" if f"{first}_ms" in summary.best_metrics else "p95_ms"


def _latency(summary: StudySummary) -> float | None:
    return summary.best_metrics.get(_latency_name(summary))


def _took(summary: StudySummary) -> float | None:
    record = summary.record
    if record.ended_at is not None:
        return record.ended_at - record.created_at
    told = summary.job.progress.get("at") if summary.job is not None else None
    return None if told is None or not running(summary.job) else told - record.created_at


PAGE = Page(path="/", title="Studies", layout=layout, register=register, nav="Studies")
