"""What the API answers, over the real desks and a real database."""

from __future__ import annotations

import io
import json
import math
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from autotune.core.access import Role
from autotune.core.jobs import Job, JobKind, JobState
from autotune.core.promotions import PromotionState
from dashboards.api.answers import FiniteJson
from tests.realistic import a_finished_study
from tests.service_app import Service, a_request, apart, client

PREFIX = "/api/v1"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """One of each is stored; nobody needs a token."""
    folder = tmp_path_factory.mktemp("api")
    service = Service.in_folder(folder)
    service.all_of_it()
    with apart(folder):
        yield service


@pytest.fixture(scope="module")
def api(service: Service) -> TestClient:
    return client(service.app(), base_url=f"http://localhost:8080{PREFIX}/")


def got(api: TestClient, path: str, **asked: Any) -> Any:
    answer = api.get(path, params=asked)
    assert answer.status_code == 200, answer.text
    return answer.json()


def problem(answer: Any, status: int) -> dict[str, Any]:
    """A refusal as RFC 9457 wants it."""
    assert answer.headers["content-type"] == "application/problem+json"
    told: dict[str, Any] = answer.json()
    assert (answer.status_code, told["status"], told["type"]) == (status, status, "about:blank")
    return told


# --------------------------------------------------------------------------------------- studies
def test_studies_are_listed_with_their_best(api: TestClient) -> None:
    (line,) = got(api, "studies")
    assert (line["name"], line["model"], line["state"], line["trials"]) == (
        "ocr",
        "linear",
        "done",
        16,
    )
    assert line["best"] == 5
    assert line["best_metrics"]["p95_ms"] < 80


def test_a_study_comes_with_its_decision_and_comparisons(api: TestClient) -> None:
    found = got(api, "studies/1")
    assert (found["study"]["id"], found["decision"]["pick"]) == (1, 5)
    assert found["comparisons"][0]["first"] in (5, 7)


def test_trials_are_given_in_pages_with_why_they_stand_where_they_do(api: TestClient) -> None:
    page = got(api, "studies/1/trials", offset=5, limit=2)
    assert page["total"] == len(a_finished_study())
    assert [trial["number"] for trial in page["trials"]] == [5, 6]
    pick = page["trials"][0]
    assert pick["standing"] == "meets"
    low, high = pick["intervals"]["p95_ms"]
    assert low <= pick["metrics"]["p95_ms"] <= high
    assert "p95" in pick["why"]


def test_a_trial_comes_with_all_of_its_measurements(api: TestClient) -> None:
    trial = got(api, "studies/1/trials/5")
    assert {each["purpose"] for each in trial["measurements"]} >= {"trial", "final", "confirm"}


def test_a_configuration_is_told_and_given_as_a_file(api: TestClient) -> None:
    told = got(api, "studies/1/trials/5/config")
    assert "max_batch_size: 4" in told["config"]["linear"]
    assert "+max_batch_size: 4" in told["diff"]
    given = api.get("studies/1/trials/5/config.pbtxt")
    assert given.text == told["config"]["linear"]
    assert given.headers["content-disposition"] == 'attachment; filename="config.pbtxt"'
    assert api.get("studies/1/trials/5/config.pbtxt?model=linear").text == given.text


@pytest.mark.parametrize("model", ["other", "../linear", "linear/../../x", "/etc/passwd", "\0"])
def test_a_model_that_the_trial_does_not_configure_is_not_found(
    api: TestClient, model: str
) -> None:
    answer = api.get("studies/1/trials/5/config.pbtxt", params={"model": model})
    assert problem(answer, 404)["detail"].startswith("the trial configures no such model")


def test_a_repository_is_given_as_an_archive_that_triton_can_serve(api: TestClient) -> None:
    answer = api.get("studies/1/trials/5/repository.zip")
    names = zipfile.ZipFile(io.BytesIO(answer.content)).namelist()
    assert "linear/config.pbtxt" in names
    assert not [name for name in names if name.startswith(("/", ".."))]


def test_the_report_is_saved_not_shown(api: TestClient) -> None:
    answer = api.get("studies/1/report.html")
    assert answer.headers["content-disposition"].startswith("attachment")
    assert answer.text.startswith("<!doctype html>")


@pytest.mark.parametrize(
    "path", ["studies/99", "studies/1/trials/99", "studies/1/trials/99/config", "jobs/99"]
)
def test_what_is_not_there_is_not_found(api: TestClient, path: str) -> None:
    problem(api.get(path), 404)


