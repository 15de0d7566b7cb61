"""What every JobStore does."""

from __future__ import annotations

import math
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from autotune.core.errors import InputRefused
from autotune.core.jobs import ATTEMPTS, SOMEWHERE, Beat, Job, JobKind, JobState, Place
from autotune.service_ports import JobStore
from storage.service import ServiceStore
from tests.contract.conftest import Clock
from tests.sameness import comparable

ROOT = Path(__file__).parents[2]
CPU, GPU = "host/cpu", "host/GPU-1"


@pytest.fixture
def jobs(service: ServiceStore) -> JobStore:
    return service.jobs


@pytest.fixture
def others(again: ServiceStore) -> JobStore:
    """The same queue, as another process has it."""
    return again.jobs


def _submitted(jobs: JobStore, *devices: str, title: str = "a study") -> int:
    return jobs.submit(JobKind.STUDY, title, {}, devices=devices, by="ci")


def _claimed(
    jobs: JobStore, owner: str = "w1", *, measuring: bool = True, place: Place = SOMEWHERE
) -> int | None:
    job = jobs.claim(owner, ttl_s=30, measuring=measuring, place=place)
    return None if job is None else job.id


# --------------------------------------------------------------------------------------- queue
def test_a_job_comes_back_as_it_was_submitted(jobs: JobStore, others: JobStore) -> None:
    payload = {"definition": {"sla": {"p95_ms": math.inf}}, "why": None, "é": [1, 2.5]}
    job_id = jobs.submit(JobKind.NIGHTLY, "night 1 ☃", payload, devices=[GPU, CPU, CPU], by="ci")
    job = others.job(job_id)
    assert (job.kind, job.state, job.title) == (JobKind.NIGHTLY, JobState.QUEUED, "night 1 ☃")
    assert comparable(job.payload) == comparable(payload)
    assert (job.devices, job.created_at, job.created_by) == ((GPU, CPU), 1000.0, "ci")
    assert (job.owner, job.attempt, job.cancel, job.started_at) == (None, 0, False, None)


def test_jobs_are_listed_newest_first_by_state_and_up_to_a_limit(jobs: JobStore) -> None:
    first, second, third = (_submitted(jobs, CPU) for _ in range(3))
    assert _claimed(jobs) == first
    assert [job.id for job in jobs.jobs()] == [third, second, first]
    assert [job.id for job in jobs.jobs(states=[JobState.QUEUED])] == [third, second]
    assert [job.id for job in jobs.jobs(limit=1)] == [third]


@pytest.mark.parametrize("number", [7, 0, -1, 2**31, 2**70])
def test_a_number_that_no_job_has_is_refused(jobs: JobStore, number: int) -> None:
    with pytest.raises(InputRefused, match="no such job"):
        jobs.job(number)


def test_a_job_that_does_not_exist_is_refused(jobs: JobStore) -> None:
    with pytest.raises(InputRefused, match="no such job"):
        jobs.job(7)
    with pytest.raises(InputRefused, match="no such job"):
        jobs.cancel(7)
    with pytest.raises(InputRefused, match="no such job"):
        jobs.set_progress(7, {})


def test_a_job_keeps_its_latest_progress_and_its_study(
    service: ServiceStore, jobs: JobStore
) -> None:
    study = service.trials.create_study("ocr", {}, "digest")
    job_id = _submitted(jobs, CPU)
    jobs.set_progress(job_id, {"step": "trial 1"})
    jobs.set_progress(job_id, {"step": "trial 2"})
    jobs.set_study(job_id, study)
    job = jobs.job(job_id)
    assert (job.progress, job.study_id) == ({"step": "trial 2"}, study)


