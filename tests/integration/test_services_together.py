"""Two services, as of two machines, on one PostgreSQL; one of them is killed."""

from __future__ import annotations

import json
import signal
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from autotune.adapters.triton.environment import ServerEnvironment
from autotune.core.schedules import RunState, Schedule
from autotune.studyfile import read_study_file
from storage.service import ServiceStore
from tests.integration.services import Service
from tests.integration.studies import Tool, next_turn, tool

pytestmark = [pytest.mark.server, pytest.mark.timeout(600)]

LEASE_S = 4
LAST_YEAR = 1_700_000_000.0


@pytest.fixture
def cli(
    tmp_path: Path, cache_dir: Path, server_environment: ServerEnvironment, postgresql: str
) -> Iterator[Tool]:
    for made in tool(tmp_path, cache_dir):
        made.variables["AUTOTUNE_DB"] = postgresql
        yield made


def started(cli: Tool, machine: str) -> Service:
    """A service as if on a machine of its own: a lock, and folders, that no other has."""
    return Service.start(
        cli,
        *("--lease", LEASE_S),
        AUTOTUNE_MACHINE=machine,
        AUTOTUNE_SLOT=uuid.uuid4().hex,
        AUTOTUNE_WORK=str(cli.folder / f"work-{machine}"),
        AUTOTUNE_SERVICE=str(cli.folder / f"service-{machine}"),
    )


def due_once(database: str, study: Path) -> None:
    """A schedule whose run was due before any service was there."""
    definition = read_study_file(study).definition
    with closing(ServiceStore(database, now=lambda: LAST_YEAR)) as store:
        store.schedules.add(Schedule(id=0, name="n", definition=definition, cron="0 0 1 1 *"))


def owns(service: Service, job: dict[str, Any]) -> bool:
    return f"/{service.running.process.pid}@" in (job["owner"] or "")


def running(job: dict[str, Any]) -> bool:
    return bool(job["state"] == "running" and job["progress"])


def test_two_machines_measure_at_once_do_each_job_once_and_one_takes_over_from_the_other(
    cli: Tool, postgresql: str
) -> None:
    due_once(postgresql, cli.study("nightly"))
    with next_turn():
        both = [started(cli, machine) for machine in "ab"]
        asked = json.loads(cli.study("asked").read_text())
        night = both[1].until(1, running)
        other = both[1].post("/studies", {"definition": asked})["job"]["id"]
        job = both[0].until(other, running)

        held = [service.get("/leases") for service in both]
        assert held[0] == held[1]
        assert {device.partition("/")[0] for device in held[0]} == {"a", "b"}
        seen = [[(job["id"], job["owner"]) for job in s.get("/jobs")] for s in both]
        assert seen[0] == seen[1] == [(other, job["owner"]), (1, night["owner"])]
        assert [owns(service, night) + owns(service, job) for service in both] == [1, 1]

        killed, left = sorted(both, key=lambda service: not owns(service, night))
        killed.running.process.kill()
        killed.running.finish(10)
        killed.running.assert_nothing_left(within_s=30)
        left.ask("POST", f"/api/v1/jobs/{other}/cancel")
        assert left.until(other, lambda job: job["ended_at"] is not None)["state"] == "cancelled"
        night = left.until(1, lambda job: job["attempt"] >= 2 and running(job))
        assert owns(left, night)

        left.ask("POST", "/api/v1/jobs/1/cancel")
        left.until(1, lambda job: job["ended_at"] is not None)
        left.running.tell(signal.SIGTERM).expect(0)
        left.running.assert_nothing_left()
    with closing(ServiceStore(postgresql)) as store:
        (run,) = store.schedules.runs()
        assert (run.job_id, run.state) == (1, RunState.STOPPED)