def test_a_study_that_is_submitted_waits_for_its_devices_in_its_submitters_name(
    api: TestClient, service: Service
) -> None:
    answer = api.post("studies", json={"definition": a_request("fresh")})
    assert answer.status_code == 202
    job = service.store.jobs.job(answer.json()["job"]["id"])
    assert (job.kind, job.state, job.title) == (JobKind.STUDY, JobState.QUEUED, "fresh")
    assert job.created_by == "local"
    assert any(device.endswith("/cpu") for device in job.devices)
    assert job.payload["definition"]["model"]["onnx"] == str(service.root / "linear.onnx")


@pytest.mark.parametrize(
    ("definition", "words"),
    [
        (a_request(model={"onnx": "/etc/passwd"}), "below the service's root"),
        (a_request(model={"onnx": "none.onnx"}), "does not exist"),
        (a_request(server={"launch": "binary", "binary": "x"}), "program or an image"),
        ({**a_request(), "modle": {}}, "modle: unknown key"),
        (a_request("\ud800"), "plain text"),
        ({}, "study: is required"),
    ],
)
def test_a_study_that_may_not_be_is_refused_and_nothing_queued(
    api: TestClient, service: Service, definition: dict[str, Any], words: str
) -> None:
    before = len(service.store.jobs.jobs())
    body = json.dumps({"definition": definition})
    answer = api.post("studies", content=body, headers={"Content-Type": "application/json"})
    told = problem(answer, 422)
    assert words in told["detail"]
    assert str(service.root) not in answer.text
    assert len(service.store.jobs.jobs()) == before


@pytest.mark.parametrize("body", ["{", "[" * 100_000, '{"definition": 1}', "null", '{"a": NaN}'])
def test_a_body_that_is_none_is_refused(api: TestClient, body: str) -> None:
    answer = api.post("studies", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code in (400, 422)
    problem(answer, answer.status_code)


def test_a_value_that_was_not_meant_for_a_field_is_not_told_again(api: TestClient) -> None:
    answer = api.post("promotions/1/reject", json={"why": {"secret": "hunter2"}, "token": "at_x"})
    told = problem(answer, 422)
    assert "hunter2" not in told["detail"]
    assert "body.why" in told["detail"]


# ------------------------------------------------------------------------------------- the queue
def test_a_queued_job_is_cancelled_in_someones_name(api: TestClient, service: Service) -> None:
    job = service.queued_job("unwanted")
    assert api.post(f"jobs/{job}/cancel").json()["state"] == "cancelled"
    entry = service.store.promotions.audit(subject=f"job {job}")[0]
    assert (entry.who, entry.action) == ("local", "cancel")
    listed = got(api, "jobs", state="cancelled")
    assert [each["id"] for each in listed] == [job]


def test_what_is_unknown_is_null() -> None:
    answer = FiniteJson({"a": math.nan, "b": [math.inf, 1.0]})
    assert json.loads(answer.body) == {"a": None, "b": [None, 1.0]}


def test_a_job_whose_progress_no_json_knows_is_told_all_the_same(service: Service) -> None:
    odd = Job(
        id=1,
        kind=JobKind.STUDY,
        state=JobState.RUNNING,
        title="odd",
        payload={},
        progress={"share": math.nan},
        created_at=0.0,
        created_by="ci",
    )

    class Odd:
        def job(self, job_id: int) -> Job:
            return odd

    desks = replace(service.desks(), jobs=Odd())  # type: ignore[arg-type]
    answer = client(service.app(desks)).get(f"{PREFIX}/jobs/1")
    assert answer.json()["progress"] == {"share": None}


# ------------------------------------------------------------------------------------- schedules
def test_a_schedule_is_added_paused_resumed_run_and_removed(
    api: TestClient, service: Service
) -> None:
    given = {"name": "weekly", "cron": "0 4 * * 0", "definition": a_request("weekly")}
    made = api.post("schedules", json=given)
    assert made.status_code == 201
    assert made.json()["schedule"]["created_by"] == "local"
    problem(api.post("schedules", json=given), 409)
    assert api.post("schedules/weekly/pause").json()["next_at"] is None
    assert api.post("schedules/weekly/resume").json()["next_at"] is not None
    assert api.post("schedules/weekly/run").status_code == 202
    (run,) = got(api, "schedules/weekly/runs")
    assert got(api, f"runs/{run['id']}")["state"] == "queued"
    assert api.delete("schedules/weekly").status_code == 204
    problem(api.get("schedules/weekly"), 404)
    actions = [entry.action for entry in service.store.promotions.audit(subject="schedule weekly")]
    assert actions == ["remove", "run", "resume", "pause", "add"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": "../x"},
        {"name": ""},
        {"cron": "every day"},
        {"timezone": "Nowhere/City"},
        {"timezone": "../../etc/passwd"},
        {"margin": 1},
        {"policy": "auto"},
        {"target": {"repository": "/srv"}},
        {"target": {"grpc": "elsewhere:8001"}},
        {"target": {}},
        {"window_minutes": 0},
    ],
    ids=str,
)
def test_a_schedule_that_cannot_be_is_refused(
    api: TestClient, service: Service, wrong: dict[str, Any]
) -> None:
    given = {"name": "odd", "cron": "0 4 * * 0", "definition": a_request("odd"), **wrong}
    problem(api.post("schedules", json=given), 422)
    assert [each.name for each in service.store.schedules.schedules()] == ["nightly"]


