"""``autotune serve`` as a process: its parts apart, its end, its log."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from autotune.core.jobs import JobKind, JobState
from storage.service import ServiceStore
from tests.integration.services import Service
from tests.integration.studies import Tool, tool


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[Tool]:
    yield from tool(tmp_path, tmp_path / "cache")


def test_parts_run_apart_on_one_database(cli: Tool) -> None:
    web = Service.start(cli, "--no-worker", "--no-scheduler")
    with closing(ServiceStore(str(cli.db))) as store:
        job_id = store.jobs.submit(JobKind.ROLLBACK, "x", {"promotion": 7, "why": ""}, by="me")
        assert web.running.stderr().endswith("parts=web\n")
        assert web.job(job_id)["state"] == "queued"
        worker = Service.start(cli, "--no-scheduler")
        job = web.until(job_id, lambda job: job["ended_at"] is not None)
        assert (job["state"], job["exit_code"]) == ("failed", 2)
        assert job["reason"].startswith("no such promotion")
        assert store.jobs.job(job_id).state is JobState.FAILED
    for service in (web, worker):
        service.running.tell(signal.SIGTERM).expect(0)
        service.running.assert_nothing_left()


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGHUP])
def test_it_is_ready_and_ends_at_a_signal_and_its_log_is_json(
    cli: Tool, signum: signal.Signals
) -> None:
    service = Service.start(cli, "--log-format", "json")
    assert service.ask("GET", "/readyz") == (200, '{"status":"ready","problems":[]}')
    assert service.ask("GET", "/")[0] == 200
    ended = service.running.tell(signum).expect(0)
    events: list[dict[str, Any]] = [json.loads(line) for line in ended.stderr.splitlines()]
    assert [event["event"] for event in events if event["event"] != "request"] == [
        "starting",
        "serving",
        "stopping",
        "stopped",
    ]
    service.running.assert_nothing_left()
