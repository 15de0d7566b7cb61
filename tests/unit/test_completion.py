"""Whether Triton has anything to complete in a model's configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.adapters.triton.completion import needs_no_completion
from autotune.adapters.triton.repository import from_onnx, from_repository
from tests import onnx_models
from tests.integration.studies import own_model

CLASS = "class TritonPythonModel"


def own(folder: Path, change: tuple[str, str] | None = None) -> bool:
    """Of a model of the user's own, with something changed in its model.py."""
    own_model(folder / "models")
    model = folder / "models" / "own" / "1" / "model.py"
    text = model.read_text()
    if change is not None:
        assert change[0] in text
        model.write_text(text.replace(*change))
    return needs_no_completion(from_repository(folder / "models", "own", folder / "copy"))


def test_what_autotune_s_own_runner_serves_is_complete(tmp_path: Path) -> None:
    model = from_onnx(onnx_models.linear(tmp_path / "l.onnx"), "linear", tmp_path / "models")
    assert needs_no_completion(model)


def test_a_plain_class_without_the_method_has_nothing_to_say(tmp_path: Path) -> None:
    assert own(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        ("    def execute", "    def auto_complete_config(config): return config\n    def execute"),
        ("    def execute", "    auto_complete_config = staticmethod(print)\n    def execute"),
        (CLASS, f"from base import Base\n{CLASS}(Base)"),
        (CLASS, f"from base import Meta\n{CLASS}(metaclass=Meta)"),
        (CLASS, f"from base import wrapped\n@wrapped\n{CLASS}"),
        (f"{CLASS}:", "from base import TritonPythonModel\nclass Mine:"),
        (f"{CLASS}:", f"if True:\n  {CLASS}:\n    pass\nclass Mine:"),
        ("import os\n", "import os\nfrom shared import TritonPythonModel\n"),
        ("import os\n", "import os\nfrom shared import *\n"),
        ("W = ", "TritonPythonModel = None\nW = "),
        (CLASS, f"this is no Python\n{CLASS}"),
    ],
    ids=[
        *("method", "attribute", "base", "metaclass", "decorator", "imported", "nested"),
        *("bound twice", "star", "assigned", "broken"),
    ],
)
def test_what_may_complete_its_configuration_is_not_known(
    tmp_path: Path, change: tuple[str, str]
) -> None:
    assert not own(tmp_path, change)


def test_a_file_of_another_name_is_not_looked_into(tmp_path: Path) -> None:
    own_model(tmp_path / "models")
    version = tmp_path / "models" / "own" / "1"
    (version / "model.py").rename(version / "other.py")
    with (version.parent / "config.pbtxt").open("a") as file:
        file.write('default_model_filename: "other.py"\n')
    model = from_repository(tmp_path / "models", "own", tmp_path / "copy")
    assert not needs_no_completion(model)


def test_of_a_pipeline_every_step_has_to_be_complete(tmp_path: Path) -> None:
    pipeline(tmp_path)
    assert needs_no_completion(from_repository(tmp_path / "models", "pipe", tmp_path / "copy"))
    model = tmp_path / "models" / "own" / "1" / "model.py"
    model.write_text(model.read_text() + "\n# auto_complete_config\n")
    assert not needs_no_completion(from_repository(tmp_path / "models", "pipe", tmp_path / "copy"))


PIPELINE = """
platform: "ensemble" max_batch_size: 1
input { name: "in" data_type: TYPE_FP32 dims: 4 }
output { name: "out" data_type: TYPE_FP32 dims: 3 }
ensemble_scheduling { step {
  model_name: "own"
  model_version: -1
  input_map { key: "x" value: "in" }
  output_map { key: "y" value: "out" }
} }
"""


def pipeline(folder: Path) -> None:
    """Of one step of the user's own."""
    own_model(folder / "models")
    (folder / "models" / "pipe" / "1").mkdir(parents=True)
    (folder / "models" / "pipe" / "config.pbtxt").write_text(PIPELINE)
