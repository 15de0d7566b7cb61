"""The service's worker: lanes, leases, cancelling, crashes, its own end. Jobs are small scripts."""

from __future__ import annotations

import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest

from autotune.adapters.triton.process import Command
from autotune.bootstrap.bench import alone
from autotune.bootstrap.jobs import folder_name
from autotune.bootstrap.worker import LATER, Timing, Worker, someone_measures
from autotune.core.errors import StoreFailed
from autotune.core.jobs import Beat, Job, JobKind, JobState
from storage.service import ServiceStore
from tests.integration.studies import command_line

QUICK = Timing(lease_s=30, beat_s=0.05, poll_s=0.02, later_s=0.05, grace_s=5)
SLEEPS = "import time; time.sleep(60)"
MARK = uuid.uuid4().hex
"""What each job's process has among its arguments."""
MEASURING = ("here/cpu",)


class Bench:
    """Workers on one database, whose jobs run the Python code that their payload has."""

    def __init__(self, database: Path) -> None:
        self.folder = database.parent
        self.store = ServiceStore(str(database))
        self.jobs = self.store.jobs
        self.ended: list[tuple[int, JobState]] = []
        self._workers: list[Worker] = []

    def worker(self, *, jobs: Any = None, timing: Timing = QUICK, **options: Any) -> Worker:
        made = Worker(
            jobs or self.jobs,
            command=_command,
            logs=self.folder / "logs",
            ended=lambda job: self.ended.append((job.id, job.state)),
            timing=timing,
            **{"occupied": lambda: False, **options},
        )
        self._workers.append(made)
        made.start()
        return made

    def submit(self, code: str, *, devices: tuple[str, ...] = ()) -> int:
        return self.jobs.submit(JobKind.STUDY, "a job", {"code": code}, devices=devices, by="me")

    def job(self, job_id: int) -> Job:
        return self.jobs.job(job_id)

    def until(self, job_id: int, *states: JobState) -> Job:
        self.wait(lambda: self.job(job_id).state in states, f"job {job_id} is not {states}")
        return self.job(job_id)

    def wait(self, condition: Callable[[], bool], otherwise: str) -> None:
        deadline = time.monotonic() + 30
        while not condition():
            assert time.monotonic() < deadline, otherwise
            time.sleep(0.02)

    def touched(self, name: str) -> bool:
        return (self.folder / name).exists()

    def touches(self, name: str, then: str = SLEEPS) -> str:
        return f"import pathlib; pathlib.Path({str(self.folder / name)!r}).touch(); {then}"

    def close(self) -> None:
        for worker in self._workers:
            worker.stop()
        self.store.close()


def _command(job: Job) -> Command:
    return Command(argv=[sys.executable, "-c", job.payload["code"], MARK])


def begun(
    bench: Bench, code: str = SLEEPS, *, first: str = "", devices: tuple[str, ...] = ()
) -> int:
    """A job whose process is under way; ``first`` is what it does before that is to be seen."""
    job_id = bench.submit(first + bench.touches("began", code), devices=devices)
    bench.wait(lambda: bench.touched("began"), "it did not begin")
    return job_id


def no_process() -> bool:
    """None of a job's: this process may have other children, from other tests."""
    mine = psutil.Process().children(recursive=True)
    return not [process for process in mine if MARK in command_line(process)]


@pytest.fixture
def bench(database: Path) -> Iterator[Bench]:
    with closing(Bench(database)) as made:
        yield made


# ---------------------------------------------------------------------------------- how jobs end
@pytest.mark.parametrize(
    ("code", "state", "reason"),
    [
        ("", JobState.DONE, ""),
        ("raise SystemExit(3)", JobState.DONE, "no candidate meets the SLA"),
        ("raise SystemExit('autotune: the disk is full')", JobState.FAILED, "the disk is full"),
        (
            "raise SystemExit('no answer from postgresql://me:' + 'hidden' * 400 + '@db/x')",
            JobState.FAILED,
            "no answer from postgresql://…@db/x",
        ),
        ("raise SystemExit(2)", JobState.FAILED, "its process ended with exit status 2"),
        (
            "import os; os.kill(os.getpid(), 11)",
            JobState.FAILED,
            "its process was ended by SIGSEGV",
        ),
        (
            "import os; print('a warning', flush=True); os.kill(os.getpid(), 9)",
            JobState.FAILED,
            "its process was ended by SIGKILL, as the system does where memory runs out;"
            " it wrote last:\na warning",
        ),
    ],
)
def test_a_jobs_end_is_told_by_its_exit_status_and_its_last_words(
    bench: Bench, code: str, state: JobState, reason: str
) -> None:
    bench.worker()
    job_id = bench.submit(code)
    job = bench.until(job_id, JobState.DONE, JobState.FAILED)
    assert (job.state, job.reason) == (state, reason)
    bench.wait(lambda: bench.ended == [(job_id, state)], "nobody was told")


