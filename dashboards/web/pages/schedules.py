"""Schedules: when each is due next, what its last run came to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from dash import Dash, dcc, html
from dash.development.base_component import Component

from autotune.core.schedules import NightRun, Policy, Schedule, ScheduleState
from autotune.service_ports import Desks, ScheduleView
from dashboards.web.pages.jobs import queued
from dashboards.web.parts import cards, live, notes
from dashboards.web.parts.acts import Act, Question, button
from dashboards.web.parts.states import badge
from dashboards.web.parts.tables import Column, table
from dashboards.web.parts.words import UNKNOWN, aria, duration, when
from dashboards.web.routing import Asked, Page

LATEST = 100
POLICIES = {
    Policy.REPORT: "a better configuration is told of",
    Policy.PROPOSE: "a better configuration waits for approval",
    Policy.AUTO: "a better configuration is put into service",
}


# ------------------------------------------------------------------------------------------- list
def layout(_desks: Desks, _asked: Asked) -> Component:
    return html.Div([html.H1("Schedules", tabIndex=-1), live.place("schedules")])


def register(dash_app: Dash, desks: Desks) -> None:
    live.watch(dash_app, desks, "schedules", lambda d, _: d.schedules.schedules(), listed)


def listed(views: Sequence[ScheduleView]) -> Component:
    if not views:
        return notes.empty(
            "There is no schedule yet.",
            "One that looks every night whether the answer still holds: ",
            notes.command('autotune schedule add nightly study.yaml --cron "0 3 * * *"'),
            ", or the button of a study’s page.",
        )
    columns = (
        Column(key="name", title="Schedule"),
        Column(key="state", title="State"),
        Column(key="cron", title="Due"),
        Column(key="next", title="Next"),
        Column(key="last", title="Last run"),
        Column(key="policy", title="Policy"),
        Column(key="acts", title=""),
    )
    return table("schedules", "Schedules", columns, [_row(view) for view in views])


def _row(view: ScheduleView) -> dict[str, Any]:
    schedule = view.schedule
    return {
        "name": [
            dcc.Link(schedule.name, href=href(schedule.name)),
            html.Small(f"study {schedule.definition.get('study', '')}", className="quiet under"),
        ],
        "state": badge(schedule.state),
        "cron": [html.Code(schedule.cron), html.Small(f" {schedule.timezone}", className="quiet")],
        "next": _next(view),
        "last": UNKNOWN if view.last is None else run_words(view.last),
        "policy": [
            str(schedule.policy),
            html.Small(f" {POLICIES[schedule.policy]}", className="quiet under"),
        ],
        "acts": html.Div(acts_of(schedule), className="acts"),
    }


def _next(view: ScheduleView) -> Any:
    if view.next_at is not None:
        return when(view.next_at)
    if view.schedule.state is ScheduleState.PAUSED:
        return "paused"
    return f"not known: this machine does not know the time zone {view.schedule.timezone}"


def href(name: str) -> str:
    return f"/schedules/{quote(name, safe='')}"


def acts_of(schedule: Schedule) -> list[Any]:
    paused = schedule.state is ScheduleState.PAUSED
    name = schedule.name
    about = f"schedule {name}"
    return [
        button("run-now", name, "Run now …", about=about),
        button("resume", name, "Resume …", about=about)
        if paused
        else button("pause", name, "Pause …", about=about),
    ]


def run_words(run: NightRun) -> list[Any]:
    return [
        dcc.Link(when(run.scheduled_for), href=f"/runs/{run.id}"),
        " ",
        badge(run.outcome or run.state),
    ]


# ---------------------------------------------------------------------------------- one schedule
def one(desks: Desks, asked: Asked) -> Component:
    view = desks.schedules.schedule(asked["name"])
    return html.Div(
        [
            html.Nav(
                [dcc.Link("Schedules", href="/schedules"), f" / {view.schedule.name}"],
                className="eyebrow",
                **aria(label="Where this is"),
            ),
            live.place(
                "schedule",
                view.schedule.name,
                first=_told(_read(desks, view.schedule.name)),
            ),
        ]
    )


def register_one(dash_app: Dash, desks: Desks) -> None:
    live.watch(dash_app, desks, "schedule", _read, _told)


def _read(desks: Desks, name: Any) -> tuple[ScheduleView, Sequence[NightRun]]:
    return desks.schedules.schedule(name), desks.schedules.runs(name, limit=LATEST)


def _told(found: tuple[ScheduleView, Sequence[NightRun]]) -> list[Component]:
    view, runs = found
    schedule = view.schedule
    return [
        html.Div([html.H1(schedule.name, tabIndex=-1), badge(schedule.state)], className="title"),
        html.Div(
            [*acts_of(schedule), button("remove", schedule.name, "Remove …")], className="actions"
        ),
        html.Section(cards.facts(_facts(view)), **aria(label="The schedule")),
        cards.section(
            "Runs", runs_table(runs, schedule.name), notes.newest(runs, LATEST), name="runs"
        ),
    ]


def _facts(view: ScheduleView) -> list[tuple[str, Any]]:
    schedule = view.schedule
    window = schedule.window_minutes
    model = schedule.definition.get("model") or {}
    named = model.get("name") if isinstance(model, Mapping) else model
    return [
        ("due", [html.Code(schedule.cron), f" {schedule.timezone}"]),
        ("next", _next(view)),
        ("window", "as long as its study’s budget" if window is None else f"{window:g} minutes"),
        ("study", str(schedule.definition.get("study", ""))),
        *([("model", dcc.Link(named, href=f"/models/{quote(named, safe='')}"))] if named else []),
        ("policy", f"{schedule.policy}: {POLICIES[schedule.policy]}"),
        ("margin", f"better by {schedule.margin:.0%} at least"),
        ("target", UNKNOWN if schedule.target is None else str(schedule.target)),
        ("made", [when(schedule.created_at or None), f" by {schedule.created_by or 'someone'}"]),
    ]


def runs_table(runs: Sequence[NightRun], name: str = "") -> Component:
    if not runs:
        first = [
            "The first comes when it is due, or now: ",
            notes.command(f"autotune schedule run {name}"),
        ]
        return notes.empty("It has not run yet.", *first)
    columns = (
        Column(key="due", title="Due"),
        Column(key="state", title="State"),
        Column(key="outcome", title="Outcome"),
        Column(key="why", title="What came of it"),
        Column(key="drift", title="Drift"),
        Column(key="took", title="Took", number=True),
    )
    return table("runs", "Runs", columns, [_run_row(run) for run in runs])


def _run_row(run: NightRun) -> dict[str, Any]:
    took = None if run.started_at is None or run.ended_at is None else run.ended_at - run.started_at
    return {
        "due": dcc.Link(when(run.scheduled_for), href=f"/runs/{run.id}"),
        "state": badge(run.state),
        "outcome": UNKNOWN if run.outcome is None else badge(run.outcome),
        "why": run.reason.splitlines()[0] if run.reason else UNKNOWN,
        "drift": _drift(run.summary.get("drift")),
        "took": duration(took),
    }


def _drift(drift: Mapping[str, Any] | None) -> Any:
    if drift is None:
        return UNKNOWN
    return badge("worse" if drift.get("worse") else "better") if drift.get("drifted") else "none"


# ------------------------------------------------------------------------------------------- acts
def _ask_run(desks: Desks, on: str) -> Question:
    schedule = desks.schedules.schedule(on).schedule
    return Question(
        title=f"Run {schedule.name} now",
        says=[html.P(f"A run is queued that is due now; {POLICIES[schedule.policy]} by it, too.")],
        yes="Run it now",
    )


def _ask_pause(desks: Desks, on: str) -> Question:
    desks.schedules.schedule(on)
    return Question(
        title=f"Pause {on}",
        says=[html.P("No further run becomes due until it is resumed; one that runs goes on.")],
        yes="Pause it",
    )


def _ask_resume(desks: Desks, on: str) -> Question:
    desks.schedules.schedule(on)
    return Question(
        title=f"Resume {on}", says=[html.P("Its runs become due again.")], yes="Resume it"
    )


def _ask_remove(desks: Desks, on: str) -> Question:
    desks.schedules.schedule(on)
    return Question(
        title=f"Remove {on}",
        says=[html.P("It is not due any more. Its runs stay, for the history.")],
        yes="Remove the schedule",
        grave=True,
    )


def _state(state: ScheduleState) -> Any:
    def do(desks: Desks, on: str, _given: Mapping[str, str], by: str) -> Any:
        desks.schedules.set_state(on, state, by=by)
        return f"{on} is {state}."

    return do


def _remove(desks: Desks, on: str, _given: Mapping[str, str], by: str) -> Any:
    desks.schedules.remove(on, by=by)
    return ["It is removed. ", dcc.Link("The schedules", href="/schedules")]


def _run(desks: Desks, on: str, _given: Mapping[str, str], by: str) -> Any:
    return queued(desks.schedules.run_now(on, by=by))


ACTS = {
    "run-now": Act(ask=_ask_run, do=_run),
    "pause": Act(ask=_ask_pause, do=_state(ScheduleState.PAUSED)),
    "resume": Act(ask=_ask_resume, do=_state(ScheduleState.ACTIVE)),
    "remove": Act(ask=_ask_remove, do=_remove),
}

PAGE = Page(
    path="/schedules",
    title="Schedules",
    layout=layout,
    register=register,
    nav="Schedules",
    acts=ACTS,
)
ONE = Page(path="/schedules/{name}", title="Schedule", layout=one, register=register_one)
