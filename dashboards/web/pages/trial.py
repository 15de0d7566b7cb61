"""A trial: why it is or is not the pick, how its requests fared, its configuration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dash import Dash, Input, Output, State, dcc, html, no_update
from dash.development.base_component import Component

from autotune.core.bottleneck import breakdown
from autotune.core.errors import AutotuneError, InputRefused
from autotune.core.measurement import Measurement
from autotune.core.records import StudyState
from autotune.core.sla import Sla
from autotune.service_ports import Desks
from dashboards.figures import draw
from dashboards.figures.course import course, draw_course, told_gauges
from dashboards.figures.data import Entry, StepSplit, batches, entries, split, step_split
from dashboards.figures.latency import draw_latencies
from dashboards.web.pages import proposing
from dashboards.web.pages import trial_parts as parts
from dashboards.web.parts import cards, configs, notes
from dashboards.web.parts.callbacks import answers
from dashboards.web.parts.words import aria, count
from dashboards.web.routing import Asked, Page

EVERY_MS = 3000
_NOTHING: Any = cards.NOTHING
_PLOTS = ("latency", "course", "split", "batches")


def layout(desks: Desks, asked: Asked) -> Component:
    """Of this trial, the pick and the configuration in service: the others are not read."""
    seen = see(desks, asked["reference"], number_of(asked["number"]))
    running = seen.outline.record.state is StudyState.RUNNING
    return html.Div(
        [
            html.Div(parts.head(seen), id="trial-head"),
            html.Div(parts.why(seen), id="trial-why"),
            *_plots(seen),
            cards.section(
                "Configuration",
                html.Div(html.P("Reading …", className="quiet"), id="trial-config"),
                name="configuration",
            ),
            html.Div(parts.measurements(seen), id="trial-measurements"),
            dcc.Store(id="trial-of", data=[str(seen.study_id), seen.number]),
            dcc.Store(id="trial-version", data=stamp(seen)),
            dcc.Interval(id="trial-tick", interval=EVERY_MS, disabled=not running),
        ],
        className="trial",
    )


def number_of(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 19):
        raise InputRefused("a trial is named by its number", value=text)
    return int(text)


def see(desks: Desks, reference: str, number: int) -> parts.Seen:
    outline = desks.studies.outline(reference)
    sla, study_id = outline.study.sla, outline.record.id
    entry = read(desks, study_id, number, sla, samples=False)
    pick = None if outline.decision is None else outline.decision.pick
    return parts.Seen(
        outline=outline,
        entry=entry,
        pick=_other(desks, study_id, pick, sla, entry),
        first=_other(desks, study_id, 0, sla, entry),
    )


def read(desks: Desks, study_id: int, number: int, sla: Sla, *, samples: bool) -> Entry:
    (entry,) = entries([desks.studies.trial(study_id, number, samples=samples)], sla)
    return entry


def _other(desks: Desks, study_id: int, number: int | None, sla: Sla, known: Entry) -> Entry | None:
    if number is None or number == known.number:
        return None if number is None else known
    try:
        return read(desks, study_id, number, sla, samples=False)
    except AutotuneError:
        return None


def stamp(seen: parts.Seen) -> str:
    """Another wherever this page would show something else."""
    trial, record = seen.entry.trial, seen.outline.record
    pick = None if seen.pick is None else seen.pick.number
    believed = sum(each.valid for each in trial.measurements)
    more = seen.number == record.trials - 1
    told = (trial.state, len(trial.measurements), believed, pick, record.state, more)
    return " ".join(map(str, told))


def _plots(seen: parts.Seen) -> list[Component]:
    """Nothing of a trial that was never measured, and never will be."""
    over = seen.outline.record.state is not StudyState.RUNNING
    if over and not seen.entry.trial.measurements:
        return []
    return [
        cards.section(
            "How its requests fared",
            html.Div(
                [
                    html.Label("Measurement", htmlFor="trial-measurement"),
                    dcc.Dropdown(
                        id="trial-measurement",
                        options=options(seen.entry),
                        value=parts.shown_first(seen.entry),
                        clearable=False,
                        searchable=False,
                    ),
                ],
                className="field wide",
            ),
            html.H3("Latency, by the share of requests"),
            cards.plot(
                "trial-latency", "Latency distribution with percentiles and the SLA’s limit"
            ),
            html.H3("Over the window"),
            cards.plot(
                "trial-course",
                "Latency, requests in flight, throughput and utilization over the window",
                tall=True,
            ),
            html.Div(
                [
                    html.Div(
                        [
                            html.H3("Where the time goes"),
                            cards.plot("trial-split", "Mean time in queue and in compute, by step"),
                        ]
                    ),
                    html.Div([html.H3("Batches"), cards.plot("trial-batches", "Batch sizes")]),
                ],
                className="pair",
            ),
            html.Div(id="trial-gauges"),
            name="fared",
        )
    ]


def options(entry: Entry) -> list[dict[str, Any]]:
    return [
        {"value": at, "label": parts.measurement_words(at, each)}
        for at, each in enumerate(entry.trial.measurements)
    ]


# -------------------------------------------------------------------------------------- callbacks
def register(dash_app: Dash, desks: Desks) -> None:
    _watch(dash_app, desks)
    _draw(dash_app, desks)

    @answers(dash_app, Output("trial-config", "children"), Input("trial-of", "data"))
    def config(of: Sequence[Any]) -> Any:
        study_id, number = int(of[0]), int(of[1])
        try:
            found = desks.studies.config(study_id, number)
        except AutotuneError as error:
            return notes.failure(error)
        return config_shown(found.diff, found.config)


def config_shown(diff: str, texts: Any) -> list[Component]:
    same = html.P("It is the configuration in service.", className="quiet")
    told = "Against the configuration in service, as the study found it"
    return [
        html.H3(told),
        configs.diff(diff, told) if diff else same,
        configs.texts(texts, "trial-config-text"),
    ]


def _watch(dash_app: Dash, desks: Desks) -> None:
    """While its study runs: what is shown follows when something of it has changed."""

    @answers(
        dash_app,
        Output("trial-version", "data"),
        Output("trial-head", "children"),
        Output("trial-why", "children"),
        Output("trial-measurements", "children"),
        Output("trial-measurement", "options"),
        Output("trial-measurement", "value"),
        Output("trial-tick", "disabled"),
        Input("trial-tick", "n_intervals"),
        State("trial-of", "data"),
        State("trial-version", "data"),
        State("trial-measurement", "value"),
        prevent_initial_call=True,
    )
    def look(_tick: int, of: Sequence[Any], before: str, chosen: int | None) -> tuple[Any, ...]:
        seen = see(desks, of[0], int(of[1]))
        now = stamp(seen)
        if now == before:
            return (no_update,) * 7
        running = seen.outline.record.state is StudyState.RUNNING
        at = parts.shown_first(seen.entry) if chosen is None else no_update
        return (
            now,
            parts.head(seen),
            parts.why(seen),
            parts.measurements(seen),
            options(seen.entry),
            at,
            not running,
        )


def _draw(dash_app: Dash, desks: Desks) -> None:
    @answers(
        dash_app,
        *(Output(f"trial-{name}", "figure") for name in _PLOTS),
        *(Output(f"trial-{name}-note", "children") for name in _PLOTS),
        Output("trial-gauges", "children"),
        Input("trial-measurement", "value"),
        State("trial-of", "data"),
    )
    def draw_all(at: int | None, of: Sequence[Any]) -> tuple[Any, ...]:
        outline = desks.studies.outline(of[0])
        sla = outline.study.sla
        entry = read(desks, int(of[0]), int(of[1]), sla, samples=True)
        found = entry.trial.measurements
        if at is None or at >= len(found):
            return (*(_NOTHING,) * 4, *("Nothing was measured.",) * 4, None)
        return (*figures(entry, found[at], sla), *words(found[at]), gauges(found[at]))


def figures(entry: Entry, measurement: Measurement, sla: Sla) -> tuple[Any, ...]:
    tightest = min(sla.latency_ms.values())
    steps = _steps(entry, measurement)
    whole = split(f"trial {entry.number}", measurement)
    where = (
        draw.draw_step_splits([steps])
        if steps is not None
        else draw.draw_splits([] if whole is None else [whole])
    )
    drawn = (
        draw_latencies([(f"trial {entry.number}", measurement)], sla),
        draw_course(course(measurement), tightest),
        where,
        draw.draw_batches(batches(measurement)),
    )
    return tuple(_NOTHING if figure is None else figure for figure in drawn)


def _steps(entry: Entry, measurement: Measurement) -> StepSplit | None:
    found = breakdown(measurement, entry.candidate)
    return None if found is None else step_split(f"trial {entry.number}", found)


def words(measurement: Measurement) -> tuple[Any, ...]:
    """What is said beside the plots, and why one is empty."""
    load = measurement.load
    exact = "From the HDR histogram" if load.histogram else "Percentiles alone"
    latency = f"{exact} of {count(load.completed, 'request')}, from the scheduled time."
    over = (
        "Latency of the requests by when they were due; in flight: due and not yet answered."
        if load.samples is not None
        else "The raw times of its requests are not stored: there is telemetry alone."
    )
    return (
        latency if load.latency is not None else "No request was answered.",
        over,
        _split_words(measurement),
        _batch_words(measurement),
    )


def _split_words(measurement: Measurement) -> str:
    if measurement.server is None:
        return "The server gave no statistics."
    told = "Means per request, from the server’s statistics over the window."
    return f"{told} Hatched: in a step’s queue." if measurement.server.steps else told


def _batch_words(measurement: Measurement) -> Any:
    server = measurement.server
    if server is None:
        return "The server gave no statistics."
    if server.steps:
        means = [
            f"{name} {window.mean_batch:.1f}"
            for name, window in server.steps.items()
            if window.mean_batch is not None
        ]
        return f"Mean batch by step: {', '.join(means)}." if means else "No step told its batches."
    if not server.batches:
        return "No batch was executed."
    if len(server.batches) == 1:
        size, stat = next(iter(server.batches.items()))
        executions = count(stat.executions, "execution")
        return f"Every batch was of {size}: {executions}, {stat.compute_ms:.2f} ms each."
    return f"{count(server.executions, 'execution')}, mean batch {server.mean_batch or 0:.2f}."


def gauges(measurement: Measurement) -> Component | None:
    found = told_gauges(measurement)
    if not found:
        return None
    rows = [
        (name, [value, html.Small(f" {what}", className="quiet")]) for name, value, what in found
    ]
    return html.Details(
        [html.Summary("The GPU over the window"), cards.facts(rows)], **aria(label="Gauges")
    )


PAGE = Page(
    path="/study/{reference}/trial/{number}",
    title="Trial",
    layout=layout,
    register=register,
    acts=proposing.ACTS,
)