# ------------------------------------------------------------------------------------- claims
def test_the_oldest_job_is_claimed_first(jobs: JobStore, clock: Clock) -> None:
    first = _submitted(jobs, CPU)
    _submitted(jobs, GPU)
    clock.at = 1005.0
    job = jobs.claim("w1", ttl_s=30, measuring=True)
    assert job is not None
    assert (job.id, job.state, job.owner) == (first, JobState.RUNNING, "w1")
    assert (job.attempt, job.started_at, job) == (1, 1005.0, jobs.job(first))


def test_an_empty_queue_gives_nothing(jobs: JobStore) -> None:
    assert _claimed(jobs) is None
    assert _claimed(jobs, measuring=False) is None


def test_what_is_put_off_is_passed_over(jobs: JobStore) -> None:
    first, second = _submitted(jobs, CPU), _submitted(jobs, CPU)
    job = jobs.claim("w1", ttl_s=30, measuring=True, but_not=[first])
    assert job is not None
    assert job.id == second


def test_a_lane_is_given_only_its_own_jobs(jobs: JobStore) -> None:
    measures, promotes = _submitted(jobs, CPU), _submitted(jobs)
    assert _claimed(jobs, measuring=False) == promotes
    assert _claimed(jobs, measuring=True) == measures
    assert _claimed(jobs, measuring=False) is None


def test_one_job_at_a_time_has_a_device_and_a_later_one_that_can_begin_does(
    jobs: JobStore, others: JobStore
) -> None:
    _, waits, elsewhere = _submitted(jobs, CPU), _submitted(jobs, CPU, GPU), _submitted(jobs, GPU)
    _claimed(jobs)
    assert _claimed(others, "w2") == elsewhere
    assert _claimed(others, "w2") is None
    assert others.job(waits).state is JobState.QUEUED


def test_each_machine_has_devices_of_its_own_and_one_has_a_remote_server(
    jobs: JobStore, others: JobStore
) -> None:
    here, remote = "here/cpu", "gpu1:8001"
    first, second, waits = (_submitted(jobs, here, *more) for more in ((), (remote,), (remote,)))
    a, b, c = (Place(machine=name) for name in "abc")
    assert _claimed(jobs, "w1", place=a) == first
    assert _claimed(others, "another of its machine", place=a) is None
    assert _claimed(others, "w2", place=b) == second
    assert _claimed(others, "w3", place=c) is None
    assert list(jobs.leases()) == ["a/cpu", "b/cpu", remote]
    assert jobs.end(second, "w2", JobState.DONE)
    assert _claimed(others, "w3", place=c) == waits


def test_devices_are_given_back_when_a_job_ends(jobs: JobStore, others: JobStore) -> None:
    first, second = _submitted(jobs, CPU), _submitted(jobs, CPU)
    _claimed(jobs)
    assert jobs.end(first, "w1", JobState.DONE, reason="picked 4", exit_code=0)
    job = jobs.job(first)
    assert (job.state, job.reason, job.exit_code, job.ended_at) == (
        JobState.DONE,
        "picked 4",
        0,
        1000.0,
    )
    assert _claimed(others, "w2") == second


def test_leases_tell_who_has_which_device(jobs: JobStore, clock: Clock) -> None:
    first = _submitted(jobs, CPU, GPU)
    _submitted(jobs)
    _claimed(jobs)
    _claimed(jobs, measuring=False)
    assert jobs.leases() == {CPU: f"job {first} of w1", GPU: f"job {first} of w1"}
    clock.at += 31
    assert jobs.leases() == {}


def test_those_that_have_ended_since_come_in_the_order_in_which_they_did(
    jobs: JobStore, clock: Clock
) -> None:
    long_ago, last, first, runs = (_submitted(jobs, f"{number}") for number in range(4))
    jobs.cancel(long_ago)
    for job_id in (first, last):
        clock.at += 10
        jobs.cancel(job_id)
    jobs.claim("w1", ttl_s=30, measuring=True)
    found = jobs.ended([JobState.CANCELLED, JobState.DONE], since=1010.0)
    assert [job.id for job in found] == [first, last]
    assert jobs.job(runs).state is JobState.RUNNING


