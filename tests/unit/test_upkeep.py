"""What follows from jobs that failed or were cancelled, and when notices are sent."""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from autotune.bootstrap.upkeep import Aftermath, Forgetting, Upkeep, remove_old
from autotune.core.jobs import Job, JobKind, JobState
from autotune.core.notices import Event
from autotune.core.promotions import Promotion, PromotionState, Target
from autotune.core.schedules import RunState, Schedule
from autotune.settings import NotifySettings, Settings
from storage.service import ServiceStore

NOW = 1_000_000.0


class Bench:
    def __init__(self, database: Path) -> None:
        self.at, folder = NOW, database.parent
        self.store = ServiceStore(str(database), now=lambda: self.at)
        self.settings = Settings(
            cache_dir=folder,
            work_dir=folder,
            service_dir=folder,
            database="",
            notify=NotifySettings(webhook="https://hooks.example/secret"),
        )

    def look(self) -> list[str]:
        """As a process does that has just been started; the titles of all notices, oldest first."""
        Aftermath(
            jobs=self.store.jobs,
            schedules=self.store.schedules,
            promotions=self.store.promotions,
            notices=self.store.notices,
            settings=self.settings,
            now=lambda: self.at,
        ).see_to()
        return [notice.title for notice in reversed(self.store.notices.notices())]

    def ended(
        self, kind: JobKind, payload: dict[str, Any], state: JobState = JobState.FAILED
    ) -> Job:
        job_id = self.store.jobs.submit(kind, "tiny", payload, by="ops")
        assert self.store.jobs.claim("worker", ttl_s=30, measuring=False) is not None
        assert self.store.jobs.end(job_id, "worker", state, reason="the disk is full")
        return self.store.jobs.job(job_id)

    def night(self, state: RunState = RunState.RUNNING) -> int:
        schedule = Schedule(id=0, name="nightly", definition={}, cron="0 2 * * *")
        run = self.store.schedules.due(self.store.schedules.add(schedule), NOW)
        assert run is not None
        self.store.schedules.update_run(run, state=state)
        return run

    def steps(self, promotion: int) -> list[tuple[str, str, str]]:
        trail = self.store.promotions.audit(subject=f"promotion {promotion}")
        return [(each.who, each.action, each.why) for each in trail]

    def promotion(self, state: PromotionState = PromotionState.APPROVED) -> int:
        return self.store.promotions.propose(
            Promotion(
                id=0,
                model="ocr",
                target=Target(repository=Path("/models")),
                study_id=1,
                trial=0,
                candidate={},
                state=state,
            )
        )

    def tell(self, event: Event, **payload: Any) -> None:
        self.store.notices.add(event, "told already", "", payload, "webhook")


@pytest.fixture
def bench(database: Path) -> Iterator[Bench]:
    made = Bench(database)
    with closing(made.store):
        yield made


# --------------------------------------------------------------------------------------- files
def test_what_jobs_left_a_month_ago_is_removed_and_nothing_else(bench: Bench) -> None:
    folder = bench.settings.service_dir
    kept, old = "kept", "old"
    for age, at in ((kept, NOW), (old, NOW - 31 * 86_400)):
        for path in (f"exports/job-{age}", f"exports/other-{age}", "releases/job-1"):
            (folder / path).mkdir(parents=True, exist_ok=True)
            os.utime(folder / path, (at, at))
        log = folder / "logs" / f"job-{age}.log"
        log.parent.mkdir(exist_ok=True)
        log.touch()
        os.utime(log, (at, at))
    remove_old(bench.settings, NOW + 1)
    left = {str(path.relative_to(folder)) for path in folder.glob("*/*")}
    assert left == {
        "exports/job-kept",
        "exports/other-kept",
        "exports/other-old",
        "logs/job-kept.log",
        "releases/job-1",
    }


