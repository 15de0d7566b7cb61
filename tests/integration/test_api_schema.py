"""The API held against its own description: whatever is asked, it answers as it says there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.strategies import booleans
from schemathesis import APIOperation, Case, GenerationMode
from schemathesis.specs.openapi.checks import ignored_auth, positive_data_acceptance

from autotune.core.access import Role
from dashboards.api.router import OPENAPI
from tests.service_app import Service, a_request, apart

EXAMPLES = 8
TAGS = ("studies", "jobs", "schedules", "promotions", "models", "service")
THERE = {
    "study_id": 1,
    "number": 5,
    "job_id": 1,
    "run_id": 1,
    "promotion_id": 1,
    "name": "nightly",
    "model": "linear",
}
UNHELD = [ignored_auth, positive_data_acceptance]
"""It would try wrong tokens, after ten of which even the right one has to wait; and a schema cannot
say all that a study has to be."""
# schemathesis 4.32's own pytest plugin does not know pytest 9.2: its strategies are used alone.


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One of each is stored: a finished study, a schedule, a promotion, a job, a token."""
    folder = tmp_path_factory.mktemp("api")
    service = Service.in_folder(folder, hosts=("testserver",))
    service.all_of_it()
    token = {"Authorization": f"Bearer {service.token('fuzz', Role.OPERATE)}"}
    schema = schemathesis.openapi.from_asgi(OPENAPI, service.app(), headers=token)
    schema.config.update(headers=token)
    with apart(folder):
        yield schema


def operations(api: Any) -> Iterator[APIOperation]:
    for found in api.get_all_operations():
        yield found.ok()


def tag_of(operation: APIOperation) -> str:
    return str(operation.definition.raw["tags"][0])


@pytest.mark.parametrize("tag", TAGS)
def test_whatever_is_asked_the_api_answers_as_it_says(api: Any, tag: str) -> None:
    for operation in operations(api):
        if tag_of(operation) == tag:
            hold(operation, GenerationMode.POSITIVE)
            if can_be_wrong(operation):
                hold(operation, GenerationMode.NEGATIVE)


def hold(operation: APIOperation, mode: GenerationMode, examples: int = EXAMPLES) -> None:
    """Half of what is asked rightly is about something that is there."""

    @seed(6)
    @settings(
        max_examples=examples,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode), there=booleans())
    def held(case: Case, there: bool) -> None:
        if there and mode is GenerationMode.POSITIVE:
            case.path_parameters = {name: THERE[name] for name in case.path_parameters or {}}
            case.body = right(case.body)
        answer = case.call_and_validate(excluded_checks=UNHELD)
        assert answer.status_code != 429  # then nothing would have been looked at

    held()


def right(body: Any) -> Any:
    """With a study and a target that can be, where there are some."""
    if not isinstance(body, dict):
        return body
    whole = {"definition": a_request(), "cron": "0 3 * * *", "target": {"repository": "models"}}
    return {name: whole.get(name, value) for name, value in body.items()}


def can_be_wrong(operation: APIOperation) -> bool:
    """Any text is a name, if of nothing that is there."""
    asked = operation.definition.raw
    named = [each for each in asked.get("parameters", ()) if each["schema"].get("type") == "string"]
    return "requestBody" in asked or len(named) < len(asked.get("parameters", ()))


def test_every_operation_is_held_to_its_description(api: Any) -> None:
    found = list(operations(api))
    assert {tag_of(operation) for operation in found} == set(TAGS)
    assert sum(map(can_be_wrong, found)) > len(found) / 2