# -------------------------------------------------------------------------------- beat and end
def test_a_heartbeat_keeps_a_lease_from_running_out(
    jobs: JobStore, others: JobStore, clock: Clock
) -> None:
    job_id = _submitted(jobs, CPU)
    _claimed(jobs)
    for _ in range(3):
        clock.at += 20
        assert jobs.beat("w1", job_id, ttl_s=30) == Beat(held=True, cancel=False)
        assert _claimed(others, "w2") is None
    assert jobs.job(job_id).owner == "w1"


@pytest.mark.parametrize("devices", [(CPU,), ()], ids=["measuring", "not measuring"])
def test_a_dead_workers_job_is_taken_over_and_is_no_longer_its_own(
    jobs: JobStore, others: JobStore, clock: Clock, devices: tuple[str, ...]
) -> None:
    job_id = _submitted(jobs, *devices)
    _claimed(jobs, measuring=bool(devices))
    clock.at += 29
    assert _claimed(others, "w2", measuring=bool(devices)) is None
    clock.at += 1
    assert _claimed(others, "w2", measuring=bool(devices)) == job_id
    assert jobs.beat("w1", job_id, ttl_s=30) == Beat(held=False, cancel=False)
    assert not jobs.end(job_id, "w1", JobState.DONE)
    job = jobs.job(job_id)
    assert (job.state, job.owner, job.attempt) == (JobState.RUNNING, "w2", 2)


def test_a_lease_that_ran_out_and_that_nobody_took_is_renewed(jobs: JobStore, clock: Clock) -> None:
    job_id = _submitted(jobs, CPU)
    _claimed(jobs)
    clock.at += 100
    assert jobs.beat("w1", job_id, ttl_s=30).held
    assert jobs.leases() == {CPU: f"job {job_id} of w1"}


def test_a_lease_of_a_worker_that_is_known_to_live_does_not_run_out(
    jobs: JobStore, clock: Clock
) -> None:
    job_id = _submitted(jobs, CPU)
    _claimed(jobs)
    clock.at += 100
    assert jobs.claim("w2", ttl_s=30, measuring=False, alive=["w1"]) is None
    assert jobs.job(job_id).owner == "w1"
    assert jobs.claim("w2", ttl_s=30, measuring=True) is not None


def test_a_job_that_loses_its_worker_again_and_again_fails(jobs: JobStore, clock: Clock) -> None:
    job_id = _submitted(jobs, CPU)
    for attempt in range(ATTEMPTS):
        assert _claimed(jobs, f"w{attempt}") == job_id
        clock.at += 31
    assert _claimed(jobs) is None
    job = jobs.job(job_id)
    assert (job.state, job.attempt, job.ended_at) == (JobState.FAILED, ATTEMPTS, clock.at)
    assert "worker w2 was lost" in job.reason
    assert jobs.leases() == {}


def test_a_job_put_back_waits_again_and_its_attempt_does_not_count(
    jobs: JobStore, others: JobStore
) -> None:
    job_id = _submitted(jobs, CPU)
    for _ in range(ATTEMPTS + 1):
        assert _claimed(jobs) == job_id
        assert jobs.end(job_id, "w1", JobState.QUEUED, reason="the service stops", exit_code=1)
    job = jobs.job(job_id)
    assert (job.state, job.attempt, job.owner, job.ended_at) == (JobState.QUEUED, 0, None, None)
    assert (job.reason, job.exit_code) == ("the service stops", 1)
    assert _claimed(others, "w2") == job_id
    job = jobs.job(job_id)
    assert (job.reason, job.exit_code) == ("", None)


@pytest.mark.parametrize("state", [JobState.DONE, JobState.QUEUED])
def test_how_long_a_job_still_takes_is_not_known_once_it_is_left(
    jobs: JobStore, state: JobState
) -> None:
    job_id = _submitted(jobs, CPU)
    _claimed(jobs)
    jobs.set_progress(job_id, {"stage": "trial", "seconds_left": 40.0})
    jobs.end(job_id, "w1", state)
    assert jobs.job(job_id).progress == {"stage": "trial"}


