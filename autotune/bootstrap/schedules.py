"""Schedules: what follows when one is due, and their desk."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from autotune.adapters.scheduling import next_due, trigger
from autotune.bootstrap.jobs import devices_of
from autotune.bootstrap.notices import notify
from autotune.core.errors import Conflict, InputRefused, NotFound
from autotune.core.jobs import Job, JobState
from autotune.core.notices import Event
from autotune.core.schedules import NightRun, RunState, Schedule, ScheduleState, news
from autotune.retune import telling
from autotune.retune.nightly import challenge_s
from autotune.service_ports import ScheduleView
from autotune.studyfile import read_definition
from storage.service import ServiceStore

WINDOW_OVER = "its maintenance window was over before it could begin"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_RECENT = 50

_log = logging.getLogger("autotune.scheduler")


# ------------------------------------------------------------------------------------- when due
def begin_run(
    store: ServiceStore,
    name: str,
    scheduled_for: float,
    *,
    now: Callable[[], float] = time.time,
) -> None:
    """Queue the run that was due at ``scheduled_for``, or record that it was missed: once, however
    often and by however many schedulers it is called."""
    try:
        schedule = store.schedules.schedule(name)
    except NotFound:  # removed meanwhile
        return
    if schedule.state is ScheduleState.PAUSED or scheduled_for < schedule.active_since:
        return
    why = _hindrance(store, schedule, scheduled_for, now())
    if not why:
        try:
            run = _submitted(store, schedule, scheduled_for, by=f"schedule {name}")
        except InputRefused as exc:
            why = f"its study can no longer be read: {exc}"
        else:
            if run is not None:
                _log.info("run %d of schedule %s is queued", run.id, name)
            return
    missed = store.schedules.missed(schedule.id, scheduled_for, why)
    if missed is not None:
        _log.warning("a run of schedule %s was missed: %s", name, why)
        tell_missed(store, store.schedules.run(missed))


def tell_missed(store: ServiceStore, missed: NightRun) -> None:
    """Have someone hear of it, unless they know already."""
    if news(missed, store.schedules.runs(schedule=missed.schedule, limit=_RECENT)):
        about = {"schedule": missed.schedule, "run": missed.id}
        title, text = telling.missed(missed.schedule, missed.reason)
        notify(store.notices, Event.FAILURE, title, text, about)


def _hindrance(store: ServiceStore, schedule: Schedule, scheduled_for: float, now: float) -> str:
    if window_over(schedule, scheduled_for, now):
        return WINDOW_OVER
    for job in store.jobs_of(schedule.name, JobState.QUEUED, JobState.RUNNING):
        run = store.schedules.run(job.payload["run"])
        return f"run {run.id}, due {utc(run.scheduled_for)}, had not ended"
    return ""


def window_over(schedule: Schedule, scheduled_for: float, now: float) -> bool:
    minutes = schedule.window_minutes
    return minutes is not None and now >= scheduled_for + minutes * 60


def unended(store: ServiceStore, name: str) -> Sequence[NightRun]:
    """Latest first."""
    recent = store.schedules.runs(schedule=name, limit=_RECENT)
    return [run for run in recent if run.state in (RunState.QUEUED, RunState.RUNNING)]


def _submitted(
    store: ServiceStore, schedule: Schedule, scheduled_for: float, *, by: str
) -> NightRun | None:
    return store.submit_run(
        schedule.id,
        scheduled_for,
        title=f"{schedule.name}, {utc(scheduled_for)}",
        devices=devices_of(read_definition(schedule.definition)),
        by=by,
    )


def utc(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M UTC")


# ----------------------------------------------------------------------------------------- desk
class Schedules:
    """Implements `autotune.service_ports.ScheduleDesk`."""

    def __init__(self, store: ServiceStore, *, now: Callable[[], float] = time.time) -> None:
        self._store = store
        self._now = now

    def schedules(self) -> Sequence[ScheduleView]:
        return [self._view(schedule) for schedule in self._store.schedules.schedules()]

    def schedule(self, name: str) -> ScheduleView:
        return self._view(self._store.schedules.schedule(name))

    def add(self, schedule: Schedule, *, by: str) -> ScheduleView:
        _refuse_name(schedule.name)
        trigger(schedule.cron, schedule.timezone)
        read_definition(schedule.definition)
        self._store.schedules.add(replace(schedule, created_by=by))
        self._note(by, "add", schedule.name, _in_words(schedule))
        return self.schedule(schedule.name)

    def set_state(self, name: str, state: ScheduleState, *, by: str) -> ScheduleView:
        """Of one that is paused a run that waits is cancelled; one that has begun goes on."""
        if self._store.schedules.schedule(name).state is not state:
            paused = state is ScheduleState.PAUSED
            self._store.schedules.set_state(name, state)
            if paused:
                self._call_off(name, "its schedule was paused")
            self._note(by, "pause" if paused else "resume", name)
        return self.schedule(name)

    def remove(self, name: str, *, by: str) -> None:
        """A run that waits is cancelled; one that has begun goes on."""
        self._store.schedules.remove(name)
        self._call_off(name, "its schedule was removed")
        self._note(by, "remove", name)

    def run_now(self, name: str, *, by: str) -> Job:
        schedule = self._store.schedules.schedule(name)
        waiting = self._store.jobs_of(name, JobState.QUEUED)
        run = None if waiting else _submitted(self._store, schedule, self._now(), by=by)
        if run is None:
            raise Conflict("a run of this schedule waits already", value=name)
        assert run.job_id is not None
        self._note(by, "run", name, {"run": run.id, "job": run.job_id})
        return self._store.jobs.job(run.job_id)

    def runs(self, name: str | None = None, *, limit: int = 100) -> Sequence[NightRun]:
        return self._store.schedules.runs(schedule=name, limit=limit)

    def run(self, run_id: int) -> NightRun:
        return self._store.schedules.run(run_id)

    # ------------------------------------------------------------------------------------ inner
    def _call_off(self, name: str, why: str) -> None:
        for job in self._store.jobs_of(name, JobState.QUEUED):
            if self._store.jobs.cancel(job.id).state is JobState.CANCELLED:
                self._store.schedules.update_run(
                    job.payload["run"], state=RunState.STOPPED, reason=why
                )

    def _view(self, schedule: Schedule) -> ScheduleView:
        runs = self._store.schedules.runs(schedule=schedule.name, limit=1)
        return ScheduleView(
            schedule=schedule,
            next_at=_next_at(schedule, self._now()),
            last=runs[0] if runs else None,
        )

    def _note(
        self, who: str, action: str, name: str, detail: Mapping[str, Any] | None = None
    ) -> None:
        self._store.promotions.note(who, action, f"schedule {name}", detail=detail)


def _next_at(schedule: Schedule, now: float) -> float | None:
    """As `ScheduleView` has it."""
    if schedule.state is ScheduleState.PAUSED:
        return None
    try:
        return next_due(schedule.cron, schedule.timezone, now)
    except InputRefused:
        return None


def _refuse_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise InputRefused(
            "a schedule's name is up to 100 letters, digits, '.', '_' and '-', the first a letter"
            " or a digit",
            value=name,
        )


def doubts(schedule: Schedule) -> Sequence[str]:
    """What would keep its runs from coming to an answer, as things are on this machine now."""
    study = read_definition(schedule.definition)
    target = None if schedule.target is None else schedule.target.repository
    needed = (study.model.repository, study.model.onnx, target)
    told = [
        f"not here now, and needed when it is due: {path}"
        for path in needed
        if path is not None and not path.exists()
    ]
    window, challenge = schedule.window_minutes, challenge_s(study) / 60
    if window is not None and window < 2 * challenge:
        told.append(
            f"a window of {window:g} minutes leaves hardly any time for a search: to weigh its"
            f" pick against the champion alone takes about {challenge:.1f}"
        )
    return told


def _in_words(schedule: Schedule) -> Mapping[str, Any]:
    return {
        "study": schedule.definition.get("study"),
        "cron": schedule.cron,
        "timezone": schedule.timezone,
        "window_minutes": schedule.window_minutes,
        "policy": str(schedule.policy),
        "margin": schedule.margin,
        "target": None if schedule.target is None else str(schedule.target),
    }
