"""What the service sees to now and then: notices are sent, and what a lost job leaves is tidied."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable

import structlog

from autotune.bootstrap.notices import deliver_waiting, notify
from autotune.core.errors import AutotuneError
from autotune.core.jobs import Job, JobKind, JobState
from autotune.core.notices import Event, Notice
from autotune.core.promotions import PromotionState
from autotune.core.schedules import RunState
from autotune.service_ports import JobStore, NoticeStore, PromotionStore, ScheduleStore
from autotune.settings import Settings

EVERY_S = 10.0
KEPT_DAYS = 30
_LATELY_S = 3600.0
_LOOKED_AT = 200

log = structlog.get_logger("autotune.upkeep")


class Aftermath:
    """Follows from jobs that failed or were cancelled, whether their process could still tell of it
    or not: the night or the promotion that they were ends with them, and someone hears of a
    failure, once."""

    def __init__(  # noqa: PLR0913 - the stores that jobs leave traces in
        self,
        *,
        jobs: JobStore,
        schedules: ScheduleStore,
        promotions: PromotionStore,
        notices: NoticeStore,
        settings: Settings,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._jobs = jobs
        self._schedules = schedules
        self._promotions = promotions
        self._notices = notices
        self._settings = settings
        self._now = now
        self._told: set[int] = set()

    def see_to(self) -> None:
        ended = (JobState.FAILED, JobState.CANCELLED)
        for job in self._jobs.jobs(states=ended, limit=_LOOKED_AT):
            if job.kind is JobKind.NIGHTLY:
                self._end_night(job)
            if job.kind is JobKind.PROMOTE:
                self._end_promotion(job)
            lately = job.ended_at is not None and self._now() - job.ended_at < _LATELY_S
            if lately and job.state is JobState.FAILED:
                self._tell(job)

    def _end_night(self, job: Job) -> None:
        run = self._schedules.run(job.payload["run"])
        if run.state in (RunState.QUEUED, RunState.RUNNING):
            failed = job.state is JobState.FAILED
            state = RunState.FAILED if failed else RunState.STOPPED
            self._schedules.update_run(run.id, state=state, reason=job.reason)

    def _end_promotion(self, job: Job) -> None:
        """One that was never begun. What had begun is undone when its target is promoted to next,
        or gone on with by `autotune promote`: that is said where it stands."""
        promotion = self._promotions.promotion(job.payload["promotion"])
        if promotion.state is PromotionState.APPROVED:
            self._promotions.advance(
                promotion.id,
                expected=(PromotionState.APPROVED,),
                state=PromotionState.FAILED,
                reason=job.reason,
            )
        elif promotion.state is PromotionState.APPLYING and not promotion.reason:
            self._promotions.advance(
                promotion.id,
                expected=(PromotionState.APPLYING,),
                state=PromotionState.APPLYING,
                reason=f"left half done: {job.reason}; `autotune promote --approve {promotion.id}`"
                " goes on with it, the next promotion to its target undoes it",
            )

    def _tell(self, job: Job) -> None:
        if job.id in self._told or self._is_told(job):
            return
        self._told.add(job.id)
        notify(
            self._notices,
            Event.FAILURE,
            f"{job.kind} {job.title} failed",
            f"Job {job.id}, asked for by {job.created_by}, failed:\n{job.reason}",
            {"job": job.id, "kind": str(job.kind), "title": job.title, "reason": job.reason},
            settings=self._settings.notify,
        )

    def _is_told(self, job: Job) -> bool:
        """By the job itself, by another process of the service, or by this one before it was
        started anew."""
        since = job.started_at or job.created_at
        return any(
            notice.created_at >= since and _is_about(notice, job)
            for notice in self._notices.notices(limit=_LOOKED_AT)
        )


def _is_about(notice: Notice, job: Job) -> bool:
    """The run of a night and a promotion tell of their failures under their own numbers."""
    if notice.payload.get("job") == job.id:
        return True
    own = {JobKind.NIGHTLY: "run", JobKind.PROMOTE: "promotion", JobKind.ROLLBACK: "promotion"}
    key = own.get(job.kind)
    told = notice.event in (Event.FAILURE, Event.ROLLED_BACK)
    return told and key is not None and notice.payload.get(key) == job.payload.get(key)


def remove_old(settings: Settings, now: float) -> None:
    """What jobs, and nights without a service, left below the service's folder `KEPT_DAYS` ago."""
    for kind in ("exports/job-*", "exports/run-*", "logs/job-*"):
        for left in settings.service_dir.glob(kind):
            if now - left.stat().st_mtime < KEPT_DAYS * 86_400:
                continue
            if left.is_dir():
                shutil.rmtree(left, ignore_errors=True)
            else:
                left.unlink(missing_ok=True)


class Upkeep:
    """A thread that sees to it every few seconds, and at once when `hurry` is called."""

    def __init__(self, aftermath: Aftermath, notices: NoticeStore, settings: Settings) -> None:
        self._aftermath = aftermath
        self._notices = notices
        self._settings = settings
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="upkeep", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def alive(self) -> bool:
        return self._thread.is_alive()

    def hurry(self) -> None:
        self._wake.set()

    def stop(self) -> None:
        """What is being sent is tried no more than once more."""
        self._stopping.set()
        self._wake.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._aftermath.see_to()
                self._send()
                remove_old(self._settings, time.time())
            except (AutotuneError, OSError) as exc:
                log.warning("upkeep failed", why=str(exc))
            self._wake.wait(EVERY_S)
            self._wake.clear()

    def _send(self) -> None:
        sent = deliver_waiting(self._notices, settings=self._settings, sleep=self._pause)
        if sent:
            log.info("notices sent", count=sent)

    def _pause(self, seconds: float) -> None:
        self._stopping.wait(seconds)
