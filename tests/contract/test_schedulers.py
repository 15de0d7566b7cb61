"""Schedulers that share a database of either kind."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from datetime import UTC, datetime

import pytest

from autotune.adapters.scheduling import Scheduler
from autotune.bootstrap.schedules import begin_run
from autotune.core.schedules import RunState, Schedule
from autotune.studyfile import study_from_options
from storage.service import ServiceStore

NOW = datetime.now(UTC)
NEW_YEAR = datetime(NOW.year, 1, 1, tzinfo=UTC).timestamp()
LONG_AGO = datetime(NOW.year - 2, 6, 1, tzinfo=UTC).timestamp()
NAMES = ("a", "b", "c")
DEFINITION = study_from_options(
    {
        "study": "resnet",
        "model": {"onnx": "model.onnx", "name": "resnet"},
        "workload": {"target_qps": 40},
        "sla": {"p95_ms": 80},
        "space": "quick",
    }
).definition


@pytest.fixture
def stores(where: str) -> Iterator[list[ServiceStore]]:
    """As three processes have the database, in which schedules are overdue."""
    with ExitStack() as stack:
        old = stack.enter_context(closing(ServiceStore(where, now=lambda: LONG_AGO)))
        for name in NAMES:
            old.schedules.add(Schedule(id=0, name=name, definition=DEFINITION, cron="0 0 1 1 *"))
        yield [stack.enter_context(closing(ServiceStore(where))) for _ in range(3)]


def test_schedulers_that_start_at_once_begin_each_run_once(stores: list[ServiceStore]) -> None:
    called = threading.Semaphore(0)

    def beginning(store: ServiceStore) -> Callable[[str, float], None]:
        def fire(name: str, at: float) -> None:
            begin_run(store, name, at)
            called.release()

        return fire

    schedulers = [
        Scheduler(
            store.engine,
            schedules=store.schedules.schedules,
            fire=beginning(store),
            every_s=0.05,
        )
        for store in stores
    ]
    starts = [threading.Thread(target=scheduler.start) for scheduler in schedulers]
    for start in starts:
        start.start()
    for start in starts:
        start.join()
    for _ in NAMES:
        assert called.acquire(timeout=20)
    time.sleep(0.5)
    assert all(scheduler.alive() for scheduler in schedulers)
    for scheduler in schedulers:
        scheduler.stop()
    runs, jobs = stores[0].schedules.runs(), stores[0].jobs.jobs()
    told = sorted((run.schedule, run.scheduled_for, run.state) for run in runs)
    assert told == [(name, NEW_YEAR, RunState.QUEUED) for name in NAMES]
    assert {run.job_id for run in runs} == {job.id for job in jobs}
    assert len(jobs) == len(NAMES)
