"""The scheduler on a real database: what is due is fired once, whoever was at work when."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path

import pytest
from apscheduler.schedulers import base
from apscheduler.schedulers.background import BackgroundScheduler
from sqlalchemy import text

from autotune.adapters.scheduling import TABLE, Scheduler, _SharedTable
from autotune.core.errors import StoreFailed
from autotune.core.schedules import Schedule, ScheduleState
from storage.service import ServiceStore

YEARLY = "0 0 1 1 *"
NOW = datetime.now(UTC)
NEW_YEAR = datetime(NOW.year, 1, 1, tzinfo=UTC).timestamp()
LONG_AGO = datetime(NOW.year - 3, 6, 1, tzinfo=UTC).timestamp()
LOOK_S = 0.05

Fired = list[tuple[str, float]]


@pytest.fixture
def path(tmp_path: Path, migrated: Path) -> Path:
    return Path(shutil.copy(migrated, tmp_path / "autotune.db"))


@pytest.fixture
def store(path: Path) -> Iterator[ServiceStore]:
    with closing(ServiceStore(str(path))) as store:
        yield store


@pytest.fixture
def old(path: Path) -> Iterator[ServiceStore]:
    """The same database, years ago."""
    with closing(ServiceStore(str(path), now=lambda: LONG_AGO)) as store:
        yield store


def _schedule(name: str = "nightly", cron: str = YEARLY) -> Schedule:
    definition = {"study": name, "note": "CONFIDENTIAL"}
    return Schedule(id=0, name=name, definition=definition, cron=cron)


@contextmanager
def _at_work(store: ServiceStore, fire: Callable[[str, float], None]) -> Iterator[Scheduler]:
    scheduler = Scheduler(
        store.engine, schedules=store.schedules.schedules, fire=fire, every_s=LOOK_S
    )
    scheduler.start()
    try:
        yield scheduler
    finally:
        scheduler.stop()


def _into(fired: Fired) -> Callable[[str, float], None]:
    return lambda name, at: fired.append((name, at))


def _until(condition: Callable[[], bool]) -> None:
    for _ in range(400):
        if condition():
            return
        time.sleep(0.02)
    raise AssertionError("it never came")


def _some_looks() -> None:
    time.sleep(8 * LOOK_S)


def _jobs(store: ServiceStore) -> list[str]:
    with store.engine.begin() as connection:
        return list(connection.scalars(text(f"SELECT id FROM {TABLE} ORDER BY id")))


def _next(store: ServiceStore) -> list[float | None]:
    with store.engine.begin() as connection:
        return list(connection.scalars(text(f"SELECT next_run_time FROM {TABLE}")))


# ------------------------------------------------------------------------------------- what is due
def test_runs_that_no_scheduler_was_there_for_are_one_run_the_latest(
    old: ServiceStore, store: ServiceStore
) -> None:
    old.schedules.add(_schedule())
    fired: Fired = []
    with _at_work(store, _into(fired)):
        _until(lambda: bool(fired))
        _some_looks()
    assert fired == [("nightly", NEW_YEAR)]


def test_what_was_fired_is_not_fired_again_by_a_scheduler_that_starts_anew(
    old: ServiceStore, store: ServiceStore
) -> None:
    old.schedules.add(_schedule())
    fired: Fired = []
    for _ in range(2):
        with _at_work(store, _into(fired)):
            _until(lambda: bool(fired))
            _some_looks()
    assert len(fired) == 1


def test_a_run_that_was_due_while_the_scheduler_was_away_is_fired_when_it_is_back(
    store: ServiceStore,
) -> None:
    store.schedules.add(_schedule())
    fired: Fired = []
    with _at_work(store, _into(fired)):
        _until(lambda: bool(_jobs(store)))
    assert fired == []
    missed = NOW - timedelta(hours=5)
    _change_clock(store, missed)
    with _at_work(store, _into(fired)):
        _until(lambda: bool(fired))
    assert fired == [("nightly", missed.timestamp())]


def _change_clock(store: ServiceStore, due: datetime) -> None:
    """Have it due at that time, as if it had been all along."""
    table = _table(store)
    (job,) = table.get_all_jobs()
    job._modify(next_run_time=due)
    table.update_job(job)


def _table(store: ServiceStore) -> _SharedTable:
    table = _SharedTable(engine=store.engine, tablename=TABLE)
    table.start(BackgroundScheduler(timezone=UTC), "not running")
    return table


def test_a_schedule_that_another_process_adds_is_followed(
    old: ServiceStore, store: ServiceStore
) -> None:
    fired: Fired = []
    with _at_work(store, _into(fired)):
        _some_looks()
        old.schedules.add(_schedule("late"))
        _until(lambda: bool(fired))
    assert fired == [("late", NEW_YEAR)]


def test_a_paused_schedule_is_not_fired_and_goes_on_from_when_it_is_resumed(
    old: ServiceStore, store: ServiceStore
) -> None:
    old.schedules.add(_schedule())
    store.schedules.set_state("nightly", ScheduleState.PAUSED)
    fired: Fired = []
    with _at_work(store, _into(fired)):
        _until(lambda: bool(_jobs(store)))
        assert _next(store) == [None]
        store.schedules.set_state("nightly", ScheduleState.ACTIVE)
        _until(lambda: _next(store) != [None])
        _some_looks()
    assert fired == []
    (due,) = _next(store)
    assert due is not None
    assert due > NOW.timestamp()


def test_a_schedule_that_is_paused_while_it_is_followed_rests(store: ServiceStore) -> None:
    store.schedules.add(_schedule())
    with _at_work(store, _into([])):
        _until(lambda: _jobs(store) != [] and _next(store) != [None])
        store.schedules.set_state("nightly", ScheduleState.PAUSED)
        _until(lambda: _next(store) == [None])


def test_a_schedule_that_is_removed_is_forgotten(store: ServiceStore) -> None:
    store.schedules.add(_schedule())
    with _at_work(store, _into([])):
        _until(lambda: bool(_jobs(store)))
        store.schedules.remove("nightly")
        _until(lambda: not _jobs(store))


def test_a_schedule_of_an_unknown_zone_does_not_keep_others_from_being_followed(
    old: ServiceStore, store: ServiceStore
) -> None:
    old.schedules.add(
        Schedule(id=0, name="a", definition={}, cron=YEARLY, timezone="Atlantis/Town")
    )
    old.schedules.add(_schedule("b"))
    fired: Fired = []
    with _at_work(store, _into(fired)):
        _until(lambda: bool(fired))
    assert fired == [("b", NEW_YEAR)]


# --------------------------------------------------------------------------------------- failures
def test_a_run_that_cannot_be_recorded_now_is_tried_again(
    old: ServiceStore, store: ServiceStore
) -> None:
    old.schedules.add(_schedule())
    tried: Fired = []

    def fire(name: str, at: float) -> None:
        tried.append((name, at))
        if len(tried) < 3:
            raise StoreFailed("the disk is full")

    with _at_work(store, fire) as scheduler:
        _until(lambda: len(tried) == 3)
        _some_looks()
        assert scheduler.alive()
    assert tried == [("nightly", NEW_YEAR)] * 3


def test_schedules_that_cannot_be_read_for_a_while_are_read_later(
    old: ServiceStore, store: ServiceStore
) -> None:
    old.schedules.add(_schedule())
    fired: Fired = []
    looks: list[int] = []

    def schedules() -> list[Schedule]:
        looks.append(1)
        if len(looks) < 3:
            raise StoreFailed("the database is locked by another process")
        return list(store.schedules.schedules())

    scheduler = Scheduler(store.engine, schedules=schedules, fire=_into(fired), every_s=LOOK_S)
    scheduler.start()
    _until(lambda: bool(fired))
    scheduler.stop()
    assert fired == [("nightly", NEW_YEAR)]


def test_a_clock_that_is_set_back_keeps_no_new_schedule_from_being_followed(
    store: ServiceStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Earlier(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:
            return datetime.now(tz) - timedelta(hours=1)

    with _at_work(store, _into([])):
        _some_looks()
        monkeypatch.setattr(base, "datetime", Earlier)
        store.schedules.add(_schedule())
        _until(lambda: bool(_jobs(store)))


def test_a_zone_that_this_machine_does_not_know_is_told_of_once(
    store: ServiceStore, caplog: pytest.LogCaptureFixture
) -> None:
    store.schedules.add(replace(_schedule(), timezone="Europe/Atlantis"))
    with caplog.at_level(logging.WARNING), _at_work(store, _into([])) as scheduler:
        _some_looks()
        assert scheduler.alive()
    told = [each.message for each in caplog.records if each.name == "autotune.scheduler"]
    assert len(told) == 1
    assert "Europe/Atlantis" in told[0]


def test_a_job_that_another_scheduler_has_removed_is_no_failure(store: ServiceStore) -> None:
    store.schedules.add(_schedule())
    with _at_work(store, _into([])):
        _until(lambda: bool(_jobs(store)))
    table = _table(store)
    (job,) = table.get_all_jobs()
    table.remove_job(job.id)
    table.update_job(job)
    table.remove_job(job.id)
    assert _jobs(store) == []


def test_a_scheduler_that_has_not_looked_for_minutes_is_not_alive(store: ServiceStore) -> None:
    clock = [0.0]
    answers = True

    def schedules() -> list[Schedule]:
        if answers:
            return []
        raise StoreFailed("the database is gone")

    scheduler = Scheduler(
        store.engine,
        schedules=schedules,
        fire=_into([]),
        every_s=LOOK_S,
        monotonic=lambda: clock[0],
    )
    scheduler.start()
    answers = False
    _some_looks()
    assert scheduler.alive()
    clock[0] = 400.0
    _some_looks()
    assert not scheduler.alive()
    answers = True
    _until(scheduler.alive)
    scheduler.stop()


def test_a_scheduler_that_was_stopped_is_not_alive_and_leaves_the_database_usable(
    store: ServiceStore,
) -> None:
    with _at_work(store, _into([])) as scheduler:
        _some_looks()
        assert scheduler.alive()
    assert not scheduler.alive()
    assert list(store.schedules.schedules()) == []


def test_the_table_holds_neither_the_study_nor_where_the_database_is(
    path: Path, store: ServiceStore
) -> None:
    store.schedules.add(_schedule())
    with _at_work(store, _into([])):
        _until(lambda: bool(_jobs(store)))
    with store.engine.begin() as connection:
        (state,) = connection.scalars(text(f"SELECT job_state FROM {TABLE}"))
    assert b"nightly" in state
    assert b"CONFIDENTIAL" not in state
    assert str(path).encode() not in state
