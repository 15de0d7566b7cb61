"""Parts of a study's page: its head, what plots are said to show, effects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dash import dcc, html
from dash.development.base_component import Component

from autotune.core.explain import shown
from autotune.core.records import PLANNED, StudyRecord, StudyState
from autotune.core.sla import ACCURACY, Limit
from autotune.core.standing import Standing
from autotune.core.wording import percent, share_words
from autotune.core.workload import Workload
from autotune.service_ports import StudyDetail, TrialLine
from dashboards.figures.cloud import Cloud
from dashboards.figures.data import label
from dashboards.figures.draw import told
from dashboards.figures.effects import Effect
from dashboards.web.parts import cards, notes
from dashboards.web.parts.acts import button
from dashboards.web.parts.states import badge, glyph, kind_of
from dashboards.web.parts.tables import Column, table
from dashboards.web.parts.words import aria, count, duration, when

FRONT_ROWS = 30


# ------------------------------------------------------------------------------ what is known of it
def line_of(detail: StudyDetail, number: int | None) -> TrialLine | None:
    """Numbers count from 0 without a gap, but for a study that was cut off."""
    if number is None:
        return None
    at = detail.lines[number] if number < len(detail.lines) else None
    if at is not None and at.number == number:
        return at
    return next((line for line in detail.lines if line.number == number), None)


def pick_of(detail: StudyDetail) -> int | None:
    return None if detail.decision is None else detail.decision.detail.get("pick")


def decided_front(detail: StudyDetail) -> Sequence[int]:
    return () if detail.decision is None else detail.decision.detail.get("front", ())


def planned(detail: StudyDetail) -> int | None:
    return (detail.record.environment or {}).get(PLANNED)


# ------------------------------------------------------------------------------------------- head
def head(detail: StudyDetail) -> list[Component | None]:
    record = detail.record
    pick = line_of(detail, pick_of(detail))
    return [
        html.Nav(
            [dcc.Link("Studies", href="/"), " / ", f"run {record.id}"],
            className="eyebrow",
            **aria(label="Where this is"),
        ),
        html.Div(
            [
                html.H1(record.name, tabIndex=-1),
                badge(record.state),
                html.Span(_times(record), className="quiet"),
            ],
            className="title",
        ),
        _stopped(record),
        _answer(detail, pick),
        html.Div(
            [
                html.Section(cards.facts(_asked_for(detail)), **aria(label="What was asked for")),
                *([] if pick is None else [_figures_of_pick(detail, pick)]),
            ],
            className="head-pair",
        ),
        _reasons(detail),
        downloads(record, pick.number if pick is not None else None),
    ]


def _times(record: StudyRecord) -> list[Any]:
    started: list[Any] = ["started ", when(record.created_at)]
    if record.ended_at is not None:
        started.append(f", took {duration(record.ended_at - record.created_at)}")
    return started


def _stopped(record: StudyRecord) -> Component | None:
    if record.state not in (StudyState.FAILED, StudyState.INTERRUPTED):
        return None
    next_step = html.P(
        ["Go on where it stopped: ", notes.command("autotune tune STUDY.yaml --resume")]
    )
    return notes.notice(record.reason or f"The study is {record.state}.", next_step)


def _answer(detail: StudyDetail, pick: TrialLine | None) -> Component:
    metric = detail.study.sla.tightest_metric
    if pick is not None:
        which = "the configuration in service" if pick.number == 0 else f"trial {pick.number}"
        words: list[Any] = [
            "The pick is ",
            dcc.Link(which, href=f"/study/{detail.record.id}/trial/{pick.number}"),
            f" ({pick.candidate or 'the model’s own settings'}): {label(metric)}"
            f" {told(pick, metric)}.",
        ]
        return html.P(words, className="answer good")
    if detail.record.state is StudyState.RUNNING or detail.decision is None:
        return html.P("There is no decision yet.", className="answer")
    helping = (detail.decision.detail.get("remedy") or {}).get("words", "")
    nearest = detail.decision.detail.get("nearest_miss")
    said: list[Any] = ["No candidate is known to meet the SLA."]
    if nearest is not None:
        href = f"/study/{detail.record.id}/trial/{nearest}"
        said += [" The nearest is ", dcc.Link(f"trial {nearest}", href=href), "."]
    return html.P([*said, f" {helping}" if helping else ""], className="answer bad")


def _asked_for(detail: StudyDetail) -> list[tuple[str, Any]]:
    study = detail.study
    searched = planned(detail)
    of = "" if searched is None else f" of {searched:,} planned"
    return [
        ("model", study.model.name),
        ("SLA", ", ".join(_limit(limit) for limit in study.sla.limits)),
        ("workload", _workload(study.workload)),
        ("pick rule", str(study.pick).replace("_", " ")),
        ("trials", f"{len(detail.lines):,}{of}"),
    ]


def _limit(limit: Limit) -> str:
    if limit.metric.endswith("_ms"):
        return f"{limit.metric.removesuffix('_ms')} ≤ {limit.limit:g} ms"
    name = "accuracy drop" if limit.metric == ACCURACY else "errors"
    return f"{name} ≤ {share_words(limit.limit)}"


def _workload(workload: Workload) -> str:
    rate = f"{workload.target_qps:g} requests/s"
    if workload.headroom != 1:
        rate += f" × {workload.headroom:g} = {workload.offered_qps:g}"
    return f"{rate}, {workload.arrival.kind} arrivals"


def _figures_of_pick(detail: StudyDetail, pick: TrialLine) -> Component:
    return html.Section(_figures(detail, pick), **aria(label="Figures of the pick"))


def _figures(detail: StudyDetail, pick: TrialLine) -> Component:
    wanted = (
        detail.study.sla.tightest_metric,
        "saturation_qps",
        "utilization",
        "memory_mb",
        "instances",
        ACCURACY,
        "energy_j_per_1000",
        "cost_per_1000",
    )
    known = [metric for metric in wanted if pick.metric(metric) is not None]
    return cards.figures(pick, line_of(detail, 0), known)


def _reasons(detail: StudyDetail) -> Component | None:
    reasons = [] if detail.decision is None else list(detail.decision.detail.get("reasons", ()))
    if not reasons:
        return None
    return html.Details(
        [
            html.Summary("Why: how it was decided"),
            html.Ul([html.Li(reason) for reason in reasons], className="reasons"),
        ],
        className="why-details",
    )


def downloads(record: StudyRecord, number: int | None) -> Component:
    """Of the pick, where there is one (any other trial's stand on its own page), and what may be
    done with the study."""
    links = [_link("Report (HTML)", f"/api/v1/studies/{record.id}/report.html")]
    if number is not None:
        links = [
            _link("Repository of the pick (ZIP)", _of_trial(record.id, number, "repository.zip")),
            _link("config.pbtxt of the pick", _of_trial(record.id, number, "config.pbtxt")),
            *links,
        ]
    again = button("schedule", record.id, "Schedule …")
    return html.Div([*links, again], className="actions")


def _of_trial(study_id: int, number: int, file: str) -> str:
    return f"/api/v1/studies/{study_id}/trials/{number}/{file}"


def _link(words: str, href: str) -> Component:
    """A file: the browser asks the server for it, not Dash."""
    return html.A(words, href=href, className="action", download="")


# ------------------------------------------------------------------------------------------- plots
def standing_options(counts: Mapping[Standing, int]) -> list[dict[str, Any]]:
    return [
        {
            "value": str(standing),
            "label": html.Span(
                [
                    html.Span(glyph(standing), className=f"glyph {kind_of(standing)}"),
                    f" {standing}",
                    html.Small(f" {counts[standing]:,}") if standing in counts else None,
                ]
            ),
        }
        for standing in Standing
        if not counts or counts.get(standing)
    ]


def cloud_words(detail: StudyDetail, found: Cloud) -> str:
    drawn = f"{count(sum(found.counts.values()), 'trial')} by {label(found.x)} and {label(found.y)}"
    said = [f"{drawn}, {count(len(found.front), 'trial')} on the front."]
    if found.thinned:
        said.append("Where points lie over one another one stands for all: zoom in to see them.")
    if found.without:
        said.append(f"{count(found.without, 'trial has', 'trials have')} no value on these axes.")
    if not detail.lines:
        return "No trial has ended yet; the plot fills as they do."
    return " ".join(said)


def front(detail: StudyDetail, found: Cloud) -> Component | None:
    """The front as a table: the plot's points for those who do not use a pointer."""
    if not found.front:
        return None
    columns = (
        Column(key="trial", title="Trial"),
        Column(key="candidate", title="Candidate"),
        Column(key="x", title=label(found.x), number=True),
        Column(key="y", title=label(found.y), number=True),
    )
    rows = [
        {
            "trial": dcc.Link(
                f"trial {line.number}", href=f"/study/{detail.record.id}/trial/{line.number}"
            ),
            "candidate": str(line.candidate) or "as it stands",
            "x": told(line, found.x),
            "y": told(line, found.y),
            "class": "picked" if line.number == found.pick else "",
        }
        for line in found.front[:FRONT_ROWS]
    ]
    rest = len(found.front) - len(rows)
    more = html.P(f"and {rest:,} more in the table of trials", className="quiet below")
    return html.Details(
        [
            html.Summary(f"The front as a table ({count(len(found.front), 'trial')})"),
            table("front", "The front", columns, rows),
            more if rest > 0 else None,
        ],
        className="front-details",
    )


def parallel_words(drawn: int, measured: int, pick: int | None) -> str:
    if drawn < measured:
        with_pick = "" if pick is None else " and the pick (thick)"
        said = (
            f"{drawn:,} of {measured:,} measured trials, evenly chosen, with the front{with_pick}."
        )
    else:
        said = f"{count(drawn, 'measured trial')}." + (
            "" if pick is None else " The thick line is the pick."
        )
    return f"{said} Click a line for its trial."


# ----------------------------------------------------------------------------------------- effects
def effects_shown(found: Sequence[Effect], metric: str) -> Component:
    most = max(level.median for effect in found for level in effect.levels)
    return html.Div(
        [
            html.P(
                f"{label(metric).capitalize()} by each parameter's value, over all judged trials:"
                " the median, and the middle half of the trials. The share is how much of the"
                " spread lies between a parameter's values; what parameters do together counts for"
                " each.",
                className="quiet",
            ),
            html.Div([_effect(effect, metric, most) for effect in found], className="effects"),
        ]
    )


def _effect(effect: Effect, metric: str, most: float) -> Component:
    columns = (
        Column(key="value", title="value"),
        Column(key="median", title="median", number=True),
        Column(key="bar", title=""),
        Column(key="half", title="middle half", number=True),
        Column(key="trials", title="trials", number=True),
    )
    rows = [
        {
            "value": level.value,
            "median": shown(metric, level.median),
            "bar": html.Meter(min="0", max=str(most), value=str(level.median)),
            "half": f"{shown(metric, level.low)} – {shown(metric, level.high)}",
            "trials": f"{level.trials:,}",
        }
        for level in effect.levels
    ]
    share = percent(effect.share, 0).lstrip("+")
    return html.Div(
        [
            html.H3([effect.parameter, html.Small(f" {share} of the spread", className="quiet")]),
            table("effect", f"Effect of {effect.parameter}", columns, rows, dense=True),
        ],
        className="effect",
    )
