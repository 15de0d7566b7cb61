"""What the service has done: studies that outlive it, nights, promotions."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from autotune.adapters.triton.environment import ServerEnvironment
from tests.integration.services import Service
from tests.integration.studies import Tool, next_turn, tool

pytestmark = [pytest.mark.server, pytest.mark.timeout(600)]

LEASE_S = 4


@pytest.fixture
def cli(tmp_path: Path, cache_dir: Path, server_environment: ServerEnvironment) -> Iterator[Tool]:
    yield from tool(tmp_path, cache_dir)


def measuring(trial: int) -> Callable[[dict[str, Any]], bool]:
    """Whether a job measures this trial, counted from 1."""

    def look(job: dict[str, Any]) -> bool:
        progress = job["progress"]
        return bool(progress.get("trial") == trial and progress["text"] == "measuring")

    return look


def test_a_study_outlives_the_services_that_are_killed_or_stopped_while_it_measures(
    cli: Tool,
) -> None:
    study = cli.study(space={"max_batch_size": [1, 2, 4]}, workload={"measure_s": 2})
    with next_turn():
        both = [Service.start(cli, "--lease", LEASE_S) for _ in range(2)]
        number = both[0].submit(study)
        owner = both[0].until(number, measuring(2))["owner"]
        killed, other = sorted(both, key=lambda one: f"/{one.running.process.pid}@" not in owner)
        kept = first_trial(other)
        killed.running.process.kill()
        killed.running.finish(30)
        killed.running.assert_nothing_left(within_s=30)

        job = other.until(number, measuring(3))
        assert (job["attempt"], first_trial(other)) == (2, kept)
        other.running.tell(signal.SIGTERM).expect(0)
        other.running.assert_nothing_left()
        assert cli.shown()["study"]["state"] == "interrupted"

        third = Service.start(cli)
        job = third.until(number, lambda job: job["ended_at"] is not None)
        assert (job["state"], job["attempt"], job["exit_code"]) == ("done", 2, 0)
        third.running.tell(signal.SIGTERM).expect(0)
        third.running.assert_nothing_left()
    shown = cli.shown()
    assert shown["study"]["id"] == job["study_id"]
    assert [trial["state"] for trial in shown["trials"]] == ["ok", "ok", "ok"]
    assert first_trial_of(shown) == kept


def test_a_night_a_promotion_and_its_rollback_are_jobs_too(cli: Tool) -> None:
    definition = json.loads(cli.study().read_text())
    served = cli.folder / "serving"
    (served / "linear").mkdir(parents=True)
    with next_turn():
        service = Service.start(cli)
        service.post("/schedules", {"name": "n", "definition": definition, "cron": "0 2 * * *"})
        night = service.done(service.post("/schedules/n/run"))
        run = service.get("/schedules/n")["last"]
        assert (run["state"], run["job_id"], run["study_id"]) == ("done", 1, night["study_id"])
        proposal = service.post(
            "/promotions", {"study": night["study_id"], "target": {"repository": "serving"}}
        )
        service.done(service.post(f"/promotions/{proposal['id']}/approve"))
        assert (served / "linear" / "config.pbtxt").is_file()
        service.done(service.post("/models/linear/rollback", {"why": "a test"}))
        assert not (served / "linear" / "config.pbtxt").exists()
        service.running.tell(signal.SIGTERM).expect(0)
        service.running.assert_nothing_left()


def first_trial(service: Service) -> Any:
    """When it was measured."""
    (study,) = service.get("/studies")
    return first_trial_of({"trials": [service.get(f"/studies/{study['id']}/trials/0")]})


def first_trial_of(shown: dict[str, Any]) -> Any:
    trial = shown["trials"][0]
    return trial["started_at"], trial["ended_at"]
