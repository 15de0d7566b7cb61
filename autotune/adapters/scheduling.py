"""When a schedule is due: cron expressions, time zones, and the scheduler that waits for them.

APScheduler reads the expressions and keeps the next times in a table beside the schedules. Its
numbers of weekdays are not cron's (0 is Monday), and it takes a day of the month and one of the
week together where cron takes either: `trigger` sees to both.
"""

from __future__ import annotations

import difflib
import logging
import re
import threading
import time
import zoneinfo
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

from apscheduler.executors.base import BaseExecutor
from apscheduler.job import Job
from apscheduler.jobstores.base import ConflictingIdError, JobLookupError
from apscheduler.jobstores.sqlalchemy import SQLAlchemyJobStore
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.triggers.base import BaseTrigger
from apscheduler.triggers.combining import OrTrigger
from apscheduler.triggers.cron import CronTrigger
from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from autotune.core.errors import AutotuneError, InputRefused
from autotune.core.schedules import Schedule, ScheduleState

TABLE = "scheduler_jobs"
_STORE = "schedules"
_SILENT_S = 300.0
"""A scheduler that has not looked for so long does not live: longer than it waits for a lock."""

_FIELDS = ("minute", "hour", "day", "month", "day_of_week")
_WORDS = ("minute", "hour", "day of the month", "month", "day of the week")
_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_SPAN = re.compile(r"(?:\*|(?P<first>\w+)(?:-(?P<last>\w+))?)(?:/(?P<step>\d+))?", re.ASCII)

_log = logging.getLogger("autotune.scheduler")


# ---------------------------------------------------------------------------------- expressions
def trigger(cron: str, timezone: str) -> BaseTrigger:
    """The times of a cron expression of five fields in an IANA time zone. InputRefused, naming the
    bad field, for one that cannot be read or is never due."""
    zone = _zone(timezone)
    values = cron.split()
    if len(values) != len(_FIELDS):
        raise InputRefused(
            "a cron expression has five fields: minute, hour, day of the month, month, day of the"
            " week",
            value=cron,
            next_step='e.g. "0 2 * * *": at 02:00 every night',
        )
    fields = dict(zip(_FIELDS, values, strict=True))
    for name, word in zip(_FIELDS, _WORDS, strict=True):
        fields[name] = _checked(name, word, fields[name])
    made = _combined(fields, zone)
    if made.get_next_fire_time(None, datetime.now(UTC)) is None:
        raise InputRefused("no day is ever due by this cron expression", value=cron)
    return made


def next_due(cron: str, timezone: str, after: float) -> float | None:
    """The first time after ``after``; both in UTC seconds since the epoch."""
    since = datetime.fromtimestamp(after, UTC) + timedelta(microseconds=1)
    due = trigger(cron, timezone).get_next_fire_time(None, since)
    return None if due is None else due.timestamp()


class _Cron(CronTrigger):  # type: ignore[misc]
    """A time that the clock shows twice, when summer time ends, is due once where hours are named
    (where every hour is meant, both are). One that it skips is due as much later."""

    def get_next_fire_time(self, previous: datetime | None, now: datetime) -> datetime | None:
        due: datetime | None = super().get_next_fire_time(previous, now)
        while due is not None and self._names_hours() and _shown_before(due):
            due = super().get_next_fire_time(due, due)
        return due

    def _names_hours(self) -> bool:
        hours = next(field for field in self.fields if field.name == "hour")
        return not str(hours).startswith("*")


def _shown_before(at: datetime) -> bool:
    """Whether the clock has shown this time once already."""
    after, before = at.utcoffset(), at.replace(fold=0).utcoffset()
    assert after is not None
    assert before is not None
    return after < before


def _combined(fields: dict[str, str], zone: zoneinfo.ZoneInfo) -> BaseTrigger:
    """As cron has it: where both kinds of days are restricted, either is due."""
    if fields["day"].startswith("*") or fields["day_of_week"].startswith("*"):
        return _Cron(**_translated(fields), timezone=zone)
    by_date, by_weekday = fields | {"day_of_week": "*"}, fields | {"day": "*"}
    return OrTrigger([_Cron(**_translated(each), timezone=zone) for each in (by_date, by_weekday)])