def test_each_duty_is_done_though_another_cannot_be(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken:
        def see_to(self) -> None:
            raise KeyError("run")

    monkeypatch.setenv("AUTOTUNE_SLOT", uuid.uuid4().hex)  # whatever is measured here
    old = bench.settings.service_dir / "logs" / "job-old.log"
    old.parent.mkdir()
    old.touch()
    os.utime(old, (NOW, NOW))
    settled = threading.Event()
    upkeep = Upkeep(
        Broken(),  # type: ignore[arg-type]
        bench.store.notices,
        bench.settings,
        settle=settled.set,
    )
    upkeep.start()
    deadline = time.monotonic() + 30
    while old.exists():
        assert time.monotonic() < deadline, "it is still there"
        time.sleep(0.01)
    assert upkeep.alive()
    assert settled.is_set()
    upkeep.stop()


@pytest.mark.parametrize(("enough_after", "forgotten"), [(99, 250), (1, 100)])
def test_raw_times_are_removed_in_steps_until_none_is_left_or_it_is_enough(
    enough_after: int, forgotten: int
) -> None:
    left, steps = [250], []

    def forget(ended_before: float, limit: int) -> int:
        steps.append(ended_before)
        step = min(left[0], limit)
        left[0] -= step
        return step

    forgetting = Forgetting(forget=forget, days=10)
    assert forgetting.act(NOW, enough=lambda: len(steps) >= enough_after) == forgotten
    assert set(steps) == {NOW - 10 * 86_400}


# ------------------------------------------------------------------------------------- notices
def test_a_failure_is_told_once_whichever_process_looks(bench: Bench) -> None:
    bench.ended(JobKind.STUDY, {})
    assert bench.look() == bench.look() == ["study tiny failed"]
    (notice,) = bench.store.notices.notices()
    assert "the disk is full" in notice.text
    assert "asked for by ops" in notice.text


def test_what_was_cancelled_or_failed_long_ago_is_not_told(bench: Bench) -> None:
    bench.ended(JobKind.STUDY, {}, JobState.CANCELLED)
    bench.ended(JobKind.STUDY, {})
    bench.at += 7200
    assert bench.look() == []


def test_a_job_about_something_that_is_not_there_keeps_no_other_from_being_seen_to(
    bench: Bench,
) -> None:
    bench.ended(JobKind.PROMOTE, {"promotion": 99})
    bench.ended(JobKind.STUDY, {})
    assert bench.look() == ["promote tiny failed", "study tiny failed"]


def test_a_job_whose_workers_were_all_lost_is_told_too(bench: Bench) -> None:
    bench.store.jobs.submit(JobKind.STUDY, "tiny", {}, by="ops")
    for _ in range(4):
        bench.store.jobs.claim("a worker that dies", ttl_s=30, measuring=False)
        bench.at += 31
    assert bench.look() == ["study tiny failed"]


def test_a_night_and_a_promotion_that_told_of_their_own_failure_are_not_told_twice(
    bench: Bench,
) -> None:
    night, promotion = bench.night(RunState.FAILED), bench.promotion(PromotionState.FAILED)
    bench.tell(Event.FAILURE, run=night)
    bench.ended(JobKind.NIGHTLY, {"run": night})
    bench.tell(Event.ROLLED_BACK, promotion=promotion)
    bench.ended(JobKind.PROMOTE, {"promotion": promotion})
    assert bench.look() == ["told already", "told already"]


def test_drift_of_the_same_night_is_no_telling_of_its_failure(bench: Bench) -> None:
    night = bench.night()
    bench.tell(Event.DRIFT, run=night)
    bench.ended(JobKind.NIGHTLY, {"run": night})
    assert bench.look() == ["told already", "nightly tiny failed"]


# ------------------------------------------------------------------------- nights and promotions
@pytest.mark.parametrize(
    ("job", "run"),
    [(JobState.FAILED, RunState.FAILED), (JobState.CANCELLED, RunState.STOPPED)],
)
def test_a_night_ends_with_its_job(bench: Bench, job: JobState, run: RunState) -> None:
    night = bench.night()
    bench.ended(JobKind.NIGHTLY, {"run": night}, job)
    bench.look()
    found = bench.store.schedules.run(night)
    assert (found.state, found.reason) == (run, "the disk is full")


def test_a_night_that_had_ended_stays_as_it_was(bench: Bench) -> None:
    night = bench.night(RunState.DONE)
    bench.ended(JobKind.NIGHTLY, {"run": night})
    bench.look()
    assert bench.store.schedules.run(night).state is RunState.DONE


def test_a_promotion_whose_job_was_cancelled_before_it_began_has_failed(bench: Bench) -> None:
    promotion = bench.promotion()
    bench.ended(JobKind.PROMOTE, {"promotion": promotion}, JobState.CANCELLED)
    bench.look()
    found = bench.store.promotions.promotion(promotion)
    assert (found.state, found.reason) == (PromotionState.FAILED, "the disk is full")
    assert bench.steps(promotion) == [("the service", "failed", "the disk is full")]


def test_a_promotion_that_lost_its_workers_half_way_says_what_to_do(bench: Bench) -> None:
    promotion = bench.promotion(PromotionState.APPLYING)
    bench.ended(JobKind.PROMOTE, {"promotion": promotion})
    bench.look()
    found = bench.store.promotions.promotion(promotion)
    assert found.state is PromotionState.APPLYING
    assert "the disk is full" in found.reason
    assert f"autotune promote --approve {promotion}" in found.reason
    bench.look()
    assert bench.steps(promotion) == [("the service", "left half done", "the disk is full")]


def test_a_promotion_that_is_in_service_stays_so(bench: Bench) -> None:
    promotion = bench.promotion(PromotionState.DONE)
    bench.ended(JobKind.PROMOTE, {"promotion": promotion})
    bench.look()
    assert bench.store.promotions.promotion(promotion).state is PromotionState.DONE
