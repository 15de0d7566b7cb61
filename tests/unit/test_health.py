"""Health, figures for monitoring, and the log of requests, over the whole application."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import structlog
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.testclient import TestClient

from autotune.bootstrap.logs import LogFormat, set_up_logs
from autotune.core.access import Role
from autotune.core.errors import StoreFailed
from autotune.core.jobs import JobKind, JobState
from autotune.core.notices import Event
from autotune.core.schedules import Outcome, RunState, Schedule
from dashboards.web.request_log import REQUEST_ID, RequestLog, request_seconds
from tests import service_app
from tests.service_app import LOCAL, Service


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    made = Service.in_folder(tmp_path)
    with closing(made.store):
        yield made


def client(service: Service, **desks: Any) -> TestClient:
    return service_app.client(service.app(replace(service.desks(), **desks)))


def figures(text: str) -> Mapping[tuple[str, ...], float]:
    """By name and label values, in the order of the labels' names."""
    return {
        (sample.name.removeprefix("autotune_"), *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


# --------------------------------------------------------------------------------------- health
def test_a_service_that_lives_says_so_without_asking_anyone(service: Service) -> None:
    answer = client(service).get("/healthz")
    assert (answer.status_code, answer.json()) == (200, {"status": "ok"})


def test_what_keeps_it_from_working_is_named_and_makes_it_not_ready(service: Service) -> None:
    assert client(service).get("/readyz").status_code == 200
    answer = client(service, problems=lambda: ["database", "worker"]).get("/readyz")
    assert answer.status_code == 503
    assert answer.json()["problems"] == ["database", "worker"]


def test_health_is_open_and_figures_take_a_token_where_one_is_needed(service: Service) -> None:
    open_to_others = replace(service, loopback=False)
    secret = open_to_others.token("prometheus", Role.VIEW)
    asked = client(open_to_others)
    assert asked.get("/healthz").status_code == 200
    assert asked.get("/readyz").status_code == 200
    assert asked.get("/metrics").status_code == 401
    shown = asked.get("/metrics", headers={"authorization": f"Bearer {secret}"})
    assert shown.status_code == 200


# -------------------------------------------------------------------------------------- figures
def test_figures_count_what_is_stored(service: Service) -> None:
    store = service.store
    for kind in (JobKind.STUDY, JobKind.STUDY, JobKind.ROLLBACK):
        store.jobs.submit(kind, "tiny", {}, devices=["h/cpu"], by="me")
    job = store.jobs.claim("worker", ttl_s=30, measuring=True)
    assert job is not None
    schedule = Schedule(id=0, name="nightly", definition={}, cron="0 2 * * *")
    run = store.schedules.due(store.schedules.add(schedule), 1000.0)
    assert run is not None
    store.schedules.update_run(run, state=RunState.DONE, outcome=Outcome.HOLDS)
    store.notices.add(Event.DRIFT, "", "", {}, "webhook")
    shown = figures(client(service).get("/metrics").text)
    assert shown["jobs", "study", "running"] == 1
    assert shown["jobs", "study", "queued"] == 1
    assert shown["jobs", "rollback", "queued"] == 1
    assert shown["device_leased", "h/cpu"] == 1
    assert shown["night_runs", "holds", "nightly"] == 1
    assert shown["notices", "drift", "waiting"] == 1
    assert shown["queue_age_seconds",] >= 0
    ended_at = store.schedules.run(run).ended_at
    assert shown["schedule_last_success_timestamp_seconds", "nightly"] == ended_at
    assert shown["ready",] == 1


def test_the_seconds_of_ended_jobs_are_added_up(service: Service) -> None:
    store = service.store
    job_id = store.jobs.submit(JobKind.STUDY, "tiny", {}, by="me")
    store.jobs.claim("worker", ttl_s=30, measuring=False)
    store.jobs.end(job_id, "worker", JobState.DONE)
    job = store.jobs.job(job_id)
    assert job.started_at is not None
    assert job.ended_at is not None
    shown = figures(client(service).get("/metrics").text)
    took = shown["job_seconds_total", "study", "done"]
    assert took == pytest.approx(job.ended_at - job.started_at)


def test_requests_are_counted_by_route_and_not_by_path(service: Service) -> None:
    asked = client(service)
    for path in ("/api/v1/jobs/1", "/api/v1/jobs/2", "/healthz", "/nothing/here", "/nor/here"):
        asked.get(path)
    shown = figures(asked.get("/metrics").text)
    name = "http_request_duration_seconds_count"
    counts = {key[1:]: value for key, value in shown.items() if key[0] == name}
    assert counts["GET", "/api/v1/jobs/{job_id}", "404"] == 2
    assert counts["GET", "/healthz", "200"] == 1
    assert counts["GET", "/{path}", "404"] == 2


def test_figures_that_cannot_be_read_are_a_503_that_says_why_and_not_where(
    service: Service,
) -> None:
    def away() -> Any:
        raise StoreFailed("the disk is full", value="/srv/autotune.db", told="the disk is full")

    answer = client(service, figures=away).get("/metrics")
    assert (answer.status_code, answer.json()["detail"]) == (503, "the disk is full")


# -------------------------------------------------------------------------------------- the log
@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    sink = io.StringIO()
    set_up_logs(LogFormat.JSON, to=sink)
    monkeypatch.setattr(logging.getLogger("httpx2"), "disabled", True)  # the client of these tests
    yield sink
    root.handlers, root.level = before, level
    structlog.reset_defaults()


def lines(log: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.getvalue().splitlines()]


def test_a_request_is_told_without_what_it_carries(service: Service, log: io.StringIO) -> None:
    secret = "hidden-in-the-request"
    client(service).get(
        f"/api/v1/jobs?token={secret}",
        headers={"authorization": f"Bearer {secret}", "cookie": f"a={secret}"},
    )
    (line,) = [each for each in lines(log) if each["event"] == "request"]
    assert (line["method"], line["path"], line["client"]) == ("GET", "/api/v1/jobs", LOCAL[0])
    assert secret not in log.getvalue()


def test_a_request_has_an_id_that_is_answered_and_told(service: Service, log: io.StringIO) -> None:
    asked = client(service)
    given = asked.get("/api/v1/jobs", headers={REQUEST_ID: "from-a-proxy"})
    forged = asked.get("/api/v1/jobs", headers={REQUEST_ID: "a b\tlevel=error"})
    told = [line["request_id"] for line in lines(log) if line["event"] == "request"]
    assert told == [given.headers[REQUEST_ID], forged.headers[REQUEST_ID]]
    assert told[0] == "from-a-proxy"
    assert told[1].isalnum()


def test_what_monitors_ask_every_few_seconds_is_not_told(
    service: Service, log: io.StringIO
) -> None:
    for path in ("/healthz", "/readyz", "/metrics"):
        client(service).get(path)
    assert lines(log) == []


@pytest.mark.parametrize(("status", "told"), [(200, []), (500, ["/_dash-update-component"])])
def test_what_open_pages_ask_every_few_seconds_is_told_only_when_it_fails(
    log: io.StringIO, status: int, told: list[str]
) -> None:
    async def page(request: Request) -> Response:
        return Response(status_code=status)

    app = Starlette(routes=[Route("/_dash-update-component", page, methods=["POST"])])
    seconds = request_seconds(CollectorRegistry())
    TestClient(RequestLog(app, seconds=seconds)).post("/_dash-update-component")
    assert [line["path"] for line in lines(log)] == told


def test_a_path_cannot_begin_a_line_of_its_own(service: Service, log: io.StringIO) -> None:
    client(service).get("/a%0Alevel=error")
    (line,) = lines(log)
    assert line["path"] == "/a%0Alevel%3Derror"
