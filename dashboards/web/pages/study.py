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
from dashboards.web.parts import cards
from dashboards.web.parts.callbacks import answers
from dashboards.web.parts.notes import empty
from dashboards.web.parts.progress import progress_of, running
from dashboards.web.parts.words import aria
from dashboards.web.routing import Asked, Page
from dashboards.web.shell import URL

EVERY_MS, SELDOM_MS = 2000, 20_000
"""How often it is asked whether anything is new: of a study that runs, and of one that is over."""
METRICS_ACROSS = ("saturation_qps", "utilization", "memory_mb")


def layout(desks: Desks, asked: Asked) -> Component:
    """The frame alone: what is read of the study comes with the first callback, so that the page
    stands at once however large the study is."""
    study_id = _id_of(desks, asked["reference"])
    return html.Div(
        [
            html.Div(html.H1("Study", tabIndex=-1), id="study-head"),
            html.Div(id="study-progress", **aria(live="polite")),
            cards.section(
                "Trade-offs",
                _plot_controls(),
                cards.plot(
                    "cloud",
                    "Pareto plot: each trial by two metrics, with the front, the SLA and the pick."
                    " The trials are in a table below.",
                    tall=True,
                ),
                html.Div(id="study-front"),
                name="trade-offs",
            ),
            cards.section(
                "Across parameters and metrics",
                html.Div(
                    cards.plot("parallel", "Parallel coordinates: each trial a line"),
                    className="sideways",
                    tabIndex=0,
                    role="region",
                    **aria(label="Parallel coordinates"),
                ),
                name="across",
            ),
            cards.section("What each parameter does", html.Div(id="study-effects"), name="effects"),
            trials.section(),
            dcc.Store(id="study-reference", data=str(study_id)),
            dcc.Store(id="study-version"),
            dcc.Store(id="cloud-window"),
            dcc.Store(id="cloud-drawn"),
            dcc.Store(id="cloud-metric"),
            dcc.Interval(id="study-tick", interval=EVERY_MS),
        ],
        className="study",
    )


def _id_of(desks: Desks, reference: str) -> int:
    """By id or name; InputRefused if there is no such study."""
    if not (reference.isascii() and reference.isdecimal()):
        return desks.studies.study(reference).record.id
    desks.studies.version(int(reference))
    return int(reference)


def _plot_controls() -> Component:
    return html.Div(
        [
            _field("Across", dcc.Dropdown(id="axis-x", clearable=False)),
            _field("Up", dcc.Dropdown(id="axis-y", clearable=False)),
            html.Fieldset(
                [
                    html.Legend("Shown"),
                    dcc.Checklist(
                        id="standings",
                        options=parts.standing_options({}),
                        value=[str(s) for s in Standing],
                        inline=True,
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
        Output("axis-x", "value"),
        Output("axis-y", "options"),
        Output("axis-y", "value"),
        Output("standings", "options"),
        Input("study-reference", "data"),
        Input("study-tick", "n_intervals"),
        State("study-version", "data"),
        State("axis-x", "value"),
        State("axis-y", "value"),
    )
    def look(
        reference: str, _tick: int | None, before: str | None, x: str | None, y: str | None
    ) -> tuple[Any, ...]:
        version = desks.studies.version(int(reference))
        if version == before and not version.endswith(StudyState.RUNNING):
            return (no_update,) * 9
        detail = desks.studies.study(reference)
        progress = None
        if detail.record.state is StudyState.RUNNING:
            progress = progress_of(detail.job, detail.record, parts.planned(detail))
        every = EVERY_MS if running(detail.job) or progress is not None else SELDOM_MS
        if version == before:
            return no_update, no_update, progress, every, *(no_update,) * 5
        return detail.version, parts.head(detail), progress, every, *choices(detail, x, y)


def choices(detail: StudyDetail, x: str | None, y: str | None) -> tuple[Any, ...]:
    """Options and value of either axis, and the standings that there are; what was chosen stays."""
    metrics = known_metrics(detail.lines)
    options = [{"label": label(metric), "value": metric} for metric in metrics]
    counts = {s: sum(line.standing is s for line in detail.lines) for s in Standing}
    if x in metrics and y in metrics:
        return options, no_update, options, no_update, parts.standing_options(counts)
    x, y = first_axes(metrics, detail.study.sla, detail.study.objectives)
    return options, x, options, y, parts.standing_options(counts)


def _draw(dash_app: Dash, desks: Desks) -> None:
    @answers(
        dash_app,
        Output("cloud", "figure"),
        Output("cloud-note", "children"),
        Output("study-front", "children"),
        Output("cloud-drawn", "data"),
        Output("cloud-metric", "data"),
        Input("axis-x", "value"),
        Input("axis-y", "value"),
        Input("standings", "value"),
        Input("cloud-window", "data"),
        Input("study-version", "data"),
        State("study-reference", "data"),
        State("cloud-drawn", "data"),
        State("cloud-metric", "data"),
        prevent_initial_call=True,
    )
    def draw(  # noqa: PLR0913, PLR0917 - Dash gives them by place
        x: str | None,
        y: str | None,
        standings: Sequence[str],
        zoomed: Mapping[str, Any] | None,
        version: str | None,
        reference: str,
        drawn: str | None,
        metric: str | None,
    ) -> tuple[Any, ...]:
        """What is below the plot is made when the plot stands: it is what people wait for."""
        if x is None or y is None:
            return (no_update,) * 5
        detail = desks.studies.study(reference)
        found = the_cloud(detail, x, y, standings, window_of(zoomed, x, y))
        return (
            draw_cloud(found),
            parts.cloud_words(detail, found),
            parts.front(detail, found),
            no_update if version == drawn else version,
            no_update if y == metric else y,
        )

    dash_app.clientside_callback(  # type: ignore[no-untyped-call]
        ClientsideFunction("autotune", "zoomed"),
        Output("cloud-window", "data"),
        Input("cloud", "relayoutData"),
        State("cloud", "figure"),
        State("cloud-window", "data"),
        prevent_initial_call=True,
    )


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
        Input("cloud-drawn", "data"),
        Input("standings", "value"),
        State("study-reference", "data"),
        prevent_initial_call=True,
    )
    def across(version: str | None, standings: Sequence[str], reference: str) -> tuple[Any, Any]:
        if version is None:
            return no_update, no_update
        detail = desks.studies.study(reference)
        pick = parts.pick_of(detail)
        shown = [line for line in detail.lines if line.standing in standings]
        drawn = parallel.chosen(shown, pick, parts.decided_front(detail))
        metrics = (detail.study.sla.tightest_metric, *METRICS_ACROSS)
        axes = parallel.axes_of(detail.lines, metrics)
        figure = parallel.draw_parallel(axes, drawn, pick)
        picked = pick if pick in {line.number for line in drawn} else None
        if figure is None:
            return cards.NOTHING, "There is nothing to draw yet."
        measured = sum(bool(line.values) for line in shown)
        return figure, parts.parallel_words(len(drawn), measured, picked)

    @answers(
        dash_app,
        Output("study-effects", "children"),
        Input("cloud-drawn", "data"),
        Input("cloud-metric", "data"),
        State("study-reference", "data"),
        prevent_initial_call=True,
    )
    def effect(version: str | None, metric: str | None, reference: str) -> Any:
        if version is None:
            return no_update
        detail = desks.studies.study(reference)
        of = metric or detail.study.sla.tightest_metric
        found = effects(detail.lines, of)
        if not found:
            return empty("No parameter was varied yet.", "This fills as trials end.")
        return parts.effects_shown(found, of)


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
