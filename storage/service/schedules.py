"""Schedules and their runs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import Select, delete, func, select
from sqlalchemy.orm import Session

from autotune.core.errors import Conflict, NotFound
from autotune.core.schedules import (
    NightRun,
    Outcome,
    Policy,
    RunState,
    Schedule,
    ScheduleState,
)
from storage.plain import text
from storage.service.database import Database, added, by_id, no_such
from storage.service.tables import RunRow, ScheduleRow
from storage.service.targets import target, target_json

_NEWEST_FIRST = select(RunRow).order_by(RunRow.scheduled_for.desc(), RunRow.id.desc())
_ENDED = (RunState.DONE, RunState.FAILED, RunState.STOPPED, RunState.MISSED)


class SqlScheduleStore:
    """No two runs of a schedule are due at one moment: a unique constraint says so, to however
    many schedulers there are."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, schedule: Schedule) -> int:
        now = self._database.now()
        row = ScheduleRow(
            name=text(schedule.name),
            definition=dict(schedule.definition),
            cron=text(schedule.cron),
            timezone=text(schedule.timezone),
            window_minutes=schedule.window_minutes,
            policy=str(schedule.policy),
            margin=schedule.margin,
            target=target_json(schedule.target),
            state=str(schedule.state),
            created_at=now,
            created_by=text(schedule.created_by),
            active_since=now,
        )
        with self._database.write() as session:
            if not added(session, row):
                raise Conflict(
                    "there is a schedule of that name",
                    value=schedule.name,
                    next_step="Take another name, or remove that one first: its runs stay.",
                )
            return row.id

    def schedule(self, name: str) -> Schedule:
        with self._database.read() as session:
            return _schedule(_row(session, name))

    def by_id(self, schedule_id: int) -> Schedule:
        with self._database.read() as session:
            row = by_id(session, ScheduleRow, schedule_id)
            if row is None:
                raise NotFound("the schedule was removed", value=schedule_id)
            return _schedule(row)

    def schedules(self) -> Sequence[Schedule]:
        with self._database.read() as session:
            found = session.scalars(select(ScheduleRow).order_by(ScheduleRow.name))
            return [_schedule(row) for row in found]

    def set_state(self, name: str, state: ScheduleState) -> None:
        now = self._database.now()
        with self._database.write() as session:
            row = _row(session, name)
            if state is ScheduleState.ACTIVE and row.state != state:
                row.active_since = now
            row.state = str(state)

    def remove(self, name: str) -> None:
        with self._database.write() as session:
            row = _row(session, name)
            session.execute(delete(ScheduleRow).where(ScheduleRow.id == row.id))

    def due(self, schedule_id: int, scheduled_for: float) -> int | None:
        with self._database.write() as session:
            row = new_run(session, schedule_id, scheduled_for)
            return None if row is None else row.id

    def missed(self, schedule_id: int, scheduled_for: float, reason: str) -> int | None:
        """As `due`, of a run that is not going to begin."""
        now = self._database.now()
        with self._database.write() as session:
            row = new_run(session, schedule_id, scheduled_for)
            if row is None:
                return None
            _enter(row, RunState.MISSED, now)
            row.reason = text(reason)
            return row.id

    def run(self, run_id: int) -> NightRun:
        with self._database.read() as session:
            return _run(_run_row(session, run_id))

    def runs(self, *, schedule: str | None = None, limit: int = 100) -> Sequence[NightRun]:
        query = _NEWEST_FIRST.limit(limit)
        if schedule is not None:
            query = _of(schedule).limit(limit)
        with self._database.read() as session:
            return [_run(row) for row in session.scalars(query)]

    def latest(self) -> Mapping[str, tuple[NightRun, int]]:
        counted = select(RunRow.schedule, func.count()).group_by(RunRow.schedule)
        with self._database.read() as session:
            return {
                name: (_run(session.scalars(_of(name).limit(1)).one()), count)
                for name, count in session.execute(counted).all()
            }

    def runs_of(self, studies: Collection[int]) -> Sequence[NightRun]:
        query = _NEWEST_FIRST.where(RunRow.study_id.in_(studies))
        with self._database.read() as session:
            return [_run(row) for row in session.scalars(query)]

    def update_run(  # noqa: PLR0913 - the port's
        self,
        run_id: int,
        *,
        state: RunState | None = None,
        outcome: Outcome | None = None,
        job_id: int | None = None,
        study_id: int | None = None,
        promotion_id: int | None = None,
        reason: str | None = None,
        summary: Mapping[str, Any] | None = None,
    ) -> None:
        told = {
            "outcome": None if outcome is None else str(outcome),
            "job_id": job_id,
            "study_id": study_id,
            "promotion_id": promotion_id,
            "reason": None if reason is None else text(reason),
            "summary": None if summary is None else dict(summary),
        }
        now = self._database.now()
        with self._database.write() as session:
            row = _run_row(session, run_id)
            for column, value in told.items():
                if value is not None:
                    setattr(row, column, value)
            if state is not None:
                _enter(row, state, now)


def _of(schedule: str) -> Select[RunRow]:
    return _NEWEST_FIRST.where(RunRow.schedule == text(schedule))


def new_run(session: Session, schedule_id: int, scheduled_for: float) -> RunRow | None:
    """A run that is due, as queued; None if one due at that moment is there already."""
    schedule = by_id(session, ScheduleRow, schedule_id)
    if schedule is None:
        raise NotFound("no such schedule", value=schedule_id)
    row = RunRow(
        schedule_id=schedule_id,
        schedule=schedule.name,
        scheduled_for=scheduled_for,
        state=str(RunState.QUEUED),
        reason="",
        summary={},
    )
    return row if added(session, row) else None


def _enter(row: RunRow, state: RunState, now: float) -> None:
    row.state = str(state)
    row.ended_at = now if state in _ENDED else None
    if state is RunState.RUNNING and row.started_at is None:
        row.started_at = now


def _row(session: Session, name: str) -> ScheduleRow:
    row = session.scalar(select(ScheduleRow).where(ScheduleRow.name == text(name)))
    if row is None:
        raise no_such("schedule", name, session.scalars(select(ScheduleRow.name)))
    return row


def _run_row(session: Session, run_id: int) -> RunRow:
    row = by_id(session, RunRow, run_id)
    if row is None:
        raise NotFound("no such run", value=run_id)
    return row


def _schedule(row: ScheduleRow) -> Schedule:
    return Schedule(
        id=row.id,
        name=row.name,
        definition=row.definition,
        cron=row.cron,
        timezone=row.timezone,
        window_minutes=row.window_minutes,
        policy=Policy(row.policy),
        margin=row.margin,
        target=target(row.target),
        state=ScheduleState(row.state),
        created_at=row.created_at,
        created_by=row.created_by,
        active_since=row.active_since,
    )


def _run(row: RunRow) -> NightRun:
    return NightRun(
        id=row.id,
        schedule_id=row.schedule_id,
        schedule=row.schedule,
        scheduled_for=row.scheduled_for,
        state=RunState(row.state),
        outcome=None if row.outcome is None else Outcome(row.outcome),
        job_id=row.job_id,
        study_id=row.study_id,
        promotion_id=row.promotion_id,
        started_at=row.started_at,
        ended_at=row.ended_at,
        reason=row.reason,
        summary=row.summary,
    )
