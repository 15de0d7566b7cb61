"""A schedule's run: the champion, whether it is still what it was, who challenged it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dash import Dash, dcc, html
from dash.development.base_component import Component

from autotune.core.errors import InputRefused
from autotune.core.explain import shown
from autotune.core.intervals import Interval
from autotune.core.measurement import METRICS
from autotune.core.schedules import NightRun, RunState
from autotune.core.wording import change_span, percent, span
from autotune.service_ports import Desks
from dashboards.figures.data import label
from dashboards.web.pages.schedules import href
from dashboards.web.parts import cards, live, notes
from dashboards.web.parts.states import badge
from dashboards.web.parts.tables import Column, table
from dashboards.web.parts.words import UNKNOWN, aria, duration, when
from dashboards.web.routing import Asked, Page


def layout(desks: Desks, asked: Asked) -> Component:
    run = desks.schedules.run(_id(asked["run"]))
    return html.Div(
        [
            html.Nav(
                [
                    dcc.Link("Schedules", href="/schedules"),
                    " / ",
                    dcc.Link(run.schedule, href=href(run.schedule)),
                    f" / run {run.id}",
                ],
                className="eyebrow",
                **aria(label="Where this is"),
            ),
            live.place("run", run.id, first=told(run)),
        ]
    )


def _id(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 19):
        raise InputRefused("a run is named by its number", value=text)
    return int(text)


def register(dash_app: Dash, desks: Desks) -> None:
    live.watch(dash_app, desks, "run", lambda d, run_id: d.schedules.run(int(run_id)), told)


def told(run: NightRun) -> list[Component | None]:
    night = run.summary
    return [
        html.Div(
            [
                html.H1(["Run of ", when(run.scheduled_for)], tabIndex=-1),
                badge(run.outcome or run.state),
                html.Span(_times(run), className="quiet"),
            ],
            className="title",
        ),
        html.P(run.reason or _SAID[run.state], className=f"answer {_kind(run)}"),
        _links(run),
        notes.notice(str(night["note"])) if night.get("note") else None,
        _drift(night.get("drift"), run),
        _challenge(night),
        _sides(night),
        _searched(night),
    ]


_SAID = {
    RunState.QUEUED: "It waits for its turn.",
    RunState.RUNNING: "It is under way: the champion is measured first.",
    RunState.DONE: "It is over.",
    RunState.FAILED: "It failed.",
    RunState.STOPPED: "It was stopped; what it had measured is kept.",
    RunState.MISSED: "Its window was over before it could begin.",
}


def _kind(run: NightRun) -> str:
    bad = run.state is RunState.FAILED or run.outcome in ("no_pick", "rolled_back")
    return "bad" if bad else "good" if run.outcome is not None else ""


def _times(run: NightRun) -> list[Any]:
    if run.started_at is None:
        return []
    took = "" if run.ended_at is None else f", took {duration(run.ended_at - run.started_at)}"
    return ["began ", when(run.started_at), took]


def _links(run: NightRun) -> Component | None:
    links = []
    if run.study_id is not None:
        links.append(dcc.Link("Its study", href=f"/study/{run.study_id}", className="action"))
        challenger = (run.summary.get("challenger") or {}).get("trial")
        if challenger:
            where = f"/study/{run.study_id}/compare?a=0&b={challenger}"
            links.append(dcc.Link("Champion and challenger", href=where, className="action"))
    if run.promotion_id is not None:
        where = f"/promotions/{run.promotion_id}"
        links.append(dcc.Link(f"Promotion {run.promotion_id}", href=where, className="action main"))
    return html.Div(links, className="actions") if links else None


# ------------------------------------------------------------------------------------------ drift
def _drift(drift: Mapping[str, Any] | None, run: NightRun) -> Component | None:
    if drift is None:
        if "champion" not in run.summary:
            return None
        first = notes.empty(
            "There is nothing to hold the champion against.",
            "It was not measured before under this workload; the next run has tonight’s figures.",
        )
        return cards.section("Is the champion still what it was?", first, name="drift")
    return cards.section(
        "Is the champion still what it was?",
        html.P(_drift_words(drift), className=f"answer {_drift_kind(drift)}"),
        _causes(drift),
        _shifts(drift),
        html.P(
            [
                "Against ",
                dcc.Link(f"study {drift['since']}", href=f"/study/{drift['since']}"),
                ", ",
                when(drift.get("since_at")),
            ],
            className="quiet below",
        ),
        name="drift",
    )


def _drift_words(drift: Mapping[str, Any]) -> str:
    if not drift.get("drifted"):
        return "Yes: no drift is seen."
    way = "worse" if drift.get("worse") else "better"
    return f"No, it is {way}: {drift.get('words', '')}."


def _drift_kind(drift: Mapping[str, Any]) -> str:
    return "bad" if drift.get("worse") else "good"


def _causes(drift: Mapping[str, Any]) -> Component | None:
    if not drift.get("drifted"):
        return None
    causes = drift.get("causes") or []
    listed = html.Ul(
        [html.Li([each["words"], " ", badge(each["likelihood"])]) for each in causes],
        className="reasons",
    )
    return html.Div(
        [
            html.H3("Likely cause" if len(causes) == 1 else "Likely causes"),
            listed,
            html.P(drift.get("sure"), className="quiet"),
        ]
    )


def _shifts(drift: Mapping[str, Any]) -> Component:
    columns = (
        Column(key="metric", title="Metric"),
        Column(key="relation", title="It is"),
        Column(key="before", title="Before", number=True),
        Column(key="after", title="Tonight", number=True),
        Column(key="effect", title="Change", number=True),
        Column(key="interval", title="95% interval", number=True),
    )
    rows = [
        {
            "metric": label(each["metric"]),
            "relation": badge("the same" if each["relation"] == "tie" else each["relation"]),
            "before": value_of(each["metric"], each["before"]),
            "after": value_of(each["metric"], each["after"]),
            "effect": percent(each["effect"]),
            "interval": change_span(Interval(*each["interval"])),
        }
        for each in drift.get("shifts") or []
    ]
    return table("shifts", "What the champion was and is", columns, rows)


def value_of(metric: str, value: float | None) -> str:
    if value is None:
        return UNKNOWN
    return shown(metric, value) if metric in METRICS else f"{value:g}"


# -------------------------------------------------------------------------------------- challenger
def _challenge(night: Mapping[str, Any]) -> Component | None:
    verdict = night.get("verdict")
    if verdict is None:
        return None
    reasons = list(verdict.get("reasons") or [])
    promoted = bool(verdict.get("promoted"))
    first = reasons[0] if reasons else ""
    words = f"The challenger wins: {first}." if promoted else f"The champion stays: {first}."
    return cards.section(
        "The challenge",
        html.P(words, className=f"answer {'good' if promoted else ''}"),
        html.Ul([html.Li(each) for each in reasons[1:]], className="reasons")
        if reasons[1:]
        else None,
        _comparisons(night.get("comparisons") or []),
        html.P(night.get("not_compared"), className="quiet") if night.get("not_compared") else None,
        name="challenge",
    )


def _comparisons(found: Sequence[Mapping[str, Any]]) -> Component | None:
    if not found:
        return None
    columns = (
        Column(key="metric", title="Metric"),
        Column(key="relation", title="The challenger is"),
        Column(key="effect", title="Change", number=True),
        Column(key="interval", title="95% interval", number=True),
        Column(key="pairs", title="Pairs of runs", number=True),
    )
    rows = [
        {
            "metric": label(each["metric"]),
            "relation": badge(each["relation"]),
            "effect": percent(each["effect"]),
            "interval": change_span(Interval(*each["interval"])),
            "pairs": str(each["pairs"]),
        }
        for each in found
    ]
    return table("comparisons", "Runs of champion and challenger in turn", columns, rows)


def _sides(night: Mapping[str, Any]) -> Component | None:
    sides = [
        (name, night.get(key))
        for name, key in (("Champion", "champion"), ("Challenger", "challenger"))
    ]
    known = [(name, side) for name, side in sides if side]
    if not known:
        return None
    names = list(dict.fromkeys(metric for _, side in known for metric in side.get("figures") or {}))
    columns = (
        Column(key="what", title=""),
        *(Column(key=name, title=f"{name} (trial {side['trial']})") for name, side in known),
    )
    rows = [
        {
            "what": "candidate",
            **{name: candidate_words(side.get("candidate")) for name, side in known},
        },
        {"what": "SLA", **{name: _sla(side) for name, side in known}},
        *(
            {"what": label(metric), **{name: _figure(metric, side) for name, side in known}}
            for metric in names
        ),
    ]
    return cards.section(
        "Champion and challenger" if len(known) > 1 else "The champion",
        table("sides", "Champion and challenger", columns, rows),
        name="sides",
    )


def candidate_words(candidate: Mapping[str, Any] | None) -> str:
    if not candidate:
        return "the model’s own settings"
    return ", ".join(f"{name}={value}" for name, value in candidate.items())


def _sla(side: Mapping[str, Any]) -> Any:
    if side.get("sla") is None:
        return [badge(side.get("state", "unknown")), f" {side.get('reason', '')}"]
    return [badge(side["sla"]), html.Small(f" {'; '.join(side.get('sla_reasons') or [])}")]


def _figure(metric: str, side: Mapping[str, Any]) -> str:
    found = (side.get("figures") or {}).get(metric)
    if not found:
        return UNKNOWN
    told_ = value_of(metric, found.get("value"))
    ends = found.get("interval")
    return told_ if not ends else f"{told_} ({span(Interval(*ends))})"


def _searched(night: Mapping[str, Any]) -> Component | None:
    found = night.get("searched")
    if not found:
        return None
    return html.P(
        f"{found.get('trials')} trials in all. {found.get('why') or ''}", className="quiet"
    )


PAGE = Page(path="/runs/{run}", title="Run", layout=layout, register=register)
