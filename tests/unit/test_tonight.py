"""What of the machine and the model is recorded because it may be another one tomorrow."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from autotune.adapters.tonight import changing
from autotune.adapters.triton.basis import basis_of
from autotune.adapters.triton.packages import packages_of
from autotune.adapters.triton.repository import from_repository
from autotune.adapters.triton.server_python import ServerPython, this_python
from search_spaces.space import parse_space
from tests.fake_nvml import FakeNvml

SPACE = parse_space(
    {
        "max_batch_size": [1, 4],
        "instances": [1, 2],
        "queue_delay_us": {"values": [0, 500], "when": {"max_batch_size": {"above": 1}}},
    },
    "small",
)
CONFIG = """
name: "m" backend: "python" max_batch_size: 4
input { name: "x" data_type: TYPE_FP32 dims: 4 }
output { name: "y" data_type: TYPE_FP32 dims: 3 }
instance_group { count: 1 kind: KIND_CPU }
"""
PROMOTED = CONFIG.replace("count: 1", "count: 2") + (
    "dynamic_batching { max_queue_delay_microseconds: 500 }"
)


# --------------------------------------------------------------------------------- the machine
def test_a_gpu_is_recorded_with_its_driver(nvml: FakeNvml) -> None:
    found = changing()
    assert len(found["gpus"]) == len(found["gpu_uuids"]) == len(found["gpu_limits"]) == 1
    assert found["driver"].startswith("580")


def test_what_the_driver_does_not_tell_is_not_made_up(nvml: FakeNvml) -> None:
    assert changing()["gpu_limits"] == ["not told"]


def test_the_processors_clocks_are_recorded_where_they_are_told(tmp_path: Path) -> None:
    (tmp_path / "scaling_governor").write_text("powersave\n")
    (tmp_path / "scaling_max_freq").write_text("3400000\n")
    found = changing(tmp_path)
    assert (found["cpu_governor"], found["cpu_max_mhz"]) == ("powersave", 3400)
    assert "cpu_governor" not in changing(tmp_path / "none")


# ----------------------------------------------------------------------------------- the server
def test_the_packages_that_serve_models_are_listed_with_their_python() -> None:
    found = packages_of(this_python())
    assert found["Python"].startswith("3.")
    assert found["numpy"]


def test_a_python_that_cannot_be_asked_has_none() -> None:
    assert packages_of(ServerPython(path=Path("/no/python"))) == {}


# ------------------------------------------------------------------------------------ the model
@pytest.fixture
def repository(tmp_path: Path) -> Path:
    version = tmp_path / "models" / "m" / "1"
    version.mkdir(parents=True)
    (version / "model.py").write_text("one")
    (version.parent / "config.pbtxt").write_text(CONFIG)
    return tmp_path / "models"


def basis(repository: Path) -> str:
    return basis_of(from_repository(repository, "m", repository.parent / "work"), SPACE)


def copied(repository: Path, name: str) -> Path:
    return Path(shutil.copytree(repository, repository.with_name(name)))


def test_a_configuration_that_differs_in_what_is_tuned_has_the_same_basis(
    repository: Path,
) -> None:
    other = copied(repository, "promoted")
    (other / "m" / "config.pbtxt").write_text(PROMOTED)
    assert basis(other) == basis(repository)


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("1/model.py", "two"),
        ("1/more.txt", ""),
        ("config.pbtxt", CONFIG.replace("dims: 3", "dims: 5")),
        ("config.pbtxt", CONFIG + 'parameters { key: "k" value { string_value: "v" } }'),
    ],
)
def test_other_files_or_another_configuration_make_another_basis(
    repository: Path, file: str, text: str
) -> None:
    other = copied(repository, "other")
    (other / "m" / file).write_text(text)
    assert basis(other) != basis(repository)
