"""The queue: what runs, what waits, what has ended, and who holds which device."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dash import Dash, dcc, html
from dash.development.base_component import Component

from autotune.core.errors import InputRefused
from autotune.core.jobs import HERE, Job, JobKind, JobState
from autotune.core.promotions import Promotion, PromotionState
from autotune.core.records import StudyState
from autotune.core.schedules import NightRun
from autotune.service_ports import Desks, StudySummary
from dashboards.web.parts import cards, live, notes
from dashboards.web.parts.acts import Act, Question, button
from dashboards.web.parts.progress import bar, seconds_left
from dashboards.web.parts.states import badge
from dashboards.web.parts.tables import Column, table
from dashboards.web.parts.words import UNKNOWN, duration, when
from dashboards.web.routing import Asked, Page

LATEST, MOST_OPEN = 100, 1000
_ENDED = tuple(state for state in JobState if state.ended)
_OPEN = tuple(state for state in JobState if not state.ended)
_LONGEST = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """``leases``: who holds which device; by the jobs' ids, ``came_of``: what those that ended well
    came to, ``left``: the seconds that those that run still take."""

    jobs: Sequence[Job]
    leases: Mapping[str, str]
    came_of: Mapping[int, str]
    left: Mapping[int, float | None]


def layout(_desks: Desks, _asked: Asked) -> Component:
    return html.Div([html.H1("Jobs", tabIndex=-1), live.place("jobs")])


def register(dash_app: Dash, desks: Desks) -> None:
    live.watch(dash_app, desks, "jobs", read, listed)


def read(desks: Desks, _asked: Any = "") -> Found:
    """All that are not over, however many wait, and the latest of those that are."""
    found = [
        *desks.jobs.jobs(states=_OPEN, limit=MOST_OPEN),
        *desks.jobs.jobs(states=_ENDED, limit=LATEST),
    ]
    jobs = list({job.id: job for job in found}.values())  # one may have ended in between
    return Found(
        jobs=jobs,
        leases=dict(desks.jobs.leases()),
        came_of=came_to(desks, [job for job in jobs if job.state is JobState.DONE]),
        left={job.id: seconds_left(job) for job in jobs if job.state is JobState.RUNNING},
    )


def listed(found: Found) -> list[Component]:
    jobs = found.jobs
    if not jobs:
        return [
            notes.empty(
                "Nothing was given to the service yet.",
                "A schedule's runs stand here, and studies that were sent to the API: ",
                notes.command("POST /api/v1/studies"),
            )
        ]
    busy = [job for job in jobs if job.state is JobState.RUNNING]
    waiting = sorted((j for j in jobs if j.state is JobState.QUEUED), key=lambda j: j.id)
    ended = [job for job in jobs if job.state.ended]
    return [
        cards.section("Running", _running(busy, waiting, found.left), name="running"),
        cards.section("Waiting", _waiting(waiting), name="waiting"),
        cards.section("Ended", _ended(ended, found.came_of), name="ended"),
        cards.section("Devices", _devices(found.leases, jobs), name="devices"),
    ]


def _running(
    jobs: Sequence[Job], waiting: Sequence[Job], left: Mapping[int, float | None]
) -> Component:
    if not jobs:
        told = "The next one is begun within seconds." if waiting else "Nothing waits either."
        return notes.empty("No job is running.", told)
    columns = (
        Column(key="job", title="Job"),
        Column(key="progress", title="Progress"),
        Column(key="since", title="Since"),
        Column(key="by", title="For"),
        Column(key="act", title=""),
    )
    rows = [
        {
            "job": named(job),
            "progress": progress(job, left[job.id]),
            "since": when(job.started_at),
            "by": job.created_by,
            "act": badge("cancelled") if job.cancel else cancel_button(job),
        }
        for job in jobs
    ]
    return table("running", "Running jobs", columns, rows)


def cancel_button(job: Job) -> Any:
    return button("cancel", job.id, "Cancel …", about=f"job {job.id}")


def progress(job: Job, left_s: float | None) -> Component:
    """What it told last."""
    told = job.progress
    text = ": ".join(map(str, filter(None, (told.get("stage"), told.get("text"))))) or "begins"
    return bar(told.get("trial"), told.get("of"), text, left_s)


def _waiting(jobs: Sequence[Job]) -> Component:
    if not jobs:
        return notes.empty("No job waits.", "A schedule's next run comes when it is due.")
    columns = (
        Column(key="job", title="Job"),
        Column(key="devices", title="Waits for"),
        Column(key="since", title="Since"),
        Column(key="by", title="For"),
        Column(key="act", title=""),
    )
    rows = [
        {
            "job": named(job),
            "devices": _waits_for(job),
            "since": when(job.created_at),
            "by": job.created_by,
            "act": cancel_button(job),
        }
        for job in jobs
    ]
    return table("waiting", "Waiting jobs", columns, rows)


def _waits_for(job: Job) -> list[Any]:
    """And why it was put back, where it had been begun."""
    devices = ", ".join(each.removeprefix(HERE) for each in job.devices) or "a worker"
    why = job.reason.splitlines()[:1]
    return [devices, *(html.Small(line[:_LONGEST], className="quiet under") for line in why)]


def _ended(jobs: Sequence[Job], came_of: Mapping[int, str]) -> Component:
    if not jobs:
        return notes.empty("No job has ended yet.", "What it came to is told here.")
    columns = (
        Column(key="job", title="Job"),
        Column(key="state", title="State"),
        Column(key="why", title="What came of it"),
        Column(key="ended", title="Ended"),
        Column(key="took", title="Took", number=True),
        Column(key="by", title="For"),
    )
    rows = [
        {
            "job": named(job),
            "state": badge(job.state),
            "why": _came_of(job, came_of.get(job.id, "")),
            "ended": when(job.ended_at),
            "took": UNKNOWN
            if job.started_at is None or job.ended_at is None
            else duration(job.ended_at - job.started_at),
            "by": job.created_by,
        }
        for job in jobs
    ]
    return html.Div([table("ended", "Ended jobs", columns, rows), notes.newest(jobs, LATEST)])


def _came_of(job: Job, otherwise: str) -> Any:
    tries = f" (begun {job.attempt} times)" if job.attempt > 1 else ""
    reason = job.reason or otherwise or (f"exit code {job.exit_code}" if job.exit_code else "")
    if len(reason) <= _LONGEST and "\n" not in reason:
        return (reason + tries).strip() or UNKNOWN
    first, *_ = reason.splitlines()
    return html.Details([html.Summary(first[:200] + tries), html.Pre(reason, tabIndex=0)])


def came_to(desks: Desks, done: Sequence[Job]) -> Mapping[int, str]:
    """What jobs that ended well, and say nothing of it themselves, are about has come to."""
    kinds = {job.kind for job in done if not job.reason}
    studies: dict[Any, str] = {}
    nights: dict[Any, str] = {}
    promotions: dict[Any, str] = {}
    if JobKind.STUDY in kinds:
        studies = {each.record.id: _study_words(each) for each in desks.studies.studies()}
    if JobKind.NIGHTLY in kinds:
        nights = {run.id: _night_words(run) for run in desks.schedules.runs(limit=LATEST)}
    if kinds & {JobKind.PROMOTE, JobKind.ROLLBACK}:
        found = desks.promotions.promotions(limit=LATEST)
        promotions = {each.id: _promotion_words(each) for each in found}
    by_kind: Mapping[JobKind, Callable[[Job], str | None]] = {
        JobKind.STUDY: lambda job: studies.get(job.study_id),
        JobKind.NIGHTLY: lambda job: nights.get(job.payload.get("run")),
        JobKind.PROMOTE: lambda job: promotions.get(job.payload.get("promotion")),
        JobKind.ROLLBACK: lambda job: promotions.get(job.payload.get("promotion")),
    }
    return {job.id: by_kind[job.kind](job) or "" for job in done}


def _study_words(found: StudySummary) -> str:
    if found.record.state is not StudyState.DONE:
        return f"the study is {found.record.state}"
    if found.best is None:
        return "no trial could be judged"
    if not found.best_meets:
        return f"no candidate is known to meet the SLA; trial {found.best} comes nearest"
    return (
        "the configuration in service is the pick"
        if found.best == 0
        else (f"trial {found.best} is the pick")
    )


def _night_words(run: NightRun) -> str:
    outcome = str(run.outcome or run.state).replace("_", " ")
    return run.reason.splitlines()[0] if run.reason else outcome


def _promotion_words(found: Promotion) -> str:
    state = "in service" if found.state is PromotionState.DONE else str(found.state)
    return f"promotion {found.id}: {state.replace('_', ' ')}"


def _devices(leases: Mapping[str, str], jobs: Sequence[Job]) -> Component:
    if not leases:
        return html.P("No device is in use.", className="quiet")
    titles = {str(job.id): f"job {job.id}, {job.title}" for job in jobs}
    rows = []
    for device, owner in sorted(leases.items()):
        named = re.match(r"job (\d+)\b", owner)
        whose = titles.get(named[1], named[0]) if named else "a worker"
        link = whose if named is None else dcc.Link(whose, href=href(int(named[1])))
        rows.append((device, html.Span(["held for ", link], title=owner)))
    return cards.facts(rows)


# -------------------------------------------------------------------------------- what it is about
def named(job: Job) -> list[Any]:
    """Its title, linked to what it works on, and its number, to its own page."""
    where = about(job)
    title = job.title if where is None else dcc.Link(job.title, href=where)
    itself = dcc.Link(f"job {job.id}", href=href(job.id))
    return [title, html.Small([itself, f", {job.kind}"], className="quiet under")]


def href(job_id: int) -> str:
    return f"/jobs/{job_id}"


def about(job: Job) -> str | None:
    payload = job.payload
    if job.kind in (JobKind.PROMOTE, JobKind.ROLLBACK) and payload.get("promotion"):
        return f"/promotions/{payload['promotion']}"
    if job.kind is JobKind.NIGHTLY and payload.get("run"):
        return f"/runs/{payload['run']}"
    return None if job.study_id is None else f"/study/{job.study_id}"


# ------------------------------------------------------------------------------------------- acts
def number_of(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 19):
        raise InputRefused("a job is named by its number", value=text)
    return int(text)


def _job(desks: Desks, on: str) -> Job:
    return desks.jobs.job(number_of(on))


_LOST = {
    JobKind.STUDY: "What it has measured is kept; the same study can be gone on with.",
    JobKind.NIGHTLY: "What the night has measured is kept, and nothing is promoted.",
    JobKind.PROMOTE: "What was in service before is put back.",
    JobKind.ROLLBACK: "What is in service stays there, unless it was put back already.",
}


def _ask(desks: Desks, on: str) -> Question:
    job = _job(desks, on)
    if job.state.ended:
        raise InputRefused(f"job {job.id} is {job.state} already")
    return Question(
        title=f"Cancel job {job.id}",
        says=[
            html.P(f"{job.title} ({job.state})."),
            html.P(_LOST[job.kind] if job.started_at else "It was not begun."),
        ],
        yes="Cancel the job",
        grave=True,
    )


def _do(desks: Desks, on: str, _given: Mapping[str, str], by: str) -> Any:
    job = desks.jobs.cancel(_job(desks, on).id, by=by)
    if job.state is JobState.RUNNING:
        return f"Job {job.id} was asked to end; it does within seconds."
    return f"Job {job.id} is {job.state}."


def queued(job: Job) -> list[Any]:
    """What an act says that queued a job."""
    return [f"{job.title}: ", dcc.Link(f"job {job.id}", href=href(job.id)), f" is {job.state}."]


PAGE = Page(
    path="/jobs",
    title="Jobs",
    layout=layout,
    register=register,
    nav="Jobs",
    acts={"cancel": Act(ask=_ask, do=_do)},
)