def _checked(name: str, word: str, value: str) -> str:
    value = value.lower()
    try:
        CronTrigger(**_translated({name: value}), timezone=UTC)
    except ValueError as exc:
        raise InputRefused(
            f"the {word} of the cron expression is not one: {exc}", value=value
        ) from exc
    return value


def _translated(fields: dict[str, str]) -> dict[str, str]:
    """With weekdays by name: cron counts them from Sunday (0, or 7), APScheduler from Monday."""
    if fields.get("day_of_week", "*") == "*":
        return fields
    days = {day for span in fields["day_of_week"].split(",") for day in _days(span)}
    return fields | {"day_of_week": ",".join(_DAYS[day] for day in sorted(days))}


def _days(span: str) -> set[int]:
    match = _SPAN.fullmatch(span)
    if match is None:
        raise ValueError(f'"{span}" is no weekday, 0 to 7 or {_DAYS[0]} to {_DAYS[-1]}')
    first = 0 if match["first"] is None else _day(match["first"])
    last = _day(match["last"]) or 7 if match["last"] else first
    if match["first"] is None:
        last = 6
    step = int(match["step"] or 1)
    if last < first or step < 1 or (match["step"] and first == last):
        raise ValueError(f'"{span}" is no span of weekdays: write them out, as in fri,sat,sun')
    return {day % 7 for day in range(first, last + 1, step)}


def _day(text: str) -> int:
    if text in _DAYS:
        return _DAYS.index(text)
    if text.isdecimal() and int(text) <= 7:
        return int(text)
    raise ValueError(f'"{text}" is no weekday, 0 to 7 or {_DAYS[0]} to {_DAYS[-1]}')


def _zone(name: str) -> zoneinfo.ZoneInfo:
    if name not in _zones():
        near = difflib.get_close_matches(name, _zones(), n=3)
        raise InputRefused(
            "no such time zone",
            value=name,
            next_step=f"Did you mean {' or '.join(near)}?" if near else "e.g. UTC or Europe/Berlin",
        )
    return zoneinfo.ZoneInfo(name)


@cache
def _zones() -> frozenset[str]:
    return frozenset(zoneinfo.available_timezones())


