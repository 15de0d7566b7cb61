"""Jobs: their desk, their progress, and how a study that an earlier attempt left is taken up."""

from __future__ import annotations

import platform
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.bootstrap import job_run
from autotune.bootstrap.job_progress import told
from autotune.bootstrap.jobs import Jobs, devices_of, folder_name, submit_study
from autotune.bootstrap.recorded import machine_here
from autotune.bootstrap.worker import LATER, job_command
from autotune.core.errors import InputRefused, MachineBusy, NotFound, StoreFailed
from autotune.core.jobs import Job, JobKind, JobState, Place
from autotune.core.records import DecisionRecord, StudyState
from autotune.core.study import Launch, ServerSpec
from autotune.ports import Progress
from autotune.settings import Settings
from autotune.studyfile import read_definition
from search_spaces.candidate import Candidate
from storage.service import ServiceStore

STUDY = {
    "study": "tiny",
    "model": {"onnx": "/models/tiny.onnx", "name": "tiny"},
    "workload": {"target_qps": 10},
    "sla": {"p95_ms": 50},
    "space": {"max_batch_size": [1, 2]},
}


@pytest.fixture
def store(database: Path) -> Iterator[ServiceStore]:
    with closing(ServiceStore(str(database))) as made:
        yield made


# ----------------------------------------------------------------------------------------- desk
def test_cancelling_is_in_the_audit_trail_with_who_did_it(
    store: ServiceStore, tmp_path: Path
) -> None:
    desk = Jobs(store.jobs, store.promotions, logs=tmp_path)
    job_id = store.jobs.submit(JobKind.STUDY, "tiny", {}, by="me")
    assert desk.cancel(job_id, by="ops").state is JobState.CANCELLED
    (entry,) = store.promotions.audit()
    assert (entry.who, entry.action, entry.subject) == ("ops", "cancel", f"job {job_id}")


def test_a_job_that_has_ended_is_not_cancelled_again(store: ServiceStore, tmp_path: Path) -> None:
    desk = Jobs(store.jobs, store.promotions, logs=tmp_path)
    job_id = store.jobs.submit(JobKind.STUDY, "tiny", {}, by="me")
    for _ in range(2):
        assert desk.cancel(job_id, by="ops").state is JobState.CANCELLED
    assert len(store.promotions.audit()) == 1


def test_a_job_that_was_asked_to_end_is_not_cancelled_again(
    store: ServiceStore, tmp_path: Path
) -> None:
    desk = Jobs(store.jobs, store.promotions, logs=tmp_path)
    job_id = store.jobs.submit(JobKind.STUDY, "tiny", {}, by="me")
    store.jobs.claim("worker", ttl_s=30, measuring=False)
    assert [desk.cancel(job_id, by=who).cancel for who in ("ops", "ann")] == [True, True]
    assert [entry.who for entry in store.promotions.audit()] == ["ops"]


def test_there_is_no_job_to_cancel_that_was_never_queued(
    store: ServiceStore, tmp_path: Path
) -> None:
    with pytest.raises(NotFound):
        Jobs(store.jobs, store.promotions, logs=tmp_path).cancel(7, by="ops")


def test_a_study_is_queued_with_its_whole_definition_and_the_cores_of_whatever_machine_does_it(
    store: ServiceStore,
) -> None:
    job = submit_study(store.jobs, STUDY, by="ops")
    assert read_definition(job.payload["definition"]).digest == read_definition(STUDY).digest
    assert (job.title, job.created_by) == ("tiny", "ops")
    assert job.devices == ("here/cpu",)


def test_a_study_has_the_gpus_that_it_names_and_the_server_that_it_tunes_for_itself() -> None:
    study = read_definition(STUDY)
    pinned = replace(study, server=ServerSpec(devices=("GPU-1", "GPU-2")))
    remote = replace(study, server=ServerSpec(launch=Launch.REMOTE, grpc="h:8001"))
    assert devices_of(pinned) == ("here/cpu", "here/GPU-1", "here/GPU-2")
    assert devices_of(remote) == ("here/cpu", "h:8001")


@pytest.mark.parametrize(
    ("device", "slot", "held"),
    [
        ("here/cpu", "", "gpu1/cpu"),
        ("here/cpu", "left", "gpu1/cpu.left"),
        ("here/GPU-1", "left", "gpu1/GPU-1"),
        ("h:8001", "left", "h:8001"),
        ("gpu2/cpu", "", "gpu2/cpu"),  # as jobs named it that an earlier version queued
    ],
)
def test_a_device_is_held_by_the_name_of_the_machine_that_does_the_job(
    device: str, slot: str, held: str
) -> None:
    assert Place(machine="gpu1", slot=slot).lease_of(device) == held


def test_a_machine_in_a_container_is_called_what_the_environment_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("AUTOTUNE_MACHINE", raising=False)
    assert Settings.from_environment().machine == platform.node()
    monkeypatch.setenv("AUTOTUNE_MACHINE", "node-7")
    assert Settings.from_environment().machine == "node-7"
    monkeypatch.setenv("AUTOTUNE_MACHINE", "node\n7")
    with pytest.raises(InputRefused, match="AUTOTUNE_MACHINE"):
        Settings.from_environment()


def test_the_databases_password_is_on_no_command_line() -> None:
    url = "postgresql+psycopg://autotune:hidden@db/autotune"
    command = job_command(a_job(), url)
    assert not any("hidden" in word for word in command.argv)
    assert command.variables["AUTOTUNE_DB"] == url
    assert command.variables["AUTOTUNE_SECRET_KEY"] == ""


