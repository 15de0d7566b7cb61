"""How far a running study is, as its job last told."""

from __future__ import annotations

import time
from typing import Any

from dash import html
from dash.development.base_component import Component

from autotune.core.jobs import Job, JobState
from autotune.core.records import StudyRecord, StudyState
from dashboards.web.parts.words import UNKNOWN, aria, count, duration


def running(job: Job | None) -> bool:
    return job is not None and not job.state.ended


_ENDING = ("canary", "finals", "capacity", "confirm", "robust", "again", "export", "done")
"""Stages of a study's end: what is left of them nobody has estimated step by step."""
_COARSE_S = 10


def seconds_left(job: Job | None, now: float | None = None) -> float | None:
    """As the job last told, less the time since, in steps of 10 s; None where it has told nothing
    that still counts: it has ended, it is in a stage without an estimate, or the time is over."""
    if job is None or job.state is not JobState.RUNNING or job.progress.get("stage") in _ENDING:
        return None
    left, told_at = job.progress.get("seconds_left"), job.progress.get("at")
    if left is None:
        return None
    if told_at is not None:
        left -= max((time.time() if now is None else now) - told_at, 0.0)
    coarse = round(left / _COARSE_S) * _COARSE_S
    return coarse if coarse > 0 else None


def progress_of(job: Job | None, record: StudyRecord, planned: int | None = None) -> Any:
    """A bar with words; of a study that ran elsewhere (on the command line) by its trials; nothing
    to tell of one that is over."""
    if record.state is not StudyState.RUNNING:
        return UNKNOWN
    told = {} if job is None or job.state.ended else job.progress
    done, of = told.get("trial", record.trials), told.get("of", planned)
    return bar(done, of, told.get("text") or count(record.trials, "trial"), seconds_left(job))


def bar(done: float | None, of: float | None, words: str, left_s: float | None = None) -> Component:
    """Without an end that is known there are words alone. What is left is hidden by the style
    sheet while the service gives no answer."""
    left = (
        [] if left_s is None else [html.Span(f" · about {duration(left_s)} left", className="left")]
    )
    if not of or done is None:
        return html.Span([words, *left], className="progress-words")
    return html.Div(
        [
            html.Progress(value=str(min(done, of)), max=str(of), **aria(label=words)),
            html.Small([f"{done:,.0f} of {of:,.0f} · {words}", *left]),
        ],
        className="progress",
    )
