"""What the service remembers: one database, which studies are stored in too.

database    the engine that the stores share: a reading session, a writing transaction
tables      the tables, as typed models
jobs        the queue and the leases
schedules   schedules and their runs
promotions  promotions and the audit trail
tokens      who may ask
notices     what is to be told
figures     counts, for monitoring
forgetting  what need not be kept for ever
targets     where a promotion goes, as plain data
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sqlalchemy import Engine

from autotune.core.jobs import Job, JobKind, JobState
from autotune.core.promotions import Promotion, PromotionState
from autotune.core.schedules import NightRun
from autotune.service_ports import Figures
from storage.service.database import Database
from storage.service.figures import read_figures
from storage.service.forgetting import forget_samples
from storage.service.jobs import SqlJobStore, job_row
from storage.service.notices import SqlNoticeStore
from storage.service.promotions import SqlPromotionStore, advanced, audit_row
from storage.service.schedules import SqlScheduleStore, new_run
from storage.service.tokens import SqlTokenStore
from storage.store import SqlTrialStore
from storage.summaries import SqlStudyReader

__all__ = ["ServiceStore"]


class ServiceStore:
    """All stores on one database. ``where``, ``create`` and ``busy_timeout_s`` as in
    `SqlTrialStore`; ``now``, where it is given, is the clock of everything, of leases too. Threads
    may share it; every call is one transaction. The stores raise
    InputRefused and StoreFailed only.
    """

    def __init__(
        self,
        where: str,
        *,
        create: bool = True,
        busy_timeout_s: float = 60.0,
        now: Callable[[], float] | None = None,
    ) -> None:
        self._database = Database(where, create=create, busy_timeout_s=busy_timeout_s, now=now)
        self.trials = SqlTrialStore(
            where, create=create, busy_timeout_s=busy_timeout_s, now=self._database.now
        )
        self.jobs = SqlJobStore(self._database)
        self.schedules = SqlScheduleStore(self._database)
        self.promotions = SqlPromotionStore(self._database)
        self.tokens = SqlTokenStore(self._database)
        self.notices = SqlNoticeStore(self._database)
        self.reader = SqlStudyReader(self._database)

    @property
    def engine(self) -> Engine:
        """For a library that keeps a table of its own here; its connections are going to write."""
        return self._database.writing

    def submit_run(
        self, schedule_id: int, scheduled_for: float, *, title: str, devices: Sequence[str], by: str
    ) -> NightRun | None:
        """Record a run that is due and queue its job, both or neither; None if one due at that
        moment is there already."""
        with self._database.write() as session:
            run = new_run(session, schedule_id, scheduled_for)
            if run is None:
                return None
            payload = {"schedule": run.schedule, "run": run.id}
            now = self._database.common_now(session)
            job = job_row(now, JobKind.NIGHTLY, title, payload, devices=devices, by=by)
            session.add(job)
            session.flush()
            run.job_id = job.id
            run_id = run.id
        return self.schedules.run(run_id)

    def approve(
        self, promotion: Promotion, *, title: str, devices: Sequence[str], subject: str, by: str
    ) -> Job:
        """A proposal, approved, with the job that puts it into service and the step's audit: all of
        it or nothing."""
        payload = {"promotion": promotion.id}
        about = {"model": promotion.model, "target": str(promotion.target)}
        with self._database.write() as session:
            now = self._database.common_now(session)
            proposed, approved = PromotionState.PROPOSED, PromotionState.APPROVED
            advanced(session, promotion.id, (proposed,), approved, by=by, now=now)
            session.add(audit_row(now, by, "approved", subject, detail=about))
            job = job_row(now, JobKind.PROMOTE, title, payload, devices=devices, by=by)
            session.add(job)
            session.flush()
            job_id = job.id
        return self.jobs.job(job_id)

    def jobs_of(self, schedule: str, *states: JobState) -> Sequence[Job]:
        """Of the runs of schedules of that name, newest first."""
        return self.jobs.of_schedule(schedule, states)

    def is_current(self) -> bool:
        """Whether the database answers, with the schema that this autotune knows. StoreFailed for
        one that does not, or that a newer autotune has changed."""
        return self._database.is_current()

    def refuse_unwritable(self) -> None:
        """StoreFailed unless the database takes what is written to it."""
        self._database.refuse_unwritable()

    def figures(self) -> Figures:
        return read_figures(self._database, self.jobs.leases())

    def forget_samples(self, ended_before: float, limit: int) -> int:
        """Of up to ``limit`` measurements of studies that had ended then: their raw request times
        are removed. Returns of how many."""
        return forget_samples(self._database, ended_before, limit)

    def close(self) -> None:
        self.trials.close()
        self._database.close()