def test_a_job_is_ended_once_and_only_by_its_worker(jobs: JobStore) -> None:
    job_id = _submitted(jobs, CPU)
    assert not jobs.end(job_id, "w1", JobState.DONE)
    _claimed(jobs)
    assert not jobs.end(job_id, "w2", JobState.FAILED)
    assert jobs.end(job_id, "w1", JobState.DONE)
    assert not jobs.end(job_id, "w1", JobState.FAILED)
    assert jobs.job(job_id).state is JobState.DONE


# -------------------------------------------------------------------------------------- cancel
def test_a_queued_job_is_cancelled_at_once(jobs: JobStore) -> None:
    job_id = _submitted(jobs, CPU)
    job = jobs.cancel(job_id)
    assert (job.state, job.ended_at) == (JobState.CANCELLED, 1000.0)
    assert _claimed(jobs) is None


def test_the_worker_of_a_running_job_hears_that_it_is_cancelled(
    jobs: JobStore, others: JobStore
) -> None:
    job_id = _submitted(jobs, CPU)
    _claimed(jobs)
    assert others.cancel(job_id).state is JobState.RUNNING
    assert jobs.beat("w1", job_id, ttl_s=30) == Beat(held=True, cancel=True)


def test_what_is_to_be_cancelled_is_not_put_back(jobs: JobStore, clock: Clock) -> None:
    put_back, lost = _submitted(jobs, CPU), _submitted(jobs, GPU)
    for job_id in (put_back, lost):
        assert _claimed(jobs) == job_id
        jobs.cancel(job_id)
    jobs.end(put_back, "w1", JobState.QUEUED)
    clock.at += 31
    assert _claimed(jobs) is None
    assert {jobs.job(job_id).state for job_id in (put_back, lost)} == {JobState.CANCELLED}


def test_a_job_that_has_ended_cannot_be_cancelled_any_more(jobs: JobStore) -> None:
    job_id = _submitted(jobs, CPU)
    _claimed(jobs)
    jobs.end(job_id, "w1", JobState.DONE)
    assert jobs.cancel(job_id) == jobs.job(job_id)
    assert jobs.job(job_id).state is JobState.DONE


# --------------------------------------------------------------------------------------- clocks
def test_machines_whose_clocks_differ_agree_on_a_lease(shared: str) -> None:
    with closing(ServiceStore(shared)) as slow, closing(ServiceStore(shared)) as fast:
        slow._database.now = lambda: time.time() - 3600
        fast._database.now = lambda: time.time() + 3600
        job_id = _submitted(slow.jobs, CPU)
        assert _claimed(slow.jobs, "slow") == job_id
        assert _claimed(fast.jobs, "fast") is None
        assert fast.jobs.leases() == {CPU: f"job {job_id} of slow"}
        assert slow.jobs.beat("slow", job_id, ttl_s=30).held
        assert _claimed(fast.jobs, "fast") is None
        slow.jobs.end(job_id, "slow", JobState.DONE)
        job = slow.jobs.job(job_id)
        assert job.started_at is not None
        assert job.ended_at is not None
        assert 0 <= job.ended_at - job.started_at < 60
        assert 0 <= job.started_at - job.created_at < 60


def test_a_lease_counts_from_when_the_database_was_free(tmp_path: Path, migrated: Path) -> None:
    path = shutil.copy(migrated, tmp_path / "service.db")
    clock = Clock()
    with closing(ServiceStore(str(path), now=clock)) as store:
        job_id = _submitted(store.jobs, CPU)
        with store.engine.connect() as other, ThreadPoolExecutor(1) as pool:
            other.begin()  # writes
            claimed = pool.submit(_claimed, store.jobs)
            time.sleep(0.2)  # it waits
            clock.at += 100
            other.rollback()
            assert claimed.result(timeout=60) == job_id
        assert store.jobs.leases() != {}