# ------------------------------------------------------------------------------------ scheduler
class Scheduler:
    """Calls ``fire(name, scheduled_for)`` when one of ``schedules`` is due, in threads of its own.

    The next times are kept in the table `TABLE` of ``engine``, so that a run which was due while
    no scheduler was at work is found when one starts: one call for all that were missed, with the
    latest time. Schedules are looked up every ``every_s`` seconds, since other processes add them.
    Several schedulers may be at work: ``fire`` has to tell which of them was first. Where it raises
    AutotuneError it is called again at the next look.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        schedules: Callable[[], Sequence[Schedule]],
        fire: Callable[[str, float], None],
        every_s: float = 5.0,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._schedules = schedules
        self._fire = fire
        self._every_s = every_s
        self._monotonic = monotonic
        self._owed: list[tuple[str, float]] = []
        self._unknown: set[str] = set()
        self._looked_at = monotonic()
        self._stopping = threading.Event()
        self._looking = threading.Thread(target=self._keep_looking, name="schedules", daemon=True)
        self._scheduler = BackgroundScheduler(
            timezone=UTC,
            jobstores={_STORE: _SharedTable(engine=engine, tablename=TABLE)},
            executors={_STORE: _Firing(self._fire_or_owe)},
            job_defaults={"coalesce": True, "max_instances": 1, "misfire_grace_time": None},
        )

    def start(self) -> None:
        try:
            self._scheduler.start()
        except SQLAlchemyError as exc:
            raise _unusable(exc) from exc
        self._looking.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._looking.is_alive():
            self._looking.join()
        if self._scheduler.running:
            self._scheduler.shutdown()

    def alive(self) -> bool:
        """Whether it has looked for schedules lately."""
        silent_s = self._monotonic() - self._looked_at
        at_work = self._scheduler.running and self._looking.is_alive()
        return at_work and silent_s < self._every_s + _SILENT_S

    # --------------------------------------------------------------------------------- its threads
    def _keep_looking(self) -> None:
        """By the monotonic clock; and it has APScheduler look at the other one each time, which may
        have been set."""
        while True:
            self._look()
            self._scheduler.wakeup()
            if self._stopping.wait(self._every_s):
                return

    def _look(self) -> None:
        try:
            owed, self._owed = self._owed, []
            for name, scheduled_for in owed:
                self._fire_or_owe(name, scheduled_for)
            self._follow()
        except (AutotuneError, SQLAlchemyError) as exc:
            _log.warning("schedules cannot be read now: %s", exc)
        else:
            self._looked_at = self._monotonic()

    def _follow(self) -> None:
        wanted = {f"schedule-{schedule.id}": schedule for schedule in self._schedules()}
        known = {job.id: job for job in self._scheduler.get_jobs(_STORE)}
        for job_id in known.keys() - wanted.keys():
            self._scheduler.remove_job(job_id, _STORE)
        for job_id, schedule in wanted.items():
            if job_id not in known:
                self._add(job_id, schedule)
            else:
                _keep(known[job_id], schedule)

    def _add(self, job_id: str, schedule: Schedule) -> None:
        """It has been due since it was made or resumed, whether or not a scheduler was at work."""
        try:
            due = trigger(schedule.cron, schedule.timezone)
            since = datetime.fromtimestamp(schedule.active_since, UTC)
            self._scheduler.add_job(
                f"{__name__}:nothing",
                due,
                args=(schedule.name,),
                id=job_id,
                next_run_time=None if _paused(schedule) else due.get_next_fire_time(None, since),
                jobstore=_STORE,
                executor=_STORE,
            )
        except InputRefused as exc:  # of a zone that this machine does not know
            if job_id not in self._unknown:
                _log.warning("schedule %s cannot be followed here: %s", schedule.name, exc)
            self._unknown.add(job_id)
        except ConflictingIdError:  # another scheduler was faster
            pass

    def _fire_or_owe(self, name: str, scheduled_for: float) -> None:
        try:
            self._fire(name, scheduled_for)
        except AutotuneError as exc:
            _log.warning("schedule %s is due and cannot be begun now: %s", name, exc)
            self._owed.append((name, scheduled_for))


def nothing(name: str) -> None:
    """What stands in the table as a job's function: `_Firing` does not call it."""


def _paused(schedule: Schedule) -> bool:
    return schedule.state is ScheduleState.PAUSED


def _keep(job: Job, schedule: Schedule) -> None:
    """A schedule that is resumed goes on from now on."""
    with suppress(JobLookupError):  # another scheduler has removed it
        if _paused(schedule) and job.next_run_time is not None:
            job.pause()
        elif not _paused(schedule) and job.next_run_time is None:
            job.resume()


class _Firing(BaseExecutor):  # type: ignore[misc]
    """Tells when a job was due, which a job's own function is not told."""

    def __init__(self, fire: Callable[[str, float], None]) -> None:
        super().__init__()
        self._fire = fire

    def _do_submit_job(self, job: Job, run_times: Sequence[datetime]) -> None:
        for run_time in run_times:
            self._fire(job.args[0], run_time.timestamp())
        self._run_job_success(job.id, [])


class _SharedTable(SQLAlchemyJobStore):  # type: ignore[misc]
    """A job may be gone, since another scheduler has removed it; the database may be away for a
    while. Neither ends the scheduler. What cannot be kept now is found due again."""

    def start(self, scheduler: Any, alias: str) -> None:
        try:
            super().start(scheduler, alias)
        except SQLAlchemyError:  # another scheduler was making the table at the same moment
            super().start(scheduler, alias)

    def get_next_run_time(self) -> datetime | None:
        try:
            found: datetime | None = super().get_next_run_time()
        except SQLAlchemyError as exc:
            _log.warning("%s", _unusable(exc))
            return None
        return found

    def update_job(self, job: Job) -> None:
        try:
            super().update_job(job)
        except JobLookupError:
            pass
        except SQLAlchemyError as exc:
            _log.warning("%s", _unusable(exc))

    def remove_job(self, job_id: str) -> None:
        with suppress(JobLookupError):
            super().remove_job(job_id)

    def shutdown(self) -> None:
        """The engine is not its own."""


def _unusable(exc: Any) -> AutotuneError:
    return AutotuneError(f"the scheduler's table cannot be used: {getattr(exc, 'orig', exc)}")
