"""The queue: what runs, what waits, what has ended, and who holds which device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dash import Dash, dcc, html
from dash.development.base_component import Component

from autotune.core.errors import InputRefused
from autotune.core.jobs import Job, JobKind, JobState
from autotune.service_ports import Desks
from dashboards.web.parts import cards, live, notes
from dashboards.web.parts.acts import Act, Question, button
from dashboards.web.parts.progress import bar
from dashboards.web.parts.states import badge
from dashboards.web.parts.tables import Column, table
from dashboards.web.parts.words import UNKNOWN, duration, when
from dashboards.web.routing import Asked, Page

LATEST = 100
_LONGEST = 600
Found = tuple[Sequence[Job], Mapping[str, str]]


def layout(_desks: Desks, _asked: Asked) -> Component:
    return html.Div([html.H1("Jobs", tabIndex=-1), live.place("jobs")])


def register(dash_app: Dash, desks: Desks) -> None:
    live.watch(dash_app, desks, "jobs", _read, listed)


def _read(desks: Desks, _asked: Any) -> Found:
    return desks.jobs.jobs(limit=LATEST), dict(desks.jobs.leases())


def listed(found: Found) -> list[Component]:
    jobs, leases = found
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
        cards.section("Running", _running(busy, waiting), name="running"),
        cards.section("Waiting", _waiting(waiting), name="waiting"),
        cards.section("Ended", _ended(ended), name="ended"),
        cards.section("Devices", _devices(leases), name="devices"),
    ]


def _running(jobs: Sequence[Job], waiting: Sequence[Job]) -> Component:
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
            "progress": progress(job),
            "since": when(job.started_at),
            "by": job.created_by,
            "act": badge("cancelled")
            if job.cancel
            else button("cancel", job.id, "Cancel …", about=f"job {job.id}"),
        }
        for job in jobs
    ]
    return table("running", "Running jobs", columns, rows)


def progress(job: Job) -> Component:
    """What it told last."""
    told = job.progress
    text = " ".join(map(str, filter(None, (told.get("stage"), told.get("text"))))) or "begins"
    left = told.get("seconds_left")
    words = text if left is None else f"{text} · about {duration(left)} left"
    return bar(told.get("trial"), told.get("of"), words)


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
            "devices": ", ".join(job.devices) or "a worker",
            "since": when(job.created_at),
            "by": job.created_by,
            "act": button("cancel", job.id, "Cancel …", about=f"job {job.id}"),
        }
        for job in jobs
    ]
    return table("waiting", "Waiting jobs", columns, rows)


def _ended(jobs: Sequence[Job]) -> Component:
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
            "why": _came_of(job),
            "ended": when(job.ended_at),
            "took": UNKNOWN
            if job.started_at is None or job.ended_at is None
            else duration(job.ended_at - job.started_at),
            "by": job.created_by,
        }
        for job in jobs
    ]
    return table("ended", "Ended jobs", columns, rows)


def _came_of(job: Job) -> Any:
    tries = f" (begun {job.attempt} times)" if job.attempt > 1 else ""
    if not job.reason:
        return f"exit code {job.exit_code}{tries}" if job.exit_code else tries.strip() or UNKNOWN
    if len(job.reason) <= _LONGEST and "\n" not in job.reason:
        return job.reason + tries
    first, *_ = job.reason.splitlines()
    return html.Details([html.Summary(first[:200] + tries), html.Pre(job.reason, tabIndex=0)])


def _devices(leases: Mapping[str, str]) -> Component:
    if not leases:
        return html.P("No device is in use.", className="quiet")
    return cards.facts([(device, f"held for {owner}") for device, owner in sorted(leases.items())])


# -------------------------------------------------------------------------------- what it is about
def named(job: Job) -> list[Any]:
    """Its title, linked to what it works on."""
    about = _about(job)
    title = job.title if about is None else dcc.Link(job.title, href=about)
    return [title, html.Small(f"job {job.id}, {job.kind}", className="quiet under")]


def _about(job: Job) -> str | None:
    payload = job.payload
    if job.kind in (JobKind.PROMOTE, JobKind.ROLLBACK) and payload.get("promotion"):
        return f"/promotions/{payload['promotion']}"
    if job.kind is JobKind.NIGHTLY and payload.get("run"):
        return f"/runs/{payload['run']}"
    return None if job.study_id is None else f"/study/{job.study_id}"


# ------------------------------------------------------------------------------------------- acts
def _job(desks: Desks, on: str) -> Job:
    if not (on.isascii() and on.isdecimal() and len(on) < 19):
        raise InputRefused("a job is named by its number", value=on)
    return desks.jobs.job(int(on))


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
    return [f"{job.title}: ", dcc.Link(f"job {job.id}", href="/jobs"), f" is {job.state}."]


PAGE = Page(
    path="/jobs",
    title="Jobs",
    layout=layout,
    register=register,
    nav="Jobs",
    acts={"cancel": Act(ask=_ask, do=_do)},
)
