"""Each candidate's answers are held against the file that it serves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from autotune.adapters.triton.artefacts import Artefact
from autotune.adapters.triton.evaluation import interface_of
from autotune.adapters.triton.reference import output_check
from autotune.adapters.triton.repository import ServedModel, from_onnx
from autotune.core.errors import OutputsDiffer
from autotune.core.model_interface import Endpoint, ModelInterface, Sample
from autotune.core.study import Tolerance
from autotune.core.variants import Variant
from search_spaces.candidate import Candidate
from tests import onnx_models

ENDPOINT = Endpoint(http="127.0.0.1:1", grpc="127.0.0.1:2")
WEIGHTS = (np.arange(12).reshape(4, 3) / 7).astype("float32")
SAMPLES = [{"x": np.full(4, value, dtype="float32")} for value in (1.0, 2.0, 3.0)]


def serving(scale: float) -> Any:
    """A server whose weights are scaled."""

    def connect(endpoint: Endpoint, model: ModelInterface) -> Any:
        def infer(samples: Sequence[Sample], *, at_once: int) -> list[dict[str, Any]]:
            return [{"y": s["x"][None] @ (WEIGHTS * np.float32(scale)) + 1} for s in samples]

        return infer

    return connect


@pytest.fixture
def model(tmp_path: Path) -> ServedModel:
    """With an int8 variant of half the weights, and one that a GPU would serve."""
    served = from_onnx(onnx_models.linear(tmp_path / "m.onnx"), "m", tmp_path / "models")
    halved = onnx.load(served.onnx)
    (weights,) = (each for each in halved.graph.initializer if each.name == "w")
    weights.CopyFrom(numpy_helper.from_array(WEIGHTS / 2, "w"))
    onnx.save(halved, tmp_path / "int8.onnx")
    artefacts = {
        name: Artefact(variant=Variant.parse(name), path=tmp_path / "int8.onnx", own=own)
        for name, own in (
            ("onnxruntime-fp32", True),
            ("onnxruntime-int8", False),
            ("onnxruntime-fp16", False),
            ("tensorrt-fp16", False),
        )
    }
    return replace(served, artefacts=artefacts)


def checked(model: ServedModel, scale: float, variant: str, **tolerance: float) -> str:
    check = output_check(model, Tolerance(**tolerance), connect=serving(scale))
    candidate = Candidate({"variant": variant})
    return check.check(ENDPOINT, interface_of(model.config), SAMPLES, candidate)


@pytest.mark.parametrize(
    ("variant", "scale"), [("onnxruntime-fp32", 1.0), ("onnxruntime-int8", 0.5)]
)
def test_a_variant_s_answers_are_compared_with_its_own_file(
    model: ServedModel, variant: str, scale: float
) -> None:
    assert "match" in checked(model, scale, variant)
    with pytest.raises(OutputsDiffer):
        checked(model, 0.75, variant)


def test_int8_is_allowed_no_more_than_fp32_and_fp16_what_its_digits_give(
    model: ServedModel,
) -> None:
    assert "match" in checked(model, 0.502, "onnxruntime-fp16")
    with pytest.raises(OutputsDiffer):
        checked(model, 0.502, "onnxruntime-int8")
    assert "match" in checked(model, 0.502, "onnxruntime-int8", rtol=0.01)
    with pytest.raises(OutputsDiffer):
        checked(model, 0.502, "onnxruntime-fp16", rtol=1e-5)


def test_what_a_gpu_computes_cannot_be_run_here_and_is_only_looked_at(model: ServedModel) -> None:
    assert "no reference to compare with" in checked(model, 0.75, "tensorrt-fp16")
