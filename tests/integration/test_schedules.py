"""What follows when a schedule is due, and the desk of schedules, on a real database."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from autotune.bootstrap.schedules import WINDOW_OVER, Schedules, begin_run, doubts
from autotune.core.errors import Conflict, InputRefused, NotFound
from autotune.core.jobs import JobKind, JobState
from autotune.core.notices import Event
from autotune.core.promotions import Target
from autotune.core.schedules import NightRun, Policy, RunState, Schedule, ScheduleState
from autotune.studyfile import study_from_options
from storage.service import ServiceStore

DUE = datetime(2026, 3, 2, 2, 0, tzinfo=UTC).timestamp()
NIGHTLY = Schedule(
    id=0,
    name="nightly",
    definition=study_from_options(
        {
            "study": "resnet",
            "model": {"onnx": "model.onnx", "name": "resnet"},
            "workload": {"target_qps": 40},
            "sla": {"p95_ms": 80},
            "space": "quick",
        }
    ).definition,
    cron="0 2 * * *",
    window_minutes=60.0,
)


@dataclass
class Clock:
    at: float = DUE + 1

    def __call__(self) -> float:
        return self.at


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(tmp_path: Path, migrated: Path, clock: Clock) -> Iterator[ServiceStore]:
    db = shutil.copy(migrated, tmp_path / "autotune.db")
    with closing(ServiceStore(str(db), now=clock)) as store:
        yield store


@pytest.fixture
def desk(store: ServiceStore, clock: Clock) -> Schedules:
    return Schedules(store, now=clock)


def _add(store: ServiceStore, clock: Clock, schedule: Schedule) -> None:
    """The evening before."""
    clock.at -= 3600
    store.schedules.add(schedule)
    clock.at += 3600


def _begin(store: ServiceStore, clock: Clock, due: float = DUE) -> None:
    begin_run(store, "nightly", due, now=clock)


def _only_run(store: ServiceStore) -> NightRun:
    (run,) = store.schedules.runs()
    return run


# ------------------------------------------------------------------------------------- when due
def test_a_run_that_is_due_is_queued_for_the_devices_of_its_study(
    store: ServiceStore, clock: Clock
) -> None:
    _add(store, clock, NIGHTLY)
    _begin(store, clock)
    run, (job,) = _only_run(store), store.jobs.jobs()
    assert (run.state, run.scheduled_for, run.job_id) == (RunState.QUEUED, DUE, job.id)
    assert (job.kind, job.payload) == (JobKind.NIGHTLY, {"schedule": "nightly", "run": run.id})
    assert (job.title, job.created_by) == ("nightly, 2026-03-02 02:00 UTC", "schedule nightly")
    (device,) = job.devices
    assert device.endswith("/cpu")


def test_a_run_is_queued_once_however_often_it_is_found_due(
    store: ServiceStore, clock: Clock
) -> None:
    _add(store, clock, NIGHTLY)
    for _ in range(3):
        _begin(store, clock)
    assert len(store.schedules.runs()) == len(store.jobs.jobs()) == 1


def test_a_late_run_begins_while_its_window_lasts(store: ServiceStore, clock: Clock) -> None:
    _add(store, clock, NIGHTLY)
    clock.at = DUE + 59 * 60
    _begin(store, clock)
    assert _only_run(store).state is RunState.QUEUED


def test_a_run_whose_window_is_over_is_recorded_as_missed_and_never_begins(
    store: ServiceStore, clock: Clock
) -> None:
    _add(store, clock, NIGHTLY)
    clock.at = DUE + 60 * 60
    _begin(store, clock)
    run = _only_run(store)
    assert (run.state, run.reason, run.job_id) == (RunState.MISSED, WINDOW_OVER, None)
    assert list(store.jobs.jobs()) == []


def test_of_runs_that_are_missed_night_after_night_the_first_is_told(
    store: ServiceStore, clock: Clock
) -> None:
    _add(store, clock, NIGHTLY)
    for night in range(3):
        clock.at = DUE + night * 86_400 + 60 * 60
        for _ in range(2):
            _begin(store, clock, DUE + night * 86_400)
    (notice,) = store.notices.notices()
    assert (notice.event, notice.payload["run"]) == (Event.FAILURE, 1)
    assert notice.title == f"schedule nightly: a run was missed: {WINDOW_OVER}"


def test_without_a_window_a_run_begins_however_late(store: ServiceStore, clock: Clock) -> None:
    _add(store, clock, replace(NIGHTLY, window_minutes=None))
    clock.at = DUE + 1e6
    _begin(store, clock)
    assert _only_run(store).state is RunState.QUEUED


def test_runs_do_not_pile_up_behind_one_that_has_not_ended(
    store: ServiceStore, clock: Clock
) -> None:
    _add(store, clock, NIGHTLY)
    _begin(store, clock)
    clock.at += 86_400
    _begin(store, clock, DUE + 86_400)
    second, first = store.schedules.runs()
    assert (second.state, first.state) == (RunState.MISSED, RunState.QUEUED)
    assert second.reason == f"run {first.id}, due 2026-03-02 02:00 UTC, had not ended"


def test_a_run_that_was_stopped_and_is_to_go_on_has_not_ended(
    store: ServiceStore, clock: Clock
) -> None:
    _add(store, clock, NIGHTLY)
    _begin(store, clock)
    store.schedules.update_run(_only_run(store).id, state=RunState.STOPPED)
    clock.at += 86_400
    _begin(store, clock, DUE + 86_400)
    assert store.schedules.runs()[0].state is RunState.MISSED


def test_a_run_whose_job_has_ended_without_a_word_holds_up_no_other(
    store: ServiceStore, clock: Clock
) -> None:
    _add(store, clock, NIGHTLY)
    _begin(store, clock)
    (job,) = store.jobs.jobs()
    store.jobs.cancel(job.id)
    clock.at += 86_400
    _begin(store, clock, DUE + 86_400)
    assert store.schedules.runs()[0].state is RunState.QUEUED


def test_neither_a_paused_nor_a_removed_schedule_has_a_run(
    store: ServiceStore, clock: Clock
) -> None:
    _add(store, clock, replace(NIGHTLY, state=ScheduleState.PAUSED))
    _begin(store, clock)
    store.schedules.remove("nightly")
    _begin(store, clock)
    assert list(store.schedules.runs()) == []


def test_a_run_of_a_study_that_can_no_longer_be_read_is_missed_and_says_so(
    store: ServiceStore, clock: Clock
) -> None:
    _add(store, clock, replace(NIGHTLY, definition={"study": 3}))
    _begin(store, clock)
    run = _only_run(store)
    assert run.state is RunState.MISSED
    assert run.reason.startswith("its study can no longer be read")


def test_what_was_due_before_a_schedule_was_resumed_is_not_begun(
    store: ServiceStore, clock: Clock, desk: Schedules
) -> None:
    clock.at = DUE - 60
    desk.add(NIGHTLY, by="me")
    desk.set_state("nightly", ScheduleState.PAUSED, by="me")
    clock.at = DUE + 60
    desk.set_state("nightly", ScheduleState.ACTIVE, by="me")
    _begin(store, clock)
    assert list(store.schedules.runs()) == []
    clock.at = DUE + 86_400
    _begin(store, clock, DUE + 86_400)
    assert _only_run(store).state is RunState.QUEUED


def test_the_jobs_of_a_schedules_runs_are_its_own(store: ServiceStore, clock: Clock) -> None:
    _add(store, clock, NIGHTLY)
    _begin(store, clock)
    _add(store, clock, replace(NIGHTLY, name="other"))
    begin_run(store, "other", DUE, now=clock)
    (job,) = store.jobs_of("nightly", JobState.QUEUED, JobState.RUNNING)
    assert job.payload["schedule"] == "nightly"
    assert list(store.jobs_of("nightly", JobState.DONE)) == []


# ----------------------------------------------------------------------------------------- desk
def test_a_schedule_is_shown_with_its_next_time_and_its_last_run(
    desk: Schedules, store: ServiceStore, clock: Clock
) -> None:
    clock.at = DUE - 60
    view = desk.add(NIGHTLY, by="me")
    assert (view.next_at, view.last) == (DUE, None)
    _begin(store, clock)
    (view,) = desk.schedules()
    assert view.last == _only_run(store)
    assert desk.schedule("nightly") == view
    assert list(desk.runs("nightly")) == [desk.run(_only_run(store).id)]


def test_a_paused_schedule_is_due_at_no_time(desk: Schedules) -> None:
    desk.add(NIGHTLY, by="me")
    assert desk.set_state("nightly", ScheduleState.PAUSED, by="me").next_at is None
    assert desk.set_state("nightly", ScheduleState.ACTIVE, by="me").next_at == DUE + 86_400


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"cron": "0 2 * *"}, "five fields"),
        ({"timezone": "Atlantis"}, "no such time zone"),
        ({"definition": {"study": "x"}}, "model"),
        ({"name": "a b"}, "a schedule's name"),
        ({"name": ""}, "a schedule's name"),
        ({"name": "../x"}, "a schedule's name"),
    ],
)
def test_a_schedule_that_cannot_be_is_refused(
    desk: Schedules, changed: dict[str, object], words: str
) -> None:
    with pytest.raises(InputRefused, match=words):
        desk.add(replace(NIGHTLY, **changed), by="me")  # type: ignore[arg-type]
    assert list(desk.schedules()) == []


def test_a_name_that_is_taken_is_refused(desk: Schedules) -> None:
    desk.add(NIGHTLY, by="me")
    with pytest.raises(Conflict):
        desk.add(NIGHTLY, by="me")


def test_a_run_is_queued_on_request_also_of_a_paused_schedule(
    desk: Schedules, store: ServiceStore
) -> None:
    desk.add(NIGHTLY, by="me")
    desk.set_state("nightly", ScheduleState.PAUSED, by="me")
    job = desk.run_now("nightly", by="ann")
    assert (job.state, job.created_by, job.payload["run"]) == (
        JobState.QUEUED,
        "ann",
        _only_run(store).id,
    )
    assert _only_run(store).scheduled_for == DUE + 1


def test_a_run_that_waits_is_not_queued_twice(
    desk: Schedules, store: ServiceStore, clock: Clock
) -> None:
    desk.add(NIGHTLY, by="me")
    first = desk.run_now("nightly", by="me")
    with pytest.raises(Conflict, match="waits already"):
        desk.run_now("nightly", by="me")
    store.jobs.claim("w", ttl_s=30, measuring=True)
    clock.at += 1
    assert desk.run_now("nightly", by="me").id != first.id


def test_of_a_removed_schedule_what_waits_is_cancelled_and_what_has_begun_goes_on(
    desk: Schedules, store: ServiceStore, clock: Clock
) -> None:
    desk.add(NIGHTLY, by="me")
    begun = desk.run_now("nightly", by="me")
    store.jobs.claim("w", ttl_s=30, measuring=True)
    clock.at += 1
    waits = desk.run_now("nightly", by="me")
    desk.remove("nightly", by="me")
    assert store.jobs.job(begun.id).state is JobState.RUNNING
    assert store.jobs.job(waits.id).state is JobState.CANCELLED
    assert desk.run(waits.payload["run"]).state is RunState.STOPPED
    assert desk.run(begun.payload["run"]).state is RunState.QUEUED


def test_of_a_paused_schedule_what_waits_is_cancelled(desk: Schedules, store: ServiceStore) -> None:
    desk.add(NIGHTLY, by="me")
    waits = desk.run_now("nightly", by="me")
    desk.set_state("nightly", ScheduleState.PAUSED, by="me")
    run = desk.run(waits.payload["run"])
    assert store.jobs.job(waits.id).state is JobState.CANCELLED
    assert (run.state, run.reason) == (RunState.STOPPED, "its schedule was paused")


def test_what_a_night_will_need_and_is_not_there_is_named(tmp_path: Path) -> None:
    model = dict(NIGHTLY.definition["model"])
    onnx, target = tmp_path / "model.onnx", Target(repository=tmp_path / "models")
    definition = {**NIGHTLY.definition, "model": {**model, "onnx": str(onnx)}}
    schedule = replace(NIGHTLY, definition=definition, target=target)
    assert [words.rpartition(" ")[2] for words in doubts(schedule)] == [
        str(onnx),
        str(tmp_path / "models"),
    ]
    onnx.touch()
    (tmp_path / "models").mkdir()
    assert doubts(schedule) == []


def test_a_window_in_which_nothing_can_be_found_is_told_of(tmp_path: Path) -> None:
    onnx = tmp_path / "model.onnx"
    onnx.touch()
    model = {**NIGHTLY.definition["model"], "onnx": str(onnx)}
    schedule = replace(NIGHTLY, definition={**NIGHTLY.definition, "model": model})
    assert doubts(schedule) == []
    (doubt,) = doubts(replace(schedule, window_minutes=1.5))
    assert doubt.startswith("a window of 1.5 minutes leaves hardly any time")


def test_a_removed_schedule_keeps_its_runs(desk: Schedules) -> None:
    desk.add(NIGHTLY, by="me")
    desk.run_now("nightly", by="me")
    desk.remove("nightly", by="me")
    with pytest.raises(NotFound):
        desk.schedule("nightly")
    assert [run.schedule for run in desk.runs("nightly")] == ["nightly"]


def test_everything_done_to_a_schedule_is_in_the_audit_trail(
    desk: Schedules, store: ServiceStore
) -> None:
    target = Target(repository=Path("models"))
    desk.add(replace(NIGHTLY, policy=Policy.AUTO, target=target), by="ann")
    desk.set_state("nightly", ScheduleState.PAUSED, by="bob")
    desk.set_state("nightly", ScheduleState.PAUSED, by="bob")  # is already
    desk.set_state("nightly", ScheduleState.ACTIVE, by="cyd")
    desk.run_now("nightly", by="dee")
    desk.remove("nightly", by="eve")
    trail = store.promotions.audit(subject="schedule nightly")
    assert [(entry.who, entry.action) for entry in reversed(trail)] == [
        ("ann", "add"),
        ("bob", "pause"),
        ("cyd", "resume"),
        ("dee", "run"),
        ("eve", "remove"),
    ]
    assert trail[-1].detail["policy"] == "auto"
    assert trail[-1].detail["target"] == "models"
