"""How far a running study is, as its job last told."""

from __future__ import annotations

from typing import Any

from dash import html
from dash.development.base_component import Component

from autotune.core.jobs import Job
from autotune.core.records import StudyRecord, StudyState
from dashboards.web.parts.words import UNKNOWN, aria, count, duration


def running(job: Job | None) -> bool:
    return job is not None and not job.state.ended


def progress_of(job: Job | None, record: StudyRecord, planned: int | None = None) -> Any:
    """A bar with words; of a study that ran elsewhere (on the command line) by its trials; nothing
    to tell of one that is over."""
    if record.state is not StudyState.RUNNING:
        return UNKNOWN
    told = {} if job is None else job.progress
    done, of = told.get("trial", record.trials), told.get("of", planned)
    left = told.get("seconds_left")
    words = [told.get("text") or count(record.trials, "trial")]
    if left is not None:
        words.append(f"about {duration(left)} left")
    return bar(done, of, " · ".join(words))


def bar(done: float | None, of: float | None, words: str) -> Component:
    """Without an end that is known there are words alone."""
    if not of or done is None:
        return html.Span(words, className="progress-words")
    return html.Div(
        [
            html.Progress(value=str(min(done, of)), max=str(of), **aria(label=words)),
            html.Small(f"{done:,.0f} of {of:,.0f} · {words}"),
        ],
        className="progress",
    )
