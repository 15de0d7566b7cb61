"""What is counted for monitoring, on every database."""

from __future__ import annotations

import pytest

from autotune.core.jobs import JobKind, JobState
from autotune.core.notices import Event, NoticeState
from autotune.core.schedules import Outcome, RunState, Schedule
from autotune.service_ports import Figures
from storage.service import ServiceStore
from tests.contract.conftest import Clock


def test_nothing_is_counted_where_nothing_is(service: ServiceStore) -> None:
    assert service.figures() == Figures()


def test_jobs_are_counted_with_the_seconds_that_they_took(
    service: ServiceStore, clock: Clock
) -> None:
    for _ in range(2):
        service.jobs.submit(JobKind.STUDY, "tiny", {}, by="me")
        job = service.jobs.claim("worker", ttl_s=30, measuring=False)
        assert job is not None
        clock.at += 10
        service.jobs.end(job.id, "worker", JobState.DONE)
    since = clock.at
    service.jobs.submit(JobKind.ROLLBACK, "tiny", {}, by="me")
    found = service.figures()
    done = (JobKind.STUDY, JobState.DONE)
    assert found.jobs == {done: 2, (JobKind.ROLLBACK, JobState.QUEUED): 1}
    assert found.job_seconds == {done: pytest.approx(20)}
    assert found.oldest_queued_at == since


def test_runs_are_counted_by_outcome_or_state_and_the_last_success_is_known(
    service: ServiceStore, clock: Clock
) -> None:
    schedule = service.schedules.add(
        Schedule(id=0, name="nightly", definition={}, cron="0 2 * * *")
    )
    ended: list[float] = []
    for state, outcome in (
        (RunState.DONE, Outcome.HOLDS),
        (RunState.DONE, Outcome.HOLDS),
        (RunState.FAILED, None),
    ):
        clock.at += 100
        run = service.schedules.due(schedule, clock.at)
        assert run is not None
        service.schedules.update_run(run, state=state, outcome=outcome)
        ended.append(clock.at)
    found = service.figures()
    assert found.runs == {("nightly", "holds"): 2, ("nightly", "failed"): 1}
    assert found.last_success == {"nightly": ended[1]}


def test_notices_and_held_devices_are_counted(service: ServiceStore) -> None:
    service.notices.add(Event.DRIFT, "", "", {}, "webhook")
    service.jobs.submit(JobKind.STUDY, "tiny", {}, devices=["h/cpu"], by="me")
    service.jobs.claim("worker", ttl_s=30, measuring=True)
    found = service.figures()
    assert found.notices == {(Event.DRIFT, NoticeState.WAITING): 1}
    assert list(found.leases) == ["h/cpu"]


def test_a_schema_that_is_current_is_so(service: ServiceStore) -> None:
    assert service.is_current()
