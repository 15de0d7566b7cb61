"""Counts over all that is stored, for monitoring: taken by the database, so that few rows come
back, however much is stored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from autotune.core.jobs import JobKind, JobState
from autotune.core.notices import Event, NoticeState
from autotune.core.schedules import RunState
from autotune.service_ports import Figures
from storage.service.database import Database
from storage.service.tables import JobRow, NoticeRow, RunRow


def read_figures(database: Database, leases: Mapping[str, str]) -> Figures:
    with database.read() as session:
        jobs = _jobs(session)
        return Figures(
            jobs={key: count for key, (count, _) in jobs.items()},
            job_seconds={key: seconds for key, (_, seconds) in jobs.items() if seconds is not None},
            runs=_runs(session),
            notices=_notices(session),
            leases=leases,
            oldest_queued_at=session.scalar(
                select(func.min(JobRow.created_at)).where(JobRow.state == str(JobState.QUEUED))
            ),
            last_success=_last_success(session),
        )


def _jobs(session: Session) -> Mapping[tuple[JobKind, JobState], tuple[int, float | None]]:
    seconds = func.sum(JobRow.ended_at - JobRow.started_at)
    query = select(JobRow.kind, JobRow.state, func.count(), seconds)
    return {
        (JobKind(kind), JobState(state)): (count, took)
        for kind, state, count, took in session.execute(query.group_by(JobRow.kind, JobRow.state))
    }


def _runs(session: Session) -> Mapping[tuple[str, str], int]:
    what: Any = func.coalesce(RunRow.outcome, RunRow.state)
    query = select(RunRow.schedule, what, func.count()).group_by(RunRow.schedule, what)
    return {(schedule, each): count for schedule, each, count in session.execute(query)}


def _notices(session: Session) -> Mapping[tuple[Event, NoticeState], int]:
    query = select(NoticeRow.event, NoticeRow.state, func.count())
    found = session.execute(query.group_by(NoticeRow.event, NoticeRow.state))
    return {(Event(event), NoticeState(state)): count for event, state, count in found}


def _last_success(session: Session) -> Mapping[str, float]:
    query = select(RunRow.schedule, func.max(RunRow.ended_at)).where(
        RunRow.state == str(RunState.DONE), RunRow.ended_at.is_not(None)
    )
    found = session.execute(query.group_by(RunRow.schedule))
    return {schedule: ended_at for schedule, ended_at in found if ended_at is not None}
