"""Nights that a command runs itself: waiting for the machine, what a killed process left, and what
the command says of it."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from autotune.bootstrap.nights import Nights, schedules_to_run
from autotune.cli import nightly
from autotune.cli import schedule as schedule_command
from autotune.core.errors import (
    Conflict,
    InputRefused,
    Interrupted,
    MachineBusy,
    NotFound,
    ServerFailed,
)
from autotune.core.schedules import NightRun, Outcome, RunState, Schedule, ScheduleState
from storage.service import ServiceStore
from tests.integration.test_schedules import DUE, NIGHTLY, Clock


@dataclass
class Tuned:
    """What `run_night` does: records that the run has ended, as `came` has it. Each of `fails` is
    raised first."""

    came: dict[str, Outcome] = field(default_factory=dict)
    fails: list[Exception] = field(default_factory=list)
    ran: list[int] = field(default_factory=list)
    outs: list[Path] = field(default_factory=list)

    def __call__(self, run_id: int, *, db: str, out: Path, by: str, listen: Any) -> NightRun:
        self.ran.append(run_id)
        self.outs.append(out)
        if self.fails:
            raise self.fails.pop(0)
        with closing(ServiceStore(db)) as store:
            name = store.schedules.run(run_id).schedule
            outcome = self.came.get(name, Outcome.HOLDS)
            store.schedules.update_run(run_id, state=RunState.DONE, outcome=outcome)
            return store.schedules.run(run_id)


@pytest.fixture
def db(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("AUTOTUNE_WORK", str(tmp_path / "work"))
    monkeypatch.setenv("AUTOTUNE_CACHE", str(tmp_path / "cache"))
    return str(tmp_path / "autotune.db")


@pytest.fixture
def store(db: str, migrated: Path) -> Iterator[ServiceStore]:
    shutil.copy(migrated, db)
    with closing(ServiceStore(db)) as store:
        yield store


@pytest.fixture
def schedule(store: ServiceStore) -> Schedule:
    store.schedules.add(NIGHTLY)
    return store.schedules.schedule("nightly")


def _nights(db: str, night: Callable[..., NightRun], **given: Any) -> Nights:
    known: dict[str, Any] = {
        "say": lambda _: None,
        "busy": lambda: False,
        "sleep": lambda _: None,
        "now": Clock(),
    }
    return Nights(db=db, by="me", night=night, **{**known, **given})


def _run(nights: Nights, schedule: Schedule) -> NightRun:
    return nights.run(schedule, lambda _: None)


# ------------------------------------------------------------------------------------------- here
def test_a_night_is_recorded_as_due_now_and_run(db: str, schedule: Schedule) -> None:
    night = Tuned()
    run = _run(_nights(db, night), schedule)
    assert (run.scheduled_for, run.state, run.job_id) == (DUE + 1, RunState.DONE, None)
    assert night.ran == [run.id]
    assert night.outs[0].parent.is_dir()


def test_while_another_study_measures_it_waits_and_says_so_once(
    db: str, schedule: Schedule
) -> None:
    measuring = [True, True, True, False]
    told: list[str] = []
    night = Tuned()
    _run(_nights(db, night, busy=lambda: measuring.pop(0), say=told.append), schedule)
    assert (len(night.ran), measuring) == (1, [])
    assert told == ["nightly: another study measures on this machine: waiting"]


def test_it_does_not_wait_beyond_its_window(db: str, schedule: Schedule) -> None:
    clock, night = Clock(), Tuned()

    def sleep(seconds: float) -> None:
        clock.at += seconds

    _run(_nights(db, night, busy=lambda: True, sleep=sleep, now=clock), schedule)
    assert len(night.ran) == 1
    assert 3600 <= clock.at - (DUE + 1) < 3700


def test_without_a_window_it_waits_for_a_day_and_is_missed_then(
    db: str, store: ServiceStore
) -> None:
    store.schedules.add(replace(NIGHTLY, window_minutes=None))
    clock, night = Clock(), Tuned()

    def sleep(_: float) -> None:
        clock.at += 3600

    nights = _nights(db, night, busy=lambda: True, sleep=sleep, now=clock)
    ended = _run(nights, store.schedules.schedule("nightly"))
    assert (ended.state, night.ran) == (RunState.MISSED, [])
    assert ended.reason == "another study measured on this machine for a day"
    assert 86_400 <= clock.at - (DUE + 1) <= 90_000
    assert [notice.payload["run"] for notice in store.notices.notices()] == [ended.id]


def test_a_study_that_was_faster_is_waited_for(db: str, schedule: Schedule) -> None:
    night = Tuned(fails=[MachineBusy("another study is measuring")])
    run = _run(_nights(db, night), schedule)
    assert night.ran == [run.id, run.id]


class Killed(BaseException):
    """Nothing of the process comes after it."""


def _left_by_a_killed_process(db: str, schedule: Schedule, at: float = DUE) -> int:
    def night(run_id: int, **_: Any) -> NightRun:
        with closing(ServiceStore(db)) as store:
            store.schedules.update_run(run_id, state=RunState.RUNNING)
        left.append(run_id)
        raise Killed

    left: list[int] = []
    with pytest.raises(Killed):
        _run(_nights(db, night, now=Clock(at)), schedule)
    return left[0]


def test_what_a_killed_process_left_is_taken_up(
    db: str, store: ServiceStore, schedule: Schedule
) -> None:
    left = _left_by_a_killed_process(db, schedule)
    assert _run(_nights(db, Tuned()), schedule).id == left
    assert len(store.schedules.runs()) == 1


@pytest.mark.parametrize("window", [60.0, None])
def test_what_was_left_longer_ago_than_its_window_or_a_day_is_failed_and_a_new_run_begun(
    db: str, store: ServiceStore, window: float | None
) -> None:
    store.schedules.add(replace(NIGHTLY, window_minutes=window))
    schedule = store.schedules.schedule("nightly")
    left = _left_by_a_killed_process(db, schedule, DUE - 86_400)
    assert _run(_nights(db, Tuned()), schedule).id != left
    lost = store.schedules.run(left)
    assert (lost.state, lost.reason) == (RunState.FAILED, "its process was lost")


def test_a_run_that_another_machine_began_is_left_to_it(
    db: str, store: ServiceStore, schedule: Schedule
) -> None:
    theirs = store.schedules.due(schedule.id, DUE)
    assert theirs is not None
    store.schedules.update_run(theirs, state=RunState.RUNNING)
    assert _run(_nights(db, Tuned()), schedule).id != theirs
    assert store.schedules.run(theirs).state is RunState.RUNNING


def test_of_two_containers_with_one_work_directory_one_has_its_night_at_a_time(
    db: str, store: ServiceStore, schedule: Schedule
) -> None:
    """Neither sees that the other measures."""
    others = Tuned()
    told: list[str] = []

    class Over(Exception):
        pass

    def wait(_: float) -> None:
        raise Over

    def night(run_id: int, **_: Any) -> NightRun:
        second = _nights(db, others, sleep=wait, say=told.append, now=Clock(DUE + 2))
        with pytest.raises(Over):
            _run(second, schedule)
        return store.schedules.run(run_id)

    _run(_nights(db, night), schedule)
    assert others.ran == []
    assert told == ["nightly: another study measures on this machine: waiting"]
    assert _run(_nights(db, others, now=Clock(DUE + 3)), schedule).state is RunState.DONE


def test_a_night_that_is_stopped_while_it_waits_says_so(
    db: str, store: ServiceStore, schedule: Schedule
) -> None:
    def stopped(_: float) -> None:
        raise Interrupted("stopped by SIGTERM")

    with pytest.raises(Interrupted):
        _run(_nights(db, Tuned(), busy=lambda: True, sleep=stopped), schedule)
    (run,) = store.schedules.runs()
    assert (run.state, run.reason) == (
        RunState.STOPPED,
        "stopped by SIGTERM, before it could begin",
    )


def test_a_run_of_the_service_or_of_whoever_measures_now_is_left_alone(
    db: str, store: ServiceStore, schedule: Schedule
) -> None:
    queued = store.submit_run(schedule.id, DUE - 60, title="t", devices=["h/cpu"], by="ci")
    assert queued is not None
    begun = _left_by_a_killed_process(db, schedule)
    store.schedules.update_run(begun, state=RunState.QUEUED)
    measuring = [True, False]
    run = _run(_nights(db, Tuned(), busy=lambda: measuring.pop(0)), schedule)
    assert run.id not in {queued.id, begun}
    states = {one.id: one.state for one in store.schedules.runs()}
    assert states == {
        queued.id: RunState.QUEUED,
        begun: RunState.QUEUED,
        run.id: RunState.DONE,
    }


def test_a_left_run_of_a_schedule_that_was_removed_is_not_taken_up(
    db: str, store: ServiceStore, schedule: Schedule
) -> None:
    left = _left_by_a_killed_process(db, schedule)
    store.schedules.remove("nightly")
    store.schedules.add(NIGHTLY)
    assert _run(_nights(db, Tuned()), store.schedules.schedule("nightly")).id != left
    assert store.schedules.run(left).state is RunState.FAILED


# --------------------------------------------------------------------------------------- which
def test_all_active_schedules_are_run_or_those_that_are_named(
    db: str, store: ServiceStore, schedule: Schedule
) -> None:
    store.schedules.add(replace(NIGHTLY, name="other"))
    store.schedules.add(replace(NIGHTLY, name="paused", state=ScheduleState.PAUSED))
    assert [each.name for each in schedules_to_run(db, [])] == ["nightly", "other"]
    assert [each.name for each in schedules_to_run(db, ["other", "other"])] == ["other"]
    with pytest.raises(NotFound):
        schedules_to_run(db, ["nihgtly"])
    with pytest.raises(Conflict, match="paused"):
        schedules_to_run(db, ["paused"])


def test_without_a_database_there_is_nothing_to_run(db: str) -> None:
    with pytest.raises(InputRefused, match="no database yet"):
        schedules_to_run(db, [])


# --------------------------------------------------------------------------------- the command
@pytest.fixture
def once(db: str, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """``autotune nightly --once``, whose nights come to what is given."""

    def invoke(night: Tuned, *arguments: str) -> Result:
        monkeypatch.setattr(nightly, "Nights", lambda **given: _nights(db, night))
        command = ["--once", *arguments, "--db", db]
        return CliRunner().invoke(nightly.command, command, standalone_mode=False)

    return invoke


@pytest.mark.parametrize(
    ("came", "code"),
    [
        ({}, 0),
        ({"a": Outcome.BETTER, "b": Outcome.PROPOSED}, 0),
        ({"a": Outcome.PROMOTED}, 0),
        ({"a": Outcome.NO_PICK}, 3),
        ({"b": Outcome.ROLLED_BACK, "a": Outcome.NO_PICK}, 1),
    ],
)
def test_the_exit_code_says_the_worst_that_a_night_came_to(
    store: ServiceStore, once: Callable[..., Result], came: dict[str, Outcome], code: int
) -> None:
    for name in ("a", "b"):
        store.schedules.add(replace(NIGHTLY, name=name))
    night = Tuned(came=came)
    assert once(night).return_value == code
    assert len(night.ran) == 2


@pytest.mark.parametrize(
    "error",
    [
        ServerFailed("the server did not come up"),
        OSError(5, "the disk did not come up"),
        KeyError("what nobody foresaw did not come up"),
    ],
    ids=["known", "of the system", "unknown"],
)
def test_a_night_that_fails_does_not_keep_the_next_from_running(
    store: ServiceStore, once: Callable[..., Result], error: Exception
) -> None:
    for name in ("a", "b"):
        store.schedules.add(replace(NIGHTLY, name=name))
    night = Tuned(fails=[error])
    result = once(night, "--json")
    assert result.return_value == 1
    assert len(night.ran) == 2
    first, second = json.loads(result.stdout)
    assert (first["schedule"], first["state"]) == ("a", "failed")
    assert "did not come up" in first["reason"]
    assert (second["schedule"], second["outcome"]) == ("b", "holds")


def test_a_night_that_its_window_ended_has_done_what_it_could() -> None:
    run = NightRun(
        id=1, schedule_id=1, schedule="a", scheduled_for=DUE, state=RunState.STOPPED, reason="over"
    )
    assert nightly.exit_code(run) == 0
    assert nightly.exit_code(replace(run, state=RunState.FAILED)) == 1
    assert nightly.exit_code(replace(run, state=RunState.MISSED)) == 1


def test_without_once_the_service_is_pointed_at(db: str) -> None:
    result = CliRunner().invoke(nightly.command, ["--db", db], standalone_mode=False)
    assert isinstance(result.exception, InputRefused)
    assert "autotune serve" in result.exception.next_step


# ------------------------------------------------------------------------------ autotune schedule
@pytest.fixture
def study_file(tmp_path: Path) -> Path:
    path = tmp_path / "study.yaml"
    path.write_text(
        "study: resnet\nmodel: {onnx: model.onnx, name: resnet}\n"
        "workload: {target_qps: 40}\nsla: {p95_ms: 80}\nspace: quick\n"
    )
    return path


@pytest.fixture
def schedules(db: str) -> Callable[..., str]:
    """``autotune schedule …``, which has to succeed; what it prints."""

    def invoke(*arguments: str) -> str:
        command = [*arguments, "--db", db]
        result = CliRunner().invoke(
            schedule_command.command, command, standalone_mode=False, catch_exceptions=False
        )
        return result.stdout

    return invoke


def test_a_schedule_is_added_from_a_study_file_and_listed(
    schedules: Callable[..., str], study_file: Path
) -> None:
    added = schedules("add", "nightly", str(study_file), "--cron", "0 2 * * 1-5")
    assert re.search(r"nightly is due next at 20\d\d-\d\d-\d\d 02:00 UTC", added)
    (listed,) = json.loads(schedules("list", "--json"))
    assert (listed["name"], listed["study"], listed["cron"]) == ("nightly", "resnet", "0 2 * * 1-5")
    assert (listed["policy"], listed["target"], listed["last"]) == ("report", None, None)
    assert listed["created_by"].startswith("cli:")
    assert "0 2 * * 1-5 UTC" in schedules("list")


def test_every_option_of_a_schedule_is_kept(
    schedules: Callable[..., str], study_file: Path, tmp_path: Path, store: ServiceStore
) -> None:
    arguments = ["--cron", "0 2 * * *", "--timezone", "Europe/Berlin", "--window-minutes", "90"]
    arguments += ["--policy", "auto", "--margin", "0.1", "--target", str(tmp_path / "models")]
    arguments += ["--target-grpc", "triton:8001", "--target-http", "triton:8000", "--shadow-s", "5"]
    schedules("add", "nightly", str(study_file), *arguments)
    kept = store.schedules.schedule("nightly")
    assert (kept.timezone, kept.window_minutes, kept.margin) == ("Europe/Berlin", 90.0, 0.1)
    assert kept.target is not None
    assert kept.target.repository == tmp_path / "models"
    assert (kept.target.grpc, kept.target.http) == ("triton:8001", "triton:8000")
    assert (str(kept.policy), kept.target.shadow_s) == ("auto", 5.0)
    assert kept.definition["model"]["onnx"] == str(study_file.parent / "model.onnx")


def test_the_http_address_of_a_target_needs_the_grpc_address(
    schedules: Callable[..., str], study_file: Path
) -> None:
    with pytest.raises(InputRefused, match="--target-grpc"):
        schedules(
            "add", "n", str(study_file), "--cron", "0 2 * * *", "--target-http", "triton:8000"
        )


def test_a_schedule_is_paused_resumed_run_and_removed(
    schedules: Callable[..., str], store: ServiceStore, schedule: Schedule
) -> None:
    schedules("pause", "nightly")
    assert json.loads(schedules("list", "--json"))[0]["next_at"] is None
    assert "paused" in schedules("list")
    schedules("resume", "nightly")
    assert json.loads(schedules("list", "--json"))[0]["next_at"] is not None
    queued = json.loads(schedules("run", "nightly", "--json"))
    assert store.jobs.job(queued["job"]).payload["run"] == queued["run"]
    assert json.loads(schedules("list", "--json"))[0]["last"]["state"] == "queued"
    schedules("remove", "nightly")
    assert json.loads(schedules("list", "--json")) == []
    assert len(store.schedules.runs(schedule="nightly")) == 1


def test_a_run_here_does_not_go_through_the_queue(
    db: str, store: ServiceStore, schedule: Schedule, monkeypatch: pytest.MonkeyPatch
) -> None:
    night = Tuned(came={"nightly": Outcome.NO_PICK})
    monkeypatch.setattr(nightly, "Nights", lambda **given: _nights(db, night))
    result = CliRunner().invoke(
        schedule_command.command, ["run", "nightly", "--now", "--db", db], standalone_mode=False
    )
    assert result.return_value == 3
    assert "no candidate meets the SLA" in result.stdout
    assert list(store.jobs.jobs()) == []
