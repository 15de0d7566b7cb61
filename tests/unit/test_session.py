"""How a run is prepared: what may be resumed, what is in service, how far there is to go."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from autotune.adapters.triton.config import ModelConfig
from autotune.adapters.triton.repository import ServedModel
from autotune.bootstrap.session import configuration_in_service, held, to_try
from autotune.bootstrap.stored import refuse_changed_model, refuse_other_machine
from autotune.core.errors import InputRefused
from autotune.core.records import StudyRecord, StudyState
from autotune.core.study import Study
from autotune.studyfile import study_from_options
from search_spaces.candidate import Candidate

HERE = {"processor": "a processor", "cores": 2, "host": "here", "load_average": 0.1}
ONE = Candidate({"instances": 1})


def study(**changes: Any) -> Study:
    return study_from_options(
        {
            "study": "s",
            "model": {"repository": "models", "name": "m"},
            "workload": {"target_qps": 50.0},
            "sla": {"p95_ms": 80.0},
            "space": {"instances": [1, 2, 4]},
            **changes,
        }
    )


def record(environment: dict[str, Any] | None) -> StudyRecord:
    return StudyRecord(
        id=3,
        name="s",
        state=StudyState.INTERRUPTED,
        definition={},
        digest="d",
        created_at=0.0,
        environment=environment,
    )


def test_a_run_that_measured_another_model_is_not_gone_on_with() -> None:
    with pytest.raises(InputRefused, match="have changed since"):
        refuse_changed_model(record({"model_digest": "old"}), "new")


@pytest.mark.parametrize("environment", [None, {}, {"model_digest": "same"}])
def test_a_run_that_measured_this_model_or_none_is(environment: dict[str, Any] | None) -> None:
    refuse_changed_model(record(environment), "same")


@pytest.mark.parametrize("other", [{"cores": 4}, {"processor": "another"}])
def test_a_run_that_measured_on_other_hardware_is_not_gone_on_with(other: dict[str, Any]) -> None:
    with pytest.raises(InputRefused, match=f"another machine: {next(iter(other))}"):
        refuse_other_machine(record({**HERE, **other}), HERE)


def test_a_run_that_measured_on_this_machine_is() -> None:
    refuse_other_machine(record({**HERE, "host": "renamed", "load_average": 1.5}), HERE)
    refuse_other_machine(record(None), HERE)


@pytest.mark.parametrize(
    ("space", "search", "planned"),
    [
        ({"instances": [1, 2, 4]}, "optuna", 3),
        ({"instances": [2, 4]}, "optuna", 3),  # and the one in service
        ({"instances": {"range": [1, 6]}}, "random", 6),
        ({"instances": {"range": [1, 100]}}, "optuna", 20),  # more than its grid's points
        ({"instances": {"range": [1, 100]}}, "grid", 8),
        ({"instances": [1, 2], "prune": [{"when": {"instances": 2}}]}, "optuna", 1),
    ],
)
def test_the_plan_is_the_budget_or_what_the_space_holds(
    space: dict[str, Any], search: str, planned: int
) -> None:
    asked = study(space=space, search=search, budget={"trials": 20})
    assert to_try(asked, held(asked, ONE, cores=2)) == planned


@pytest.mark.parametrize(
    ("server", "instances"),
    [
        ({"launch": "docker", "image": "triton", "gpus": "all"}, 1),
        ({"launch": "docker", "image": "triton"}, 2),
    ],
)
def test_what_a_silent_configuration_has_in_service_depends_on_the_gpus_of_its_server(
    server: dict[str, Any], instances: int
) -> None:
    config = ModelConfig(name="m", backend="onnxruntime", max_batch_size=4)
    model = ServedModel(
        name="m", repository=Path("r"), config=config, digest="d", source=Path("r/m")
    )
    found = configuration_in_service(study(server=server), model)
    assert found == Candidate({"instances": instances})
