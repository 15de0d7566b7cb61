"""Files from packages, put into a copy of a model repository. The packages are in the cache."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from autotune.adapters.triton.files import with_files
from autotune.core.errors import InputRefused
from autotune.core.study import ModelSource, PackagedModel

WEIGHTS = b"the weights"
SHA = hashlib.sha256(WEIGHTS).hexdigest()
PACKAGE = PackagedModel(requirement="tiny==1", file="tiny/weights.onnx", sha256=SHA)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    folder = tmp_path / "cache"
    file = folder / "packaged" / SHA / "weights.onnx"
    file.parent.mkdir(parents=True)
    file.write_bytes(WEIGHTS)
    return folder


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "models"
    (folder / "step" / "1").mkdir(parents=True)
    (folder / "step" / "config.pbtxt").write_text('name: "step"')
    (folder / "step" / "1" / "labels.txt").write_text("a")
    (folder / "pipe").mkdir()
    steps = 'step { model_name: "step" } step { model_name: "other" }'
    (folder / "pipe" / "config.pbtxt").write_text(f"ensemble_scheduling {{ {steps} }}")
    return folder


def placed(repository: Path, cache: Path, *names: str) -> Path:
    model = ModelSource(name="pipe", repository=repository, files=dict.fromkeys(names, PACKAGE))
    return with_files(model, repository.parent / "work", cache, lambda _: None)


def test_a_repository_that_lacks_nothing_is_served_from_where_it_is(
    repository: Path, cache: Path
) -> None:
    assert placed(repository, cache) == repository


def test_a_copy_has_the_files_at_their_places_and_all_that_was_there(
    repository: Path, cache: Path
) -> None:
    copy = placed(repository, cache, "step/1/model.onnx", "other/1/weights.bin")
    assert (copy / "step" / "1" / "model.onnx").read_bytes() == WEIGHTS
    assert (copy / "other" / "1" / "weights.bin").read_bytes() == WEIGHTS
    assert (copy / "step" / "1" / "labels.txt").read_text() == "a"
    assert (copy / "step" / "config.pbtxt").exists()


def test_the_users_repository_is_not_touched(repository: Path, cache: Path) -> None:
    before = sorted(repository.rglob("*"))
    placed(repository, cache, "step/1/model.onnx")
    assert sorted(repository.rglob("*")) == before


def test_a_copy_of_an_earlier_run_is_replaced(repository: Path, cache: Path) -> None:
    placed(repository, cache, "step/1/model.onnx")
    (repository / "step" / "1" / "labels.txt").unlink()
    assert not (placed(repository, cache, "step/1/a") / "step" / "1" / "labels.txt").exists()


def test_a_file_that_is_there_already_is_not_replaced(repository: Path, cache: Path) -> None:
    with pytest.raises(InputRefused, match=r"step/1/labels.txt is in the repository already"):
        placed(repository, cache, "step/1/labels.txt")
    assert (repository / "step" / "1" / "labels.txt").read_text() == "a"


def test_a_repository_that_does_not_exist_is_refused(tmp_path: Path, cache: Path) -> None:
    with pytest.raises(InputRefused, match="does not exist"):
        placed(tmp_path / "nowhere", cache, "step/1/model.onnx")


def test_a_file_of_a_model_that_nobody_serves_is_refused_with_the_near_name(
    repository: Path, cache: Path
) -> None:
    with pytest.raises(InputRefused, match="of no model of the repository") as refused:
        placed(repository, cache, "setp/1/model.onnx")
    assert "did you mean step?" in str(refused.value)
