"""An ensemble with the models that it needs, as a repository holds them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from autotune.adapters.triton.config import read
from autotune.adapters.triton.repository import (
    adapt_for_embedded,
    from_configuration,
    from_repository,
)
from autotune.core.errors import InputRefused
from tests import onnx_models
from tests.pipelines import put_ensemble, put_pipeline, put_step

NATIVE = """
platform: "onnxruntime_onnx" max_batch_size: 8
input [ { name: "x" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 3 ] } ]
"""


@pytest.fixture
def runner(tmp_path: Path) -> Path:
    file = tmp_path / "a_runner.py"
    file.write_text("# the runner\n")
    return file


def put_onnx(repository: Path, name: str, text: str | None) -> None:
    (repository / name / "1").mkdir(parents=True)
    onnx_models.linear(repository / name / "1" / "model.onnx")
    if text is not None:
        (repository / name / "config.pbtxt").write_text(text)


def mixed(repository: Path, text: str | None = NATIVE) -> Path:
    """A Python step before an ONNX one."""
    put_step(repository, "decode", "+ 1")
    put_onnx(repository, "recognize", text)
    put_ensemble(repository, "ocr", ["decode", "recognize"], 4)
    return repository


def files(repository: Path) -> set[str]:
    return {str(file.relative_to(repository)) for file in repository.rglob("*") if file.is_file()}


# ------------------------------------------------------------------------------------- reading
def test_the_composing_models_of_all_levels_come_in_an_order_in_which_they_can_be_loaded(
    tmp_path: Path,
):
    put_ensemble(tmp_path, "outer", ["inner", "last", "leaf"])
    put_ensemble(tmp_path, "inner", ["leaf"])
    put_step(tmp_path, "leaf", "+ 1")
    put_step(tmp_path, "last", "+ 1")
    model = from_repository(tmp_path, "outer", tmp_path / "work")
    assert list(model.composing) == ["leaf", "inner", "last"]
    assert model.composing["leaf"].source == tmp_path / "leaf"
    assert not (tmp_path / "work").exists()


def test_a_step_without_a_model_is_refused_with_the_ensemble_that_needs_it(tmp_path: Path):
    shutil.rmtree(put_pipeline(tmp_path) / "second")
    with pytest.raises(InputRefused, match=r"pipe has a step without a model.*'second'"):
        from_repository(tmp_path, "pipe", tmp_path)


def test_an_ensemble_that_needs_itself_is_refused(tmp_path: Path):
    put_ensemble(tmp_path, "one", ["two"])
    put_ensemble(tmp_path, "two", ["one"])
    with pytest.raises(InputRefused, match="one > two > one"):
        from_repository(tmp_path, "one", tmp_path)


def test_an_ensemble_above_a_step_s_maximum_is_refused_as_triton_does(tmp_path: Path):
    put_pipeline(tmp_path, size=16)
    with pytest.raises(InputRefused, match="max_batch_size 16, but its step first takes 8"):
        from_repository(tmp_path, "pipe", tmp_path)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ("sequence_batching { }", "correlation id"),
        ("model_transaction_policy { decoupled: true }", "decoupled"),
    ],
)
def test_a_step_that_cannot_be_measured_is_refused_by_its_name(
    tmp_path: Path, more: str, words: str
):
    put_step(tmp_path, "odd", "+ 1", more)
    put_ensemble(tmp_path, "pipe", ["odd"])
    with pytest.raises(InputRefused, match=words) as refused:
        from_repository(tmp_path, "pipe", tmp_path)
    assert refused.value.value == "odd"


def test_the_digest_covers_the_steps(tmp_path: Path):
    put_pipeline(tmp_path)
    before = from_repository(tmp_path, "pipe", tmp_path).digest
    (tmp_path / "third" / "1" / "model.py").write_text("other")
    assert from_repository(tmp_path, "pipe", tmp_path).digest != before


def test_where_a_step_had_to_be_completed_the_whole_pipeline_stands_in_the_copy(tmp_path: Path):
    mixed(tmp_path / "models", text=None)
    model = from_repository(tmp_path / "models", "ocr", tmp_path / "work")
    assert model.repository == tmp_path / "work" / "completed"
    assert files(model.repository) == {
        "decode/1/model.py", "decode/config.pbtxt", "ocr/config.pbtxt",
        "recognize/1/model.onnx", "recognize/config.pbtxt",
    }  # fmt: skip
    assert all(step.repository == model.repository for step in model.composing.values())
    step = model.composing["recognize"]
    assert step.onnx == step.source / "1" / "model.onnx"
    assert step.config.max_batch_size == 4
    assert (model.repository / "ocr" / "1").is_dir()


def test_a_pipeline_of_which_only_the_configurations_are_known_holds_them_all(tmp_path: Path):
    put_pipeline(tmp_path / "models")
    known = from_repository(tmp_path / "models", "pipe", tmp_path)
    steps = {name: step.config for name, step in known.composing.items()}
    model = from_configuration(known.config, "pipe", tmp_path / "work", steps)
    assert list(model.composing) == ["first", "second", "third"]
    assert read(tmp_path / "work" / "second" / "config.pbtxt") == steps["second"]


# -------------------------------------------------------------------- on the embedded server
def test_an_onnx_step_is_served_through_the_runner_and_the_others_come_along(
    tmp_path: Path, runner: Path
):
    mixed(tmp_path / "models")
    given = from_repository(tmp_path / "models", "ocr", tmp_path / "work")
    before = files(tmp_path / "models")
    model = adapt_for_embedded(given, tmp_path / "work", runner)
    step = model.composing["recognize"]
    assert (model.native, step.native) == (given, given.composing["recognize"])
    assert (step.runner, step.config.backend, model.runner) == (True, "python", False)
    assert model.repository == tmp_path / "work" / "runner"
    assert {each.repository for each in model.composing.values()} == {model.repository}
    assert (model.repository / "recognize" / "1" / "model.py").read_text() == "# the runner\n"
    assert (model.repository / "decode" / "1" / "model.py").is_file()
    assert (model.repository / "ocr" / "1").is_dir()
    assert files(tmp_path / "models") == before


def test_a_pipeline_of_python_steps_is_served_from_where_it_is(tmp_path: Path, runner: Path):
    model = from_repository(put_pipeline(tmp_path), "pipe", tmp_path / "work")
    assert adapt_for_embedded(model, tmp_path / "work", runner) is model


def test_a_step_of_another_backend_is_refused_by_its_name(tmp_path: Path, runner: Path):
    mixed(tmp_path, NATIVE.replace("onnxruntime_onnx", "tensorrt_plan"))
    (tmp_path / "recognize" / "1" / "model.plan").write_text("")
    model = from_repository(tmp_path, "ocr", tmp_path / "work")
    with pytest.raises(InputRefused, match="tensorrt of recognize"):
        adapt_for_embedded(model, tmp_path / "work", runner)
