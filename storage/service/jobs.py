"""The queue, and who has which device."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import CursorResult, Select, Text, cast, delete, func, select, update
from sqlalchemy.orm import Session

from autotune.core.errors import NotFound
from autotune.core.jobs import ATTEMPTS, SOMEWHERE, Beat, Job, JobKind, JobState, Place
from storage.plain import text
from storage.service.database import Database, added, by_id
from storage.service.tables import JobRow, LeaseRow, RunRow

_NO_DEVICE = "job:"
_LEFT = "seconds_left"
"""In a job's progress."""


class SqlJobStore:
    """Workers claim one after the other: each would else hold what the other waits for. Whoever
    ends or keeps a job meets them at its row; the key of the leases gives a device to one."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def submit(
        self,
        kind: JobKind,
        title: str,
        payload: Mapping[str, Any],
        *,
        devices: Sequence[str] = (),
        by: str,
    ) -> int:
        with self._database.write() as session:
            now = self._database.common_now(session)
            row = job_row(now, kind, title, payload, devices=devices, by=by)
            session.add(row)
            session.flush()
            return row.id

    def job(self, job_id: int) -> Job:
        with self._database.read() as session:
            return _job(_row(session, job_id))

    def jobs(self, *, states: Sequence[JobState] = (), limit: int = 100) -> Sequence[Job]:
        query = select(JobRow).order_by(JobRow.id.desc()).limit(limit)
        if states:
            query = query.where(JobRow.state.in_([str(state) for state in states]))
        with self._database.read() as session:
            return [_job(row) for row in session.scalars(query)]

    def ended(self, states: Sequence[JobState], *, since: float) -> Sequence[Job]:
        query = (
            select(JobRow)
            .where(JobRow.state.in_([str(state) for state in states]), JobRow.ended_at >= since)
            .order_by(JobRow.ended_at, JobRow.id)
        )
        with self._database.read() as session:
            return [_job(row) for row in session.scalars(query)]

    def of_schedule(self, name: str, states: Sequence[JobState]) -> Sequence[Job]:
        """Of the runs of schedules of that name, newest first."""
        query = (
            select(JobRow)
            .join(RunRow, RunRow.job_id == JobRow.id)
            .where(RunRow.schedule == text(name), JobRow.state.in_([str(each) for each in states]))
            .order_by(JobRow.id.desc())
        )
        with self._database.read() as session:
            return [_job(row) for row in session.scalars(query)]

    def claim(  # noqa: PLR0913 - the port's
        self,
        owner: str,
        *,
        ttl_s: float,
        measuring: bool,
        place: Place = SOMEWHERE,
        but_not: Collection[int] = (),
        alive: Collection[str] = (),
    ) -> Job | None:
        with self._database.write() as session:
            self._database.one_at_a_time(session)
            now = self._database.common_now(session)
            _put_back_abandoned(session, now, [text(each) for each in alive])
            held = set(session.scalars(select(LeaseRow.device)))
            for job_id, devices in session.execute(_first_of_each(measuring, but_not)).all():
                wanted = [place.lease_of(device) for device in devices]
                if held.isdisjoint(wanted):
                    wanted = wanted or [f"{_NO_DEVICE}{job_id}"]
                    leases = _leases(job_id, wanted, text(owner), now + ttl_s)
                    if _begun(session, job_id, text(owner), now, leases):
                        return _job(_row(session, job_id))
        return None

    def beat(self, owner: str, job_id: int, *, ttl_s: float) -> Beat:
        with self._database.write() as session:
            row = _row(session, job_id, lock=True)
            if not _is_owners(row, owner):
                return Beat(held=False, cancel=row.cancel)
            now = self._database.common_now(session)
            renewed = update(LeaseRow).where(LeaseRow.job_id == job_id)
            session.execute(renewed.values(expires_at=now + ttl_s))
            return Beat(held=True, cancel=row.cancel)

    def set_progress(self, job_id: int, progress: Mapping[str, Any]) -> None:
        with self._database.write() as session:
            _row(session, job_id).progress = dict(progress)

    def set_study(self, job_id: int, study_id: int) -> None:
        with self._database.write() as session:
            _row(session, job_id).study_id = study_id

    def end(
        self,
        job_id: int,
        owner: str,
        state: JobState,
        *,
        reason: str = "",
        exit_code: int | None = None,
    ) -> bool:
        with self._database.write() as session:
            row = _row(session, job_id, lock=True)
            if not _is_owners(row, owner):
                return False
            now = self._database.common_now(session)
            session.execute(delete(LeaseRow).where(LeaseRow.job_id == job_id))
            row.exit_code = exit_code
            if state is JobState.QUEUED:
                row.attempt -= 1
            _leave(row, state, text(reason), now)
            return True

    def cancel(self, job_id: int) -> Job:
        with self._database.write() as session:
            row = _row(session, job_id, lock=True)
            now = self._database.common_now(session)
            if row.state == JobState.QUEUED:
                _leave(row, JobState.CANCELLED, "cancelled before it began", now)
            elif row.state == JobState.RUNNING:
                row.cancel = True
            return _job(row)

    def leases(self) -> Mapping[str, str]:
        query = select(LeaseRow).order_by(LeaseRow.device)
        with self._database.read() as session:
            now = self._database.common_now(session)
            return {
                row.device: f"job {row.job_id} of {row.owner}"
                for row in session.scalars(query.where(LeaseRow.expires_at > now))
                if not row.device.startswith(_NO_DEVICE)
            }


# --------------------------------------------------------------------------------- transitions
def _put_back_abandoned(session: Session, now: float, alive: Sequence[str]) -> None:
    """Jobs whose lease has run out, of owners who may not be alive. It is looked at once more, by
    the deletion itself: its worker may have renewed it meanwhile."""
    expired = select(LeaseRow.job_id).where(
        LeaseRow.expires_at <= now, LeaseRow.owner.not_in(alive)
    )
    abandoned = select(JobRow).where(JobRow.id.in_(expired)).with_for_update(skip_locked=True)
    for row in session.scalars(abandoned).all():
        theirs = delete(LeaseRow).where(LeaseRow.job_id == row.id, LeaseRow.expires_at <= now)
        if _count(session.execute(theirs)) == 0:
            continue
        lost = f"its worker {row.owner} was lost"
        if row.attempt < ATTEMPTS:
            _leave(row, JobState.QUEUED, lost, now)
        else:
            _leave(row, JobState.FAILED, f"{lost}, at attempt {row.attempt} of {ATTEMPTS}", now)


def _begun(
    session: Session, job_id: int, owner: str, now: float, leases: Sequence[LeaseRow]
) -> bool:
    """Whether the job could be had with all of its devices."""
    with session.begin_nested() as attempt:
        taken = (
            update(JobRow)
            .where(JobRow.id == job_id, JobRow.state == str(JobState.QUEUED))
            .values(
                state=str(JobState.RUNNING),
                owner=owner,
                attempt=JobRow.attempt + 1,
                started_at=now,
                ended_at=None,
                exit_code=None,
                reason="",
            )
        )
        if _count(session.execute(taken)) == 1 and added(session, *leases):
            return True
        attempt.rollback()
    return False


def _leave(row: JobRow, state: JobState, reason: str, now: float) -> None:
    """Out of its owner's hands: how long it still takes nobody knows any more. What is to be
    cancelled is not put back."""
    if state is JobState.QUEUED and row.cancel:
        state = JobState.CANCELLED
    row.state = str(state)
    row.owner = None
    row.reason = reason
    row.progress = {key: told for key, told in row.progress.items() if key != _LEFT}
    row.ended_at = now if state.ended else None


# --------------------------------------------------------------------------------------- rows
def job_row(  # noqa: PLR0913 - all that there is to a new job
    now: float,
    kind: JobKind,
    title: str,
    payload: Mapping[str, Any],
    *,
    devices: Sequence[str],
    by: str,
) -> JobRow:
    """A job that is queued."""
    return JobRow(
        kind=str(kind),
        state=str(JobState.QUEUED),
        title=text(title),
        payload=dict(payload),
        devices=sorted({text(device) for device in devices}),
        measuring=bool(devices),
        created_at=now,
        created_by=text(by),
        attempt=0,
        cancel=False,
        reason="",
        progress={},
    )


def _first_of_each(measuring: bool, but_not: Collection[int]) -> Select[int, list[Any]]:
    """Of the jobs that wait, the oldest of those that need the same devices: where it has to wait
    for them, so have the others, however many."""
    waiting = (JobRow.state == str(JobState.QUEUED), JobRow.measuring == measuring)
    first = func.min(JobRow.id)
    of_each = select(first).where(*waiting, JobRow.id.not_in(list(but_not)))
    return (
        select(JobRow.id, JobRow.devices)
        .where(JobRow.id.in_(of_each.group_by(cast(JobRow.devices, Text))))
        .order_by(JobRow.id)
    )


def _leases(
    job_id: int, devices: Sequence[str], owner: str, expires_at: float
) -> Sequence[LeaseRow]:
    return [
        LeaseRow(device=device, job_id=job_id, owner=owner, expires_at=expires_at)
        for device in devices
    ]


def _row(session: Session, job_id: int, *, lock: bool = False) -> JobRow:
    row = by_id(session, JobRow, job_id, lock=lock)
    if row is None:
        raise NotFound("no such job", value=job_id)
    return row


def _is_owners(row: JobRow, owner: str) -> bool:
    return row.state == JobState.RUNNING and row.owner == text(owner)


def _count(result: Any) -> int:
    assert isinstance(result, CursorResult)
    return result.rowcount


def _job(row: JobRow) -> Job:
    return Job(
        id=row.id,
        kind=JobKind(row.kind),
        state=JobState(row.state),
        title=row.title,
        payload=row.payload,
        devices=tuple(row.devices),
        created_at=row.created_at,
        created_by=row.created_by,
        started_at=row.started_at,
        ended_at=row.ended_at,
        owner=row.owner,
        attempt=row.attempt,
        cancel=row.cancel,
        reason=row.reason,
        exit_code=row.exit_code,
        study_id=row.study_id,
        progress=row.progress,
    )