def test_where_the_log_cannot_be_written_the_jobs_own_words_are_told_all_the_same(
    bench: Bench,
) -> None:
    job_id = bench.submit(
        "from autotune.bootstrap.last_words import telling_last_words\n"
        "with telling_last_words(): raise OSError('the disk is full: /srv/work')"
    )
    log = bench.folder / "logs" / f"{folder_name(bench.job(job_id))}.log"
    log.parent.mkdir(exist_ok=True)
    log.symlink_to("/dev/full")
    bench.worker()
    job = bench.until(job_id, JobState.FAILED)
    assert job.reason == "the disk is full: /srv/work"


def test_a_job_that_cannot_be_begun_waits_until_it_can(bench: Bench) -> None:
    logs = bench.folder / "logs"
    logs.touch()  # no folder for the log
    bench.worker()
    job_id = bench.submit("")
    bench.wait(lambda: "could not be begun" in bench.job(job_id).reason, "nothing is told")
    logs.unlink()
    assert bench.until(job_id, JobState.DONE).attempt == 1


def test_on_a_full_disk_no_job_is_begun(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as full:
        full.setattr("autotune.bootstrap.worker._ROOM_BYTES", 1 << 62)
        worker = bench.worker()
        job_id = bench.submit("")
        time.sleep(0.3)
        assert (bench.job(job_id).state, worker.alive()) == (JobState.QUEUED, True)
    bench.until(job_id, JobState.DONE)


def test_a_program_that_is_not_there_fails_the_job_and_not_the_worker(bench: Bench) -> None:
    bench.worker()
    bench.until(bench.submit("import os; os.execv('/nowhere', ['x'])"), JobState.FAILED)
    bench.until(bench.submit(""), JobState.DONE)


def twice(bench: Bench, first: str, second: str) -> str:
    """Code that does something else when it is run again."""
    mark = f"pathlib.Path({str(bench.folder / 'tried')!r})"
    return (
        f"import pathlib, sys\nagain = {mark}.exists()\n{mark}.touch()\n"
        f"if again:\n    {second}\nelse:\n    {first}"
    )


def test_the_last_words_are_those_of_the_last_attempt(bench: Bench) -> None:
    bench.worker()
    job_id = bench.submit(twice(bench, f"print('busy'); sys.exit({LATER})", "sys.exit(1)"))
    job = bench.until(job_id, JobState.FAILED)
    assert job.reason == "its process ended with exit status 1"


def test_what_cannot_be_done_now_is_tried_again_and_costs_no_attempt(bench: Bench) -> None:
    bench.worker()
    job_id = bench.submit(twice(bench, f"sys.exit({LATER})", "sys.exit(0)"))
    assert bench.until(job_id, JobState.DONE).attempt == 1


def test_nobody_waits_behind_what_cannot_be_done_now(bench: Bench) -> None:
    put_off = bench.submit(f"raise SystemExit({LATER})")
    bench.worker(timing=Timing(poll_s=0.02, later_s=3600))
    bench.until(bench.submit(""), JobState.DONE)
    assert bench.job(put_off).state is JobState.QUEUED


# ---------------------------------------------------------------------------------------- lanes
def test_a_job_without_devices_does_not_wait_for_one_that_measures(bench: Bench) -> None:
    bench.worker()
    long = begun(bench, devices=MEASURING)
    bench.until(bench.submit(""), JobState.DONE)
    assert bench.job(long).state is JobState.RUNNING


def test_two_jobs_that_measure_take_their_turn(bench: Bench) -> None:
    bench.worker()
    first = begun(bench, devices=MEASURING)
    second = bench.submit("", devices=MEASURING)
    assert bench.job(second).state is JobState.QUEUED
    bench.jobs.cancel(first)
    bench.until(second, JobState.DONE)


def test_nothing_that_measures_begins_while_someone_else_does(bench: Bench) -> None:
    occupied = threading.Event()
    occupied.set()
    bench.worker(occupied=occupied.is_set)
    measuring = bench.submit("", devices=MEASURING)
    bench.until(bench.submit(""), JobState.DONE)
    assert bench.job(measuring).state is JobState.QUEUED
    occupied.clear()
    bench.until(measuring, JobState.DONE)


def test_a_study_that_somebody_runs_is_seen_without_taking_its_lock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AUTOTUNE_SLOT", uuid.uuid4().hex)  # whatever else is measured here
    assert not someone_measures()
    with alone():
        assert someone_measures()
    with alone():
        pass


# ----------------------------------------------------------------------------- asked to end early
def test_a_cancelled_job_is_asked_to_end_and_is_then_cancelled(bench: Bench) -> None:
    bench.worker()
    job_id = begun(bench, first="import signal, sys; signal.signal(15, lambda *_: sys.exit(1)); ")
    bench.jobs.cancel(job_id)
    job = bench.until(job_id, JobState.CANCELLED)
    assert job.exit_code == 1


def test_a_job_that_ends_well_though_it_was_asked_to_end_is_done(bench: Bench) -> None:
    bench.worker()
    job_id = begun(bench, first="import signal, sys; signal.signal(15, lambda *_: sys.exit(0)); ")
    bench.jobs.cancel(job_id)
    bench.until(job_id, JobState.DONE)


def test_a_worker_that_is_stopped_puts_its_job_back_without_counting_the_attempt(
    bench: Bench,
) -> None:
    worker = bench.worker()
    job_id = begun(bench)
    worker.stop()
    job = bench.job(job_id)
    assert (job.state, job.attempt, job.owner) == (JobState.QUEUED, 0, None)
    assert bench.ended == []
    assert no_process()


def test_a_job_that_is_deaf_to_its_end_is_killed_after_the_grace(bench: Bench) -> None:
    worker = bench.worker(timing=Timing(poll_s=0.02, grace_s=0.2))
    job_id = begun(bench, first="import signal; signal.signal(15, signal.SIG_IGN); ")
    worker.stop()
    assert bench.job(job_id).state is JobState.QUEUED
    assert no_process()


# --------------------------------------------------------------------------------------- leases
class Flaky:
    """A job store that does not answer while ``away``, or raises ``fault``, takes its time while
    ``hung``, gives out a job only once, and refuses so many ends."""

    def __init__(self, store: Any, fault: Exception | None = None) -> None:
        self._store = store
        self._fault = fault or StoreFailed("the database does not answer")
        self.away = False
        self.hung = threading.Event()
        self._given = False
        self.ends_refused = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def claim(self, owner: str, **options: Any) -> Job | None:
        self._answer()
        job: Job | None = None if self._given else self._store.claim(owner, **options)
        self._given = job is not None or self._given
        return job

    def end(self, *asked: Any, **options: Any) -> bool:
        if self.ends_refused:
            self.ends_refused -= 1
            raise StoreFailed("the database does not answer")
        ended: bool = self._store.end(*asked, **options)
        return ended

    def beat(self, owner: str, job_id: int, *, ttl_s: float) -> Beat:
        self._answer()
        while self.hung.is_set():
            time.sleep(0.02)
        beat: Beat = self._store.beat(owner, job_id, ttl_s=ttl_s)
        return beat

    def _answer(self) -> None:
        if self.away:
            raise self._fault


def test_a_job_that_another_worker_has_is_ended_here_and_left_alone(bench: Bench) -> None:
    bench.worker(jobs=Flaky(bench.jobs))
    job_id = begun(bench)
    owner = bench.job(job_id).owner
    assert owner is not None
    bench.jobs.end(job_id, owner, JobState.QUEUED)
    assert bench.jobs.claim("another", ttl_s=30, measuring=False) is not None
    bench.wait(no_process, "its process goes on")
    job = bench.job(job_id)
    assert (job.state, job.owner) == (JobState.RUNNING, "another")


def test_a_job_whose_lease_could_not_be_renewed_is_put_back_though_it_is_renewed_as_it_ends(
    bench: Bench,
) -> None:
    store = Flaky(bench.jobs)
    bench.worker(jobs=store, timing=Timing(lease_s=3, beat_s=0.05, poll_s=0.02))
    asked = f"pathlib.Path({str(bench.folder / 'asked')!r})"
    ends = f"def end(*_):\n    {asked}.touch(); time.sleep(0.3); sys.exit(1)\n"
    first = f"import pathlib, signal, sys, time\n{ends}signal.signal(15, end)\n"
    job_id = begun(bench, first=first)
    store.away = True
    bench.wait(lambda: bench.touched("asked"), "it was not asked to end")
    store.away = False
    job = bench.until(job_id, JobState.QUEUED, JobState.FAILED)
    assert (job.state, job.reason) == (JobState.QUEUED, "its worker could not renew its lease")
    assert no_process()


def test_a_heartbeat_that_hangs_keeps_no_job_beyond_its_lease_though_it_is_deaf(
    bench: Bench,
) -> None:
    store = Flaky(bench.jobs)
    bench.worker(jobs=store, timing=Timing(lease_s=3, beat_s=0.05, poll_s=0.02, grace_s=3600))
    begun(bench, first="import signal; signal.signal(15, signal.SIG_IGN); ")
    store.hung.set()
    try:
        bench.wait(no_process, "its process goes on")
    finally:
        store.hung.clear()


def test_a_clock_that_jumps_takes_no_job_away_from_the_worker_that_does_it(bench: Bench) -> None:
    bench.worker(timing=Timing(poll_s=0.02, grace_s=5))
    job_id = begun(bench, devices=MEASURING)
    bench.store._database.now = lambda: time.time() + 3600
    bench.until(bench.submit(""), JobState.DONE)  # the other lane has looked at the leases
    job = bench.job(job_id)
    assert (job.state, job.attempt) == (JobState.RUNNING, 1)


def test_a_heartbeat_that_fails_is_no_reason_to_end_a_job(bench: Bench) -> None:
    store = Flaky(bench.jobs)
    bench.worker(jobs=store)
    go = bench.folder / "go"
    waits = f"import time\nwhile not pathlib.Path({str(go)!r}).exists(): time.sleep(0.02)"
    job_id = begun(bench, waits)
    store.away = True
    time.sleep(0.2)
    store.away = False
    go.touch()
    bench.until(job_id, JobState.DONE)


def test_a_finished_job_is_ended_though_the_database_is_away_for_a_moment(bench: Bench) -> None:
    store = Flaky(bench.jobs)
    store.ends_refused = 3
    bench.worker(jobs=store)
    job = bench.until(bench.submit(""), JobState.DONE)
    assert (job.attempt, store.ends_refused) == (1, 0)


def test_an_end_that_cannot_be_stored_within_the_lease_is_given_up(bench: Bench) -> None:
    store = Flaky(bench.jobs)
    store.ends_refused = 10_000
    worker = bench.worker(jobs=store, timing=Timing(lease_s=0.6, beat_s=0.05, poll_s=0.02))
    job_id = bench.submit("")
    assert bench.until(job_id, JobState.RUNNING).attempt == 1
    worker.stop()
    assert bench.job(job_id).state is JobState.RUNNING


def test_a_dead_workers_job_is_taken_over_when_its_lease_has_run_out(bench: Bench) -> None:
    job_id = bench.submit("")
    assert bench.jobs.claim("a worker that died", ttl_s=0.3, measuring=False) is not None
    bench.worker()
    assert bench.until(job_id, JobState.DONE).attempt == 2


@pytest.mark.parametrize("fault", [None, ValueError("'future' is not a valid JobKind")])
def test_a_database_that_is_away_or_not_understood_for_a_while_does_not_end_the_worker(
    bench: Bench, fault: Exception | None
) -> None:
    store = Flaky(bench.jobs, fault)
    store.away = True
    worker = bench.worker(jobs=store)
    time.sleep(0.1)
    assert worker.alive()
    store.away = False
    bench.until(bench.submit(""), JobState.DONE)
