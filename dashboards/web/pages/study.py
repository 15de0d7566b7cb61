"""A study: its answer, the Pareto plot, parallel coordinates, what parameters do, its trials."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dash import ClientsideFunction, Dash, Input, Output, State, dcc, html, no_update
from dash.development.base_component import Component

from autotune.core.records import StudyState
from autotune.core.standing import Standing
from autotune.service_ports import Desks, StudyDetail
from dashboards.figures import parallel
from dashboards.figures.cloud import Cloud, Window, cloud, known_metrics
from dashboards.figures.data import first_axes, label
from dashboards.figures.draw_cloud import draw_cloud
from dashboards.figures.effects import effects
from dashboards.web.pages import scheduling
from dashboards.web.pages import study_parts as parts
from dashboards.web.pages import study_trials as trials
from dashboards.web.parts import cards, later
from dashboards.web.parts.callbacks import answers
from dashboards.web.parts.notes import empty
from dashboards.web.parts.progress import progress_of, running
from dashboards.web.parts.words import aria
from dashboards.web.routing import Asked, Page
from dashboards.web.shell import URL

EVERY_MS, SELDOM_MS = 2000, 20_000
"""How often it is asked whether anything is new: of a study that runs, and of one that is over."""
EVERY_STANDING = [str(standing) for standing in Standing]
METRICS_ACROSS = ("saturation_qps", "utilization", "memory_mb")


def layout(desks: Desks, asked: Asked) -> Component:
    """What is seen at first, in one answer; the rest follows when the plot stands."""
    detail = desks.studies.study(asked["reference"])
    x, y = first_axes(known_metrics(detail.lines), detail.study.sla, detail.study.objectives)
    figure, note, front = plotted(detail, x, y, EVERY_STANDING)
    progress, every_ms = progress_shown(detail)
    return html.Div(
        [
            html.Div(parts.head(detail), id="study-head"),
            html.Div(progress, id="study-progress", **aria(live="polite")),
            cards.section(
                "Trade-offs",
                _plot_controls(detail, x, y),
                cards.plot(
                    "cloud",
                    "Pareto plot: each trial by two metrics, with the front, the SLA and the pick."
                    " The trials are in a table below.",
                    figure=figure,
                    note=note,
                    tall=True,
                ),
                html.Div(front, id="study-front"),
                name="trade-offs",
            ),
            cards.section(
                "Across parameters and metrics",
                html.Div(
                    later.empty(
                        "parallel",
                        cards.plot("parallel", "Parallel coordinates: each trial a line"),
                    ),
                    className="sideways",
                    tabIndex=0,
                    role="region",
                    **aria(label="Parallel coordinates"),
                ),
                name="across",
            ),
            cards.section("What each parameter does", *later.empty("effects"), name="effects"),
            trials.section(),
            dcc.Store(id="study-reference", data=str(detail.record.id)),
            dcc.Store(id="study-version", data=detail.version),
            dcc.Store(id="cloud-window"),
            dcc.Interval(id="study-tick", interval=every_ms),
        ],
        className="study",
    )


def progress_shown(detail: StudyDetail) -> tuple[Any, int]:
    """How far a running study is, and in how many milliseconds it is looked at again."""
    progress = None
    if detail.record.state is StudyState.RUNNING:
        progress = progress_of(detail.job, detail.record, parts.planned(detail))
    again = running(detail.job) or progress is not None
    return progress, EVERY_MS if again else SELDOM_MS


def _plot_controls(detail: StudyDetail, x: str, y: str) -> Component:
    metrics, standings = choices(detail)
    return html.Div(
        [
            _field("Across", dcc.Dropdown(metrics, x, id="axis-x", clearable=False)),
            _field("Up", dcc.Dropdown(metrics, y, id="axis-y", clearable=False)),
            html.Fieldset(
                [
                    html.Legend("Shown"),
                    dcc.Checklist(
                        id="standings", options=standings, value=EVERY_STANDING, inline=True
                    ),
                ],
                className="field wide",
            ),
        ],
        className="controls",
    )


def _field(title: str, control: Any) -> Component:
    return html.Div([html.Label(title, htmlFor=control.id), control], className="field")


# -------------------------------------------------------------------------------------- callbacks
def register(dash_app: Dash, desks: Desks) -> None:
    _watch(dash_app, desks)
    _draw(dash_app, desks)
    _tell(dash_app, desks)
    trials.register(dash_app, desks)
    for plot in ("cloud", "parallel"):
        _open_clicked(dash_app, plot)


def _watch(dash_app: Dash, desks: Desks) -> None:
    """Whether anything is new; everything else follows from what this says."""

    @answers(
        dash_app,
        Output("study-version", "data"),
        Output("study-head", "children"),
        Output("study-progress", "children"),
        Output("study-tick", "interval"),
        Output("axis-x", "options"),
        Output("axis-y", "options"),
        Output("standings", "options"),
        Input("study-tick", "n_intervals"),
        State("study-reference", "data"),
        State("study-version", "data"),
        prevent_initial_call=True,
    )
    def look(_tick: int | None, reference: str, before: str) -> tuple[Any, ...]:
        version = desks.studies.version(int(reference))
        if version == before and not version.endswith(StudyState.RUNNING):
            return (no_update,) * 7
        detail = desks.studies.study(reference)
        progress, every_ms = progress_shown(detail)
        if version == before:
            return no_update, no_update, progress, every_ms, *(no_update,) * 3
        metrics, standings = choices(detail)
        return detail.version, parts.head(detail), progress, every_ms, metrics, metrics, standings


def choices(detail: StudyDetail) -> tuple[list[Any], list[Any]]:
    """The metrics that an axis may have, and the standings that there are. What the axes have at
    first is among them, also where nothing is known yet: a choice that is none is taken back."""
    known = known_metrics(detail.lines)
    first = first_axes(known, detail.study.sla, detail.study.objectives)
    metrics = [{"label": label(metric), "value": metric} for metric in dict.fromkeys(known + first)]
    counts = {s: sum(line.standing is s for line in detail.lines) for s in Standing}
    return metrics, parts.standing_options(counts)


def _draw(dash_app: Dash, desks: Desks) -> None:
    @answers(
        dash_app,
        Output("cloud", "figure"),
        Output("cloud-note", "children"),
        Output("study-front", "children"),
        Input("axis-x", "value"),
        Input("axis-y", "value"),
        Input("standings", "value"),
        Input("cloud-window", "data"),
        Input("study-version", "data"),
        State("study-reference", "data"),
        prevent_initial_call=True,
    )
    def draw(
        x: str,
        y: str,
        standings: Sequence[str],
        zoomed: Mapping[str, Any] | None,
        _version: str,
        reference: str,
    ) -> tuple[Any, ...]:
        detail = desks.studies.study(reference)
        return plotted(detail, x, y, standings, window_of(zoomed, x, y))

    dash_app.clientside_callback(  # type: ignore[no-untyped-call]
        ClientsideFunction("autotune", "zoomed"),
        Output("cloud-window", "data"),
        Input("cloud", "relayoutData"),
        State("cloud", "figure"),
        State("cloud-window", "data"),
        prevent_initial_call=True,
    )


def plotted(
    detail: StudyDetail, x: str, y: str, standings: Sequence[str], window: Window | None = None
) -> tuple[Any, str, Any]:
    """The plot, what is said beside it, its front as a table."""
    found = the_cloud(detail, x, y, standings, window)
    version = f"{detail.record.id} {detail.version}"
    below: Mapping[str, Any] = {
        "parallel": {"version": version, "standings": list(standings)},
        "effects": {"version": version, "metric": y},
        trials.NAME: {"version": version},
    }
    words, front = parts.cloud_words(detail, found), parts.front(detail, found)
    return later.wanting(draw_cloud(found), below), words, front


def the_cloud(
    detail: StudyDetail, x: str, y: str, standings: Sequence[str], window: Window | None = None
) -> Cloud:
    return cloud(
        detail.lines,
        x,
        y,
        sla=detail.study.sla,
        objectives=detail.study.objectives,
        pick=parts.pick_of(detail),
        standings=[Standing(standing) for standing in standings],
        window=window,
    )


def window_of(zoomed: Mapping[str, Any] | None, x: str, y: str) -> Window | None:
    """What the reader has zoomed to, in the metrics' units (see ``static/dashboard.js``); None
    where all is shown, or where it was other axes that were zoomed."""
    if not zoomed or zoomed["axes"] != f"{x}|{y}":
        return None
    (x0, x1), (y0, y1) = zoomed["x"], zoomed["y"]
    return (min(x0, x1), max(x0, x1)), (min(y0, y1), max(y0, y1))


def _tell(dash_app: Dash, desks: Desks) -> None:
    @answers(
        dash_app,
        Output("parallel", "figure"),
        Output("parallel-note", "children"),
        later.wanted("parallel"),
        State("study-reference", "data"),
        prevent_initial_call=True,
    )
    def across(wanted: Mapping[str, Any] | None, reference: str) -> tuple[Any, Any]:
        if wanted is None:
            return no_update, no_update
        return parallel_shown(desks.studies.study(reference), wanted["standings"])

    @answers(
        dash_app,
        later.place("effects"),
        later.wanted("effects"),
        State("study-reference", "data"),
        prevent_initial_call=True,
    )
    def effect(wanted: Mapping[str, Any] | None, reference: str) -> Any:
        if wanted is None:
            return no_update
        detail = desks.studies.study(reference)
        found = effects(detail.lines, wanted["metric"])
        if not found and detail.record.state is StudyState.RUNNING:
            return no_update  # what stands there is not replaced by parts of another shape later
        if not found:
            return empty("No parameter was varied yet.", "This fills as trials end.")
        return parts.effects_shown(found, wanted["metric"])


def parallel_shown(detail: StudyDetail, standings: Sequence[str]) -> tuple[Any, str]:
    """The plot, and what is said beside it."""
    pick = parts.pick_of(detail)
    shown = [line for line in detail.lines if line.standing in standings]
    drawn = parallel.chosen(shown, pick, parts.decided_front(detail))
    metrics = (detail.study.sla.tightest_metric, *METRICS_ACROSS)
    figure = parallel.draw_parallel(parallel.axes_of(detail.lines, metrics), drawn, pick)
    if figure is None:
        return cards.NOTHING, "There is nothing to draw yet."
    picked = pick if pick in {line.number for line in drawn} else None
    return figure, parts.parallel_words(
        len(drawn), sum(bool(line.values) for line in shown), picked
    )


def _open_clicked(dash_app: Dash, plot: str) -> None:
    dash_app.clientside_callback(  # type: ignore[no-untyped-call]
        ClientsideFunction("autotune", "chosen"),
        Output(URL, "pathname", allow_duplicate=True),
        Input(plot, "clickData"),
        State(URL, "pathname"),
        prevent_initial_call=True,
    )


PAGE = Page(
    path="/study/{reference}",
    title="Study",
    layout=layout,
    register=register,
    acts=scheduling.ACTS,
)