# --------------------------------------------------------------------------------- concurrency
_CLAIMER = """
import sys
from storage.service import ServiceStore
store = ServiceStore(sys.argv[1])
print("open", flush=True)
sys.stdin.readline()
while (job := store.jobs.claim(sys.argv[2], ttl_s=60, measuring=False)) is not None:
    print(job.id, flush=True)
store.close()
"""


def test_two_processes_that_claim_at_once_never_get_the_same_job(
    jobs: JobStore, where: str
) -> None:
    submitted = [_submitted(jobs) for _ in range(40)]
    claimers = [_claimer(where, name) for name in ("a", "b")]
    for each in claimers:
        assert each.stdout is not None
        assert each.stdout.readline() == "open\n"
    for each in claimers:
        assert each.stdin is not None
        each.stdin.write("go\n")
        each.stdin.flush()
    claimed = [int(line) for each in claimers for line in each.communicate(timeout=60)[0].split()]
    assert [each.returncode for each in claimers] == [0, 0]
    assert sorted(claimed) == submitted


def _claimer(where: str, owner: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", _CLAIMER, where, owner],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_threads_that_claim_at_once_never_hold_one_device_twice(
    jobs: JobStore, others: JobStore
) -> None:
    submitted = [_submitted(jobs, CPU, *([GPU] if number % 2 else [])) for number in range(16)]
    holding: list[Job] = []
    done: list[int] = []

    def work(store: JobStore, owner: str) -> None:
        while len(done) < len(submitted):
            job = store.claim(owner, ttl_s=60, measuring=True)
            if job is None:
                continue
            holding.append(job)
            assert holding == [job]
            holding.remove(job)
            assert store.end(job.id, owner, JobState.DONE)
            done.append(job.id)

    with ThreadPoolExecutor(4) as pool:
        workers = [
            pool.submit(work, store, f"w{number}")
            for number, store in enumerate((jobs, jobs, others, others))
        ]
        for worker in workers:
            worker.result(timeout=60)
    assert sorted(done) == submitted


def test_workers_that_reach_for_several_devices_and_die_do_not_block_each_other(where: str) -> None:
    wanted = (("a",), ("b",), ("c",), ("a", "b"), ("b", "c"))
    with ExitStack() as stack:
        stores = [stack.enter_context(closing(ServiceStore(where))).jobs for _ in range(8)]
        submitted = [_submitted(stores[0], *wanted[number % 5]) for number in range(20)]
        died: set[int] = set()

        def work(store: JobStore, owner: str) -> None:
            while store.jobs(states=[JobState.QUEUED, JobState.RUNNING], limit=1):
                job = store.claim(owner, ttl_s=0.2, measuring=True)
                if job is not None and job.id % 4 == 0 and job.id not in died:
                    died.add(job.id)
                elif job is not None:
                    store.end(job.id, owner, JobState.DONE)

        with ThreadPoolExecutor(8) as pool:
            workers = [pool.submit(work, store, f"w{n}") for n, store in enumerate(stores)]
            for worker in workers:
                worker.result(timeout=60)
        ended = [job.id for job in stores[0].jobs(limit=1000) if job.state.ended]
    assert sorted(ended) == submitted
    assert died


def test_many_threads_that_reach_for_one_expired_lease_give_it_to_one(
    jobs: JobStore, others: JobStore, clock: Clock
) -> None:
    job_id = _submitted(jobs, CPU)
    _claimed(jobs)
    clock.at += 31
    with ThreadPoolExecutor(6) as pool:
        reached = [
            pool.submit(_claimed, store, f"n{number}")
            for number, store in enumerate((jobs, others) * 3)
        ]
        got = [each.result(timeout=60) for each in reached]
    assert sorted(one for one in got if one is not None) == [job_id]
    assert jobs.job(job_id).attempt == 2
