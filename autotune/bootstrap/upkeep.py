"""What the service sees to now and then: notices are sent, what a lost job leaves is tidied, and
what is kept for a while is removed."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import structlog

from autotune.bootstrap.jobs import folder_name
from autotune.bootstrap.notices import deliver_waiting, notify
from autotune.bootstrap.settling import BY
from autotune.bootstrap.worker import someone_measures
from autotune.core.errors import AutotuneError, InputRefused
from autotune.core.jobs import Job, JobKind, JobState
from autotune.core.notices import Event, Notice
from autotune.core.promotions import PromotionState, Step
from autotune.core.schedules import RunState
from autotune.service_ports import JobStore, NoticeStore, PromotionStore, ScheduleStore
from autotune.settings import Settings

EVERY_S = 10.0
TIDIED_S = 3600.0
KEPT_DAYS = 30
_DAY_S = 86_400.0
_LATELY_S = 3600.0
_LOOKED_AT = 200
_AT_ONCE = 100
"""Measurements whose raw times are removed in one step: others write to the database, too."""

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
        self._odd: set[int] = set()
        self._seen_to = now() - KEPT_DAYS * _DAY_S

    def see_to(self) -> None:
        """To those that have ended since the last one that was seen to, and some time before:
        by their own times, whatever the clock is here. One that cannot be seen to is told in the
        log and keeps no other from it."""
        now, seen_to = self._now(), self._seen_to
        ended = (JobState.FAILED, JobState.CANCELLED)
        for job in self._jobs.ended(ended, since=seen_to - _LATELY_S):
            seen_to = max(seen_to, job.ended_at or seen_to)
            try:
                self._follow(job, now)
            except InputRefused as exc:
                if job.id not in self._odd:
                    log.warning("nothing can follow from this job", job=job.id, why=str(exc))
                self._odd.add(job.id)
        self._seen_to = seen_to

    def _follow(self, job: Job, now: float) -> None:
        lately = job.ended_at is not None and now - job.ended_at < _LATELY_S
        if lately and job.state is JobState.FAILED:
            self._tell(job)
        if job.kind is JobKind.NIGHTLY:
            self._end_night(job)
        if job.kind is JobKind.PROMOTE:
            self._end_promotion(job)

    def _end_night(self, job: Job) -> None:
        run = self._schedules.run(job.payload["run"])
        if run.state in (RunState.QUEUED, RunState.RUNNING):
            failed = job.state is JobState.FAILED
            state = RunState.FAILED if failed else RunState.STOPPED
            self._schedules.update_run(run.id, state=state, reason=job.reason)

    def _end_promotion(self, job: Job) -> None:
        """One that was never begun. What had begun is undone (see `settling`), or gone on with by
        `autotune promote`: that is said where it stands."""
        promotion = self._promotions.promotion(job.payload["promotion"])
        if promotion.state is PromotionState.APPROVED:
            self._promotions.advance(
                promotion.id,
                expected=(PromotionState.APPROVED,),
                state=PromotionState.FAILED,
                reason=job.reason,
                step=Step(who=BY, action="failed", why=job.reason),
            )
        elif promotion.state is PromotionState.APPLYING and not promotion.reason:
            why = f"left half done: {job.reason}"
            self._promotions.advance(
                promotion.id,
                expected=(PromotionState.APPLYING,),
                state=PromotionState.APPLYING,
                reason=f"{why}; the service, or the next promotion to its target, undoes it, unless"
                f" `autotune promote --approve {promotion.id}` goes on with it before",
                step=Step(who=BY, action="left half done", why=job.reason),
            )

    def _tell(self, job: Job) -> None:
        if job.id in self._told:
            return
        if not self._is_told(job):
            self._notify(job)
        self._told.add(job.id)

    def _notify(self, job: Job) -> None:
        notify(
            self._notices,
            Event.FAILURE,
            f"{job.kind} {job.title} failed",
            f"Job {job.id}, asked for by {job.created_by}, failed:\n{job.reason}\n"
            f"Next: {folder_name(job)}.log, among the service's logs, has all that it said.",
            {"job": job.id, "kind": str(job.kind), "title": job.title, "reason": job.reason},
            settings=self._settings.notify,
        )

    def _is_told(self, job: Job) -> bool:
        """By the job itself, by another process of the service, or by this one before it was
        started anew."""
        return any(
            notice.created_at >= job.created_at and _is_about(notice, job)
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
    """What jobs, and nights without a service, left below the service's folder `KEPT_DAYS` ago.
    What cannot be removed stays, for the next time."""
    for kind in ("exports/job-*", "exports/run-*", "logs/job-*"):
        for left in settings.service_dir.glob(kind):
            with suppress(OSError):
                if now - left.stat().st_mtime < KEPT_DAYS * _DAY_S:
                    continue
                if left.is_dir():
                    shutil.rmtree(left, ignore_errors=True)
                else:
                    left.unlink()


@dataclass(frozen=True, slots=True, kw_only=True)
class Forgetting:
    """Of studies that ended ``days`` ago the raw times of their requests are removed: by far the
    most that the database holds. ``forget`` removes those of so many measurements, of studies that
    had ended at a time, and says of how many."""

    forget: Callable[[float, int], int]
    days: float

    def act(self, now: float, *, enough: Callable[[], bool]) -> int:
        """In steps, until ``enough``; of how many measurements."""
        forgotten = 0
        while not enough():
            step = self.forget(now - self.days * _DAY_S, _AT_ONCE)
            forgotten += step
            if step < _AT_ONCE:
                break
        return forgotten


class Upkeep:
    """A thread that sees to it every few seconds, and at once when `hurry` is called. Each of its
    duties is done though another cannot be."""

    def __init__(
        self,
        aftermath: Aftermath,
        notices: NoticeStore,
        settings: Settings,
        *,
        forgetting: Forgetting | None = None,
        settle: Callable[[], None] = lambda: None,
    ) -> None:
        self._aftermath = aftermath
        self._notices = notices
        self._settings = settings
        self._forgetting = forgetting
        self._settle = settle
        self._tidied_at: float | None = None
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
            for duty in (self._aftermath.see_to, self._settle, self._send, self._tidy):
                _attempt(duty)
            self._wake.wait(EVERY_S)
            self._wake.clear()

    def _send(self) -> None:
        sent = deliver_waiting(self._notices, settings=self._settings, sleep=self._pause)
        if sent:
            log.info("notices sent", count=sent)

    def _tidy(self) -> None:
        """While nothing is measured here: what is removed keeps the disk busy."""
        now = time.monotonic()
        lately = self._tidied_at is not None and now - self._tidied_at < TIDIED_S
        if lately or someone_measures():
            return
        self._tidied_at = now
        remove_old(self._settings, time.time())
        if self._forgetting is not None:
            forgotten = self._forgetting.act(
                time.time(), enough=lambda: self._stopping.is_set() or someone_measures()
            )
            if forgotten:
                log.info("raw times removed", measurements=forgotten)

    def _pause(self, seconds: float) -> None:
        self._stopping.wait(seconds)


def _attempt(duty: Callable[[], None]) -> None:
    try:
        duty()
    except (AutotuneError, OSError) as exc:
        log.warning("upkeep failed", why=str(exc))
    except Exception:  # what nobody foresaw ends no upkeep
        log.exception("upkeep failed")
