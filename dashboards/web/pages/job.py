"""A job: what it is about, how far it is, what came of it, and what its process has written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dash import Dash, dcc, html
from dash.development.base_component import Component

from autotune.core.jobs import HERE, Job, JobState
from autotune.service_ports import Desks
from dashboards.web.identity import may_operate
from dashboards.web.pages.jobs import about, came_to, cancel_button, number_of, progress
from dashboards.web.parts import cards, live, notes
from dashboards.web.parts.progress import seconds_left
from dashboards.web.parts.states import badge
from dashboards.web.parts.words import aria, count, duration, when
from dashboards.web.routing import Asked, Page


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """``log`` is None where there is none here, or none for whoever asks; ``came_of`` what it came
    to where it says nothing of it itself."""

    job: Job
    log: str | None
    left_s: float | None
    came_of: str


def layout(desks: Desks, asked: Asked) -> Component:
    job_id = number_of(asked["job"])
    return html.Div(
        [
            html.Nav(
                [dcc.Link("Jobs", href="/jobs"), f" / {job_id}"],
                className="eyebrow",
                **aria(label="Where this is"),
            ),
            live.place("job", job_id, first=told(read(desks, job_id))),
        ]
    )


def register(dash_app: Dash, desks: Desks) -> None:
    live.watch(dash_app, desks, "job", lambda d, on: read(d, int(on)), told)


def read(desks: Desks, job_id: int) -> Found:
    job = desks.jobs.job(job_id)
    return Found(
        job=job,
        log=desks.jobs.log(job_id) if may_operate() else None,
        left_s=seconds_left(job),
        came_of=came_to(desks, [job]).get(job_id, "") if job.state is JobState.DONE else "",
    )


def told(found: Found) -> list[Component | None]:
    job = found.job
    running = job.state is JobState.RUNNING
    return [
        html.Div(
            [
                html.H1(f"Job {job.id}: {job.title}", tabIndex=-1),
                badge(job.state),
                html.Span(_times(job), className="quiet"),
            ],
            className="title",
        ),
        _answer(found),
        html.Div(progress(job, found.left_s), id="job-progress") if running else None,
        _acts(job),
        html.Section(cards.facts(_facts(job)), **aria(label="The job")),
        cards.section("What its process wrote", _log(found), name="log"),
    ]


def _times(job: Job) -> list[Any]:
    if job.started_at is None:
        return ["since ", when(job.created_at)]
    took = "" if job.ended_at is None else f", took {duration(job.ended_at - job.started_at)}"
    return ["began ", when(job.started_at), took]


_KINDS = {JobState.DONE: "good", JobState.FAILED: "bad"}
_SAID = {
    JobState.QUEUED: "It waits for its turn.",
    JobState.RUNNING: "It is under way.",
    JobState.DONE: "It has ended well.",
    JobState.FAILED: "It failed.",
    JobState.CANCELLED: "It was cancelled.",
}


def _answer(found: Found) -> Component:
    job = found.job
    kind = f"answer {_KINDS.get(job.state, '')}"
    reason = job.reason or found.came_of
    if job.cancel and not job.state.ended:
        return html.P("It was asked to end; it does within seconds.", className=kind)
    if "\n" not in reason:
        return html.P(f"{_SAID[job.state]} {_sentence(reason)}".strip(), className=kind)
    return html.Div(
        [_SAID[job.state], html.Pre(reason, tabIndex=0, **aria(label="Why"))], className=kind
    )


def _sentence(words: str) -> str:
    return words and f"{words[0].upper()}{words[1:]}{'' if words.endswith('.') else '.'}"


def _acts(job: Job) -> Component | None:
    shown = None if job.state.ended or job.cancel else cancel_button(job)
    return None if shown is None else html.Div([shown], className="actions")


def _facts(job: Job) -> list[tuple[str, Any]]:
    link = about(job)
    devices = ", ".join(each.removeprefix(HERE) for each in job.devices)
    rows: list[tuple[str, Any]] = [
        ("kind", str(job.kind)),
        ("about", job.title if link is None else dcc.Link(job.title, href=link)),
        ("devices", devices or "none: it measures nothing"),
        ("asked for", [when(job.created_at), f" by {job.created_by or 'someone'}"]),
    ]
    if job.attempt > 1:
        rows.append(("begun", count(job.attempt, "time")))
    if job.exit_code is not None:
        rows.append(("exit code", str(job.exit_code)))
    return rows


def _log(found: Found) -> Component:
    if not may_operate():
        return html.P("Whoever has a token of the role operate may read it.", className="quiet")
    if found.log:
        lines = html.Pre(found.log, tabIndex=0, className="log", **aria(label="The log’s end"))
        return html.Div(lines, className="log-place")
    if found.job.started_at is None:
        return notes.empty("Nothing yet.", "It was not begun.")
    if found.log is None:
        why = "Another machine has done it, or it is older than 30 days."
        return notes.empty("There is no log of it here.", why)
    return notes.empty("It wrote nothing.", "What it measures is on its study’s page.")


PAGE = Page(path="/jobs/{job}", title="Job", layout=layout, register=register)