def a_job(**changes: Any) -> Job:
    values = {
        "id": 1,
        "kind": JobKind.STUDY,
        "state": JobState.RUNNING,
        "title": "tiny",
        "payload": {},
        "created_at": 12.6,
        "created_by": "me",
    }
    return Job(**{**values, **changes})


def test_jobs_of_the_same_number_in_two_databases_have_folders_of_their_own() -> None:
    assert folder_name(a_job()) != folder_name(a_job(created_at=99.0))


# ------------------------------------------------------------------------------------- progress
def step(text: str, **values: Any) -> Progress:
    return Progress(stage="trial", text=text, **values)


def test_the_last_step_is_always_told_and_those_that_it_overtook_are_not() -> None:
    written: list[Mapping[str, Any]] = []
    began = threading.Event()

    def write(progress: Mapping[str, Any]) -> None:
        written.append(progress)
        began.set()

    with told(write, every_s=3600) as listen:
        listen(step("first"))
        assert began.wait(30)
        for number in range(100):
            listen(step(f"step {number}"))
    assert [each["text"] for each in written] == ["first", "step 99"]


def test_a_step_is_plain_data_without_what_is_not_known() -> None:
    written: list[Mapping[str, Any]] = []
    with told(written.append) as listen:
        listen(
            step(
                "measuring",
                trial=2,
                of=6,
                candidate=Candidate({"max_batch_size": 4}),
                seconds_left=float("inf"),
            )
        )
    (plain,) = written
    assert plain["candidate"] == {"max_batch_size": 4}
    assert (plain["trial"], plain["of"], plain["seconds_left"]) == (2, 6, None)
    assert "best" not in plain
    assert isinstance(plain["at"], float)


def test_progress_that_cannot_be_written_ends_no_study() -> None:
    def write(_: Mapping[str, Any]) -> None:
        raise StoreFailed("the database is locked")

    with told(write, every_s=0) as listen:
        listen(step("first"))


def test_nothing_is_told_of_a_job_that_says_nothing() -> None:
    written: list[Mapping[str, Any]] = []
    with told(written.append):
        pass
    assert written == []


# --------------------------------------------------------------------- taking up what was left
class Left:
    """A job whose earlier attempt left a run of its study."""

    def __init__(self, store: ServiceStore, state: StudyState = StudyState.INTERRUPTED) -> None:
        self.store = store
        self.study = read_definition(STUDY)
        self.run = self.add(state)

    def add(self, state: StudyState, digest: str | None = None) -> int:
        trials = self.store.trials
        definition = self.study.definition
        run = trials.create_study(self.study.name, definition, digest or self.study.digest)
        trials.set_environment(run, {**machine_here(), "process": "1@0.00"})
        trials.set_study_state(run, state)
        return run

    def begun(self, **changes: Any) -> int | None:
        job = a_job(**{"study_id": self.run, **changes})
        found = job_run._begun(self.store.trials, job, self.study)
        return None if found is None else found.id


@pytest.mark.parametrize("state", [StudyState.INTERRUPTED, StudyState.RUNNING, StudyState.DONE])
def test_the_run_of_an_earlier_attempt_is_taken_up(store: ServiceStore, state: StudyState) -> None:
    left = Left(store, state)
    assert left.begun() == left.run


def test_a_first_attempt_begins_anew_whatever_else_was_interrupted(store: ServiceStore) -> None:
    assert Left(store).begun(study_id=None) is None


def test_a_run_is_not_taken_up_when_someone_has_run_a_study_of_that_name_since(
    store: ServiceStore,
) -> None:
    left = Left(store)
    left.add(StudyState.DONE)
    assert left.begun() is None


def test_a_run_of_another_machine_is_not_taken_up(store: ServiceStore) -> None:
    left = Left(store)
    store.trials.set_environment(left.run, {**machine_here(), "processor": "another one"})
    assert left.begun() is None


def queued(store: ServiceStore, study_id: int | None = None) -> int:
    job = submit_study(store.jobs, STUDY, by="me")
    if study_id is not None:
        store.jobs.set_study(job.id, study_id)
    return job.id


@pytest.mark.parametrize(("exported_to", "status"), [("/out", 0), (None, 3)])
def test_a_study_that_was_done_when_its_process_died_is_not_run_again(
    store: ServiceStore, tmp_path: Path, exported_to: str | None, status: int
) -> None:
    left = Left(store, StudyState.DONE)
    store.trials.add_decision(
        DecisionRecord(
            study_id=left.run,
            taken_at=1.0,
            rule="cheapest",
            pick=None,
            detail={},
            exported_to=exported_to,
        )
    )
    job_id = queued(store, left.run)
    said: list[str] = []
    assert job_run.run_job(job_id, db=str(tmp_path / "autotune.db"), say=said.append) == status


def test_a_study_whose_files_are_elsewhere_is_refused_with_the_name_of_the_machine_that_lacks_them(
    store: ServiceStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTOTUNE_MACHINE", "gpu-b")
    with pytest.raises(InputRefused, match=r"machine, gpu-b .*/models/tiny\.onnx"):
        job_run.run_job(queued(store), db=str(tmp_path / "autotune.db"), say=pytest.fail)


def test_a_machine_that_is_taken_puts_the_job_off(
    store: ServiceStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def taken(_: object) -> int:
        raise MachineBusy("another study is measuring on this machine")

    monkeypatch.setattr(job_run, "_DOING", {JobKind.STUDY: taken})
    said: list[str] = []
    status = job_run.run_job(queued(store), db=str(tmp_path / "autotune.db"), say=said.append)
    assert (status, said) == (LATER, ["another study is measuring on this machine"])
