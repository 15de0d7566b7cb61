"""What every ScheduleStore does."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.core.errors import InputRefused, NotFound
from autotune.core.jobs import JobKind
from autotune.core.promotions import Target
from autotune.core.schedules import (
    NightRun,
    Outcome,
    Policy,
    RunState,
    Schedule,
    ScheduleState,
)
from autotune.service_ports import ScheduleStore
from storage.service import ServiceStore
from tests.contract.conftest import Clock

NIGHTLY = Schedule(id=0, name="nightly", definition={"study": "ocr"}, cron="0 2 * * *")


@pytest.fixture
def schedules(service: ServiceStore) -> ScheduleStore:
    return service.schedules


@pytest.fixture
def others(again: ServiceStore) -> ScheduleStore:
    return again.schedules


@pytest.fixture
def schedule_id(schedules: ScheduleStore) -> int:
    return schedules.add(NIGHTLY)


# ----------------------------------------------------------------------------------- schedules
@pytest.mark.parametrize(
    "target",
    [
        None,
        Target(repository=Path("models")),
        Target(repository=Path("models"), grpc="triton:8001", http="triton:8000", shadow_s=0.0),
    ],
)
def test_a_schedule_comes_back_as_it_was_added(
    schedules: ScheduleStore, others: ScheduleStore, target: Target | None
) -> None:
    added = Schedule(
        id=99,
        name="nightly é",
        definition={"study": "ocr", "sla": {"p95_ms": math.inf}},
        cron="30 2 * * 1-5",
        timezone="Europe/Berlin",
        window_minutes=90.5,
        policy=Policy.REPORT if target is None else Policy.PROPOSE,
        margin=0.1,
        target=target,
        state=ScheduleState.PAUSED,
        created_by="cli:me",
    )
    new_id = schedules.add(added)
    assert others.schedule("nightly é") == replace(
        added, id=new_id, created_at=1000.0, active_since=1000.0
    )


def test_a_name_is_taken_once(schedules: ScheduleStore, schedule_id: int) -> None:
    with pytest.raises(InputRefused, match="there is a schedule of that name"):
        schedules.add(NIGHTLY)
    assert [schedule.id for schedule in schedules.schedules()] == [schedule_id]


def test_schedules_are_listed_by_name(schedules: ScheduleStore) -> None:
    for name in ("b", "c", "a"):
        schedules.add(replace(NIGHTLY, name=name))
    assert [schedule.name for schedule in schedules.schedules()] == ["a", "b", "c"]


def test_an_unknown_schedule_is_refused_and_near_names_are_suggested(
    schedules: ScheduleStore, schedule_id: int
) -> None:
    for ask in (schedules.schedule, schedules.remove):
        with pytest.raises(InputRefused, match="no such schedule") as refused:
            ask("nihgtly")
        assert refused.value.next_step == "Did you mean nightly?"
    with pytest.raises(InputRefused, match="no such schedule"):
        schedules.set_state("weekly", ScheduleState.PAUSED)


def test_a_removed_schedule_is_not_found_by_its_id_under_a_new_one_of_its_name(
    schedules: ScheduleStore, schedule_id: int
) -> None:
    assert schedules.by_id(schedule_id).name == "nightly"
    schedules.remove("nightly")
    schedules.add(NIGHTLY)
    with pytest.raises(NotFound, match="was removed"):
        schedules.by_id(schedule_id)


def test_a_schedule_is_paused_and_resumed(
    schedules: ScheduleStore, others: ScheduleStore, schedule_id: int
) -> None:
    schedules.set_state("nightly", ScheduleState.PAUSED)
    assert others.schedule("nightly").state is ScheduleState.PAUSED
    others.set_state("nightly", ScheduleState.ACTIVE)
    assert schedules.schedule("nightly").state is ScheduleState.ACTIVE


def test_a_schedule_is_active_since_it_was_resumed_last(
    schedules: ScheduleStore, schedule_id: int, clock: Clock
) -> None:
    clock.at = 2000.0
    schedules.set_state("nightly", ScheduleState.ACTIVE)  # is already
    assert schedules.schedule("nightly").active_since == 1000.0
    schedules.set_state("nightly", ScheduleState.PAUSED)
    clock.at = 3000.0
    schedules.set_state("nightly", ScheduleState.ACTIVE)
    assert schedules.schedule("nightly").active_since == 3000.0


def test_a_removed_schedules_runs_stay_and_its_id_is_not_used_again(
    schedules: ScheduleStore, schedule_id: int
) -> None:
    run_id = schedules.due(schedule_id, 5000.0)
    schedules.remove("nightly")
    assert list(schedules.schedules()) == []
    assert [run.id for run in schedules.runs(schedule="nightly")] == [run_id]
    later = schedules.add(NIGHTLY)
    assert later != schedule_id
    assert schedules.due(later, 5000.0) is not None


# ---------------------------------------------------------------------------------------- runs
def test_of_each_schedule_the_latest_run_and_their_number_are_known(
    schedules: ScheduleStore, schedule_id: int
) -> None:
    assert schedules.latest() == {}
    for at in (6000.0, 7000.0, 5000.0):
        schedules.due(schedule_id, at)
    run, count = schedules.latest()["nightly"]
    assert (run.scheduled_for, count) == (7000.0, 3)


def test_a_run_that_is_due_is_queued(schedules: ScheduleStore, schedule_id: int) -> None:
    run_id = schedules.due(schedule_id, 5000.0)
    assert run_id is not None
    run = schedules.run(run_id)
    assert (run.schedule_id, run.schedule, run.scheduled_for) == (schedule_id, "nightly", 5000.0)
    assert (run.state, run.outcome, run.started_at, run.summary) == (
        RunState.QUEUED,
        None,
        None,
        {},
    )


def test_a_run_is_due_once_at_a_moment(
    schedules: ScheduleStore, others: ScheduleStore, schedule_id: int
) -> None:
    assert schedules.due(schedule_id, 5000.0) is not None
    assert others.due(schedule_id, 5000.0) is None
    assert others.due(schedule_id, 5060.0) is not None


def test_however_many_schedulers_find_a_run_due_one_records_it(
    schedules: ScheduleStore, others: ScheduleStore, schedule_id: int
) -> None:
    with ThreadPoolExecutor(6) as pool:
        told = [pool.submit(store.due, schedule_id, 5000.0) for store in (schedules, others) * 3]
        recorded = [each.result(timeout=60) for each in told]
    assert len([run_id for run_id in recorded if run_id is not None]) == 1
    assert len(schedules.runs()) == 1


def test_a_run_that_is_not_going_to_begin_is_recorded_with_its_reason(
    service: ServiceStore, schedule_id: int
) -> None:
    run_id = service.schedules.missed(schedule_id, 5000.0, "its window was over")
    assert run_id is not None
    run = service.schedules.run(run_id)
    assert (run.state, run.reason, run.ended_at) == (RunState.MISSED, "its window was over", 1000.0)
    assert service.schedules.missed(schedule_id, 5000.0, "again") is None
    assert service.schedules.due(schedule_id, 5000.0) is None


def test_a_run_and_its_job_are_recorded_together_and_once(
    service: ServiceStore, again: ServiceStore, schedule_id: int
) -> None:
    def submit(store: ServiceStore) -> NightRun | None:
        return store.submit_run(schedule_id, 5000.0, title="a night", devices=["h/cpu"], by="ci")

    with ThreadPoolExecutor(6) as pool:
        asked = [pool.submit(submit, store) for store in (service, again) * 3]
        (run,) = [run for each in asked if (run := each.result(timeout=60)) is not None]
    (job,) = service.jobs.jobs()
    assert (run.job_id, run.state, run.scheduled_for) == (job.id, RunState.QUEUED, 5000.0)
    assert (job.kind, job.payload) == (JobKind.NIGHTLY, {"schedule": "nightly", "run": run.id})
    assert (job.title, job.devices, job.created_by) == ("a night", ("h/cpu",), "ci")
    assert service.schedules.due(schedule_id, 5000.0) is None


def test_schedules_are_due_at_the_same_moment_each_on_its_own(
    schedules: ScheduleStore, schedule_id: int
) -> None:
    other = schedules.add(replace(NIGHTLY, name="other"))
    assert schedules.due(schedule_id, 5000.0) is not None
    assert schedules.due(other, 5000.0) is not None


def test_a_schedule_that_is_gone_has_no_run_due(schedules: ScheduleStore, schedule_id: int) -> None:
    schedules.remove("nightly")
    with pytest.raises(InputRefused, match="no such schedule"):
        schedules.due(schedule_id, 5000.0)


def test_a_run_begins_and_ends_with_what_came_of_it(
    schedules: ScheduleStore, schedule_id: int, clock: Clock
) -> None:
    run_id = schedules.due(schedule_id, 5000.0)
    assert run_id is not None
    clock.at = 5001.0
    schedules.update_run(run_id, state=RunState.RUNNING, job_id=4)
    clock.at = 5600.0
    schedules.update_run(
        run_id,
        state=RunState.DONE,
        outcome=Outcome.HOLDS,
        study_id=7,
        promotion_id=2,
        reason="the champion still wins",
        summary={"effect": math.nan, "verdict": "holds"},
    )
    run = schedules.run(run_id)
    assert (run.state, run.outcome, run.started_at, run.ended_at) == (
        RunState.DONE,
        Outcome.HOLDS,
        5001.0,
        5600.0,
    )
    assert (run.job_id, run.study_id, run.promotion_id) == (4, 7, 2)
    assert run.reason == "the champion still wins"
    assert math.isnan(run.summary["effect"])


def test_what_is_not_told_of_a_run_stays_as_it_is(
    schedules: ScheduleStore, schedule_id: int
) -> None:
    run_id = schedules.due(schedule_id, 5000.0)
    assert run_id is not None
    schedules.update_run(run_id, job_id=4, reason="waits", summary={"a": 1})
    before = schedules.run(run_id)
    schedules.update_run(run_id, study_id=9)
    assert schedules.run(run_id) == replace(before, study_id=9)


def test_a_run_taken_over_has_not_ended_and_keeps_its_first_start(
    schedules: ScheduleStore, schedule_id: int, clock: Clock
) -> None:
    run_id = schedules.due(schedule_id, 5000.0)
    assert run_id is not None
    schedules.update_run(run_id, state=RunState.RUNNING)
    schedules.update_run(run_id, state=RunState.FAILED)
    clock.at += 60
    schedules.update_run(run_id, state=RunState.RUNNING)
    run = schedules.run(run_id)
    assert (run.started_at, run.ended_at) == (1000.0, None)


@pytest.mark.parametrize("state", [RunState.FAILED, RunState.STOPPED, RunState.MISSED])
def test_a_run_that_did_not_come_to_an_answer_has_ended_too(
    schedules: ScheduleStore, schedule_id: int, state: RunState
) -> None:
    run_id = schedules.due(schedule_id, 5000.0)
    assert run_id is not None
    schedules.update_run(run_id, state=state)
    assert schedules.run(run_id).ended_at == 1000.0


def test_runs_are_listed_newest_first_by_schedule_and_up_to_a_limit(
    schedules: ScheduleStore, schedule_id: int
) -> None:
    other = schedules.add(replace(NIGHTLY, name="other"))
    later, between, earlier = (
        schedules.due(*due)
        for due in ((schedule_id, 7000.0), (other, 6000.0), (schedule_id, 5000.0))
    )
    assert [run.id for run in schedules.runs()] == [later, between, earlier]
    assert [run.id for run in schedules.runs(schedule="nightly")] == [later, earlier]
    assert [run.id for run in schedules.runs(limit=1)] == [later]


def test_the_runs_of_some_studies_are_found_however_many_there_were_since(
    schedules: ScheduleStore, schedule_id: int
) -> None:
    runs = [schedules.due(schedule_id, 100.0 * at) for at in range(4)]
    for run, study in zip(runs, (7, 8, 7, 9), strict=True):
        assert run is not None
        schedules.update_run(run, study_id=study)
    assert [run.id for run in schedules.runs_of([7, 9])] == [runs[3], runs[2], runs[0]]
    assert list(schedules.runs_of([])) == []


def test_an_unknown_run_is_refused(schedules: ScheduleStore) -> None:
    with pytest.raises(InputRefused, match="no such run"):
        schedules.run(3)
    with pytest.raises(InputRefused, match="no such run"):
        schedules.update_run(3, state=RunState.DONE)