# ------------------------------------------------------------------------------------ promotions
def test_what_was_approved_cannot_be_rejected(api: TestClient, service: Service) -> None:
    made = service.proposal(1)
    answer = api.post(f"promotions/{made}/approve")
    assert answer.status_code == 202
    assert answer.json()["job"]["kind"] == "promote"
    assert service.store.promotions.promotion(made).decided_by == "local"
    problem(api.post(f"promotions/{made}/reject", json={"why": "late"}), 409)
    assert service.store.promotions.promotion(made).state is PromotionState.APPROVED


def test_a_rejection_keeps_why(api: TestClient, service: Service) -> None:
    made = service.proposal(1)
    answer = api.post(f"promotions/{made}/reject", json={"why": "not on a Friday"})
    assert (answer.json()["state"], answer.json()["reason"]) == ("rejected", "not on a Friday")
    listed = got(api, "promotions", state="rejected")
    assert made in [each["id"] for each in listed]


@pytest.mark.parametrize(
    "target",
    [
        {"repository": "../models"},
        {"repository": "/srv/models"},
        {"repository": ".hidden"},
        {"grpc": "elsewhere:8001"},
        {"grpc": "localhost:8001@elsewhere"},
        {"repository": "models", "http": "elsewhere:8000"},
    ],
    ids=str,
)
def test_a_target_that_may_not_be_named_is_refused(api: TestClient, target: dict[str, Any]) -> None:
    problem(api.post("promotions", json={"study": 1, "trial": 5, "target": target}), 422)


def test_a_model_of_which_nothing_is_in_service_has_nothing_to_roll_back(api: TestClient) -> None:
    problem(api.post("models/linear/rollback", json={"why": "slow"}), 409)
    problem(api.post("models/none/rollback", json={}), 404)


def test_a_models_history_tells_who_did_what(api: TestClient) -> None:
    found = got(api, "models/linear/history")
    assert found["model"] == "linear"
    told = {(entry["who"], entry["action"] == "superseded") for entry in found["audit"]}
    assert told == {("local", False), ("schedule nightly", True)}
    assert "linear" in got(api, "models")


def test_the_description_asks_for_a_token(api: TestClient) -> None:
    described = got(api, "openapi.json")
    assert described["components"]["securitySchemes"]["token"]["scheme"] == "bearer"
    for operations in described["paths"].values():
        assert all({"token": []} in each["security"] for each in operations.values())


def test_who_asks_is_told(api: TestClient) -> None:
    assert got(api, "me") == {"name": "local", "role": "operate"}


READS = [
    "studies",
    "studies/1",
    "studies/1/trials",
    "studies/1/trials/5",
    "studies/1/trials/5/config",
    "studies/1/trials/5/repository.zip",
    "studies/1/report.html",
    "jobs",
    "jobs/1",
    "leases",
    "schedules",
    "schedules/nightly",
    "schedules/nightly/runs",
    "runs/1",
    "promotions",
    "promotions/1",
    "models",
    "models/linear/history",
    "audit",
    "notices",
]
WRITES = [
    "jobs/1/cancel",
    "schedules/nightly/pause",
    "schedules/nightly/run",
    "promotions/1/approve",
    "promotions/1/reject",
    "models/linear/rollback",
]


def test_a_database_that_is_lost_meanwhile_is_503_to_all_and_where_it_was_stays_here(
    tmp_path: Path,
) -> None:
    service = Service.in_folder(tmp_path)
    service.all_of_it()
    asking = client(
        service.app(), service.token("ops", Role.OPERATE), base_url=f"http://localhost{PREFIX}/"
    )
    for part in tmp_path.glob("autotune.db*"):
        part.write_bytes(b"no database" * 1000)
    answers = [asking.get(path) for path in READS]
    answers += [asking.post(path, json={}) for path in WRITES]
    assert {answer.status_code for answer in answers} == {503}
    assert str(tmp_path) not in "".join(answer.text for answer in answers)


def test_every_route_that_reads_is_among_those(api: TestClient) -> None:
    described = got(api, "openapi.json")["paths"]
    reading = {path for path, how in described.items() if "get" in how}
    elsewhere = {
        "/me",
        "/studies/{study_id}/trials/{number}/config.pbtxt",
        "/jobs/{job_id}/log",
    }
    assert len(reading) == len(READS) + len(elsewhere)
