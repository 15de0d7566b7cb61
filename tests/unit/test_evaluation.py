"""What a model, or a pipeline, answers with a variant in the place of one of its parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from autotune.adapters.triton.evaluation import Alone, Served, ServedGate, interface_of
from autotune.adapters.triton.repository import ServedModel, from_onnx, from_repository
from autotune.core.accuracy import Accuracy
from autotune.core.errors import CandidateFailed, InputRefused
from autotune.core.model_interface import Endpoint, ModelInterface, Sample
from tests import onnx_models

ENDPOINT = Endpoint(http="127.0.0.1:1", grpc="127.0.0.1:2")
Compute = Callable[[np.ndarray], np.ndarray]


class Fake:
    """A server over HTTP: each model computes its one output from its one input, of arrays as they
    travel; remembers what each was asked, and with which shapes."""

    def __init__(self, **models: Compute) -> None:
        self.models = models
        self.asked: list[tuple[str, tuple[int, ...]]] = []

    def __call__(self, endpoint: Endpoint, model: ModelInterface) -> Any:
        def infer(samples: Sequence[Sample], *, at_once: int) -> list[dict[str, Any]]:
            answers = []
            for sample in samples:
                (array,) = sample.values()
                wire = array[np.newaxis] if model.batched else array
                self.asked.append((model.name, wire.shape))
                answers.append({model.outputs[0].name: self.models[model.name](wire)})
            return answers

        return infer


def tensors(inputs: str, outputs: str, *, batch: int) -> str:
    return (
        f"max_batch_size: {batch} input {{ name: '{inputs}' data_type: TYPE_FP32 dims: 4 }}"
        f" output {{ name: '{outputs}' data_type: TYPE_FP32 dims: 4 }}"
    )


def pipeline(tmp_path: Path, *, batch: int = 4) -> ServedModel:
    """e: scale, then shift."""
    steps = (
        "step { model_name: 'scale' input_map { key: 'a' value: 'x' }"
        " output_map { key: 'b' value: 't' } }"
        " step { model_name: 'shift' input_map { key: 'c' value: 't' }"
        " output_map { key: 'd' value: 'y' } }"
    )
    for name, text in (
        ("scale", "backend: 'python' " + tensors("a", "b", batch=4)),
        ("shift", "backend: 'python' " + tensors("c", "d", batch=4)),
        ("e", f"{tensors('x', 'y', batch=batch)} ensemble_scheduling {{ {steps} }}"),
    ):
        (tmp_path / name / "1").mkdir(parents=True)
        (tmp_path / name / "1" / "model.py").write_text("")
        (tmp_path / name / "config.pbtxt").write_text(text)
    return from_repository(tmp_path, "e", tmp_path / "work")


def requests(count: int = 3) -> list[Sample]:
    return [{"x": np.full(4, float(n), dtype="float32")} for n in range(count)]


def test_a_step_gets_what_the_requests_bring_it_and_its_loss_is_seen_at_the_end(
    tmp_path: Path,
) -> None:
    server = Fake(scale=lambda a: a * 2, shift=lambda a: a + 1)
    evaluated, sent = Served(pipeline(tmp_path), ENDPOINT, connect=server), requests()
    assert [each["y"].tolist() for each in evaluated.answers(sent)] == [
        [1] * 4,
        [3] * 4,
        [5] * 4,
    ]
    given = evaluated.inputs("shift", sent)
    assert [each["c"].tolist() for each in given] == [[0] * 4, [2] * 4, [4] * 4]
    assert set(server.asked) == {("scale", (1, 4)), ("shift", (1, 4))}
    server.asked.clear()
    outputs = [{"b": each["a"] * 10} for each in evaluated.inputs("scale", sent)]
    answers = evaluated.answers_with("scale", sent, outputs)
    assert [float(each["y"][0]) for each in answers] == [1, 11, 21]
    assert {name for name, _ in server.asked} == {"shift"}, "the others are not asked again"


def test_a_step_that_gets_several_samples_of_one_request_is_refused(tmp_path: Path) -> None:
    """A step may have a batch dimension that its ensemble lacks: the rows of a request."""
    model = pipeline(tmp_path, batch=0)
    server = Fake(scale=lambda a: np.stack([a, a]), shift=lambda a: a)
    evaluated, sent = Served(model, ENDPOINT, connect=server), requests(1)
    with pytest.raises(InputRefused, match="several samples at once to the step shift"):
        evaluated.inputs("shift", sent)


def test_a_model_from_an_onnx_file_is_asked_without_a_server(tmp_path: Path) -> None:
    model = from_onnx(onnx_models.linear(tmp_path / "m.onnx"), "m", tmp_path / "models")
    evaluated, sent = Alone(model), requests()
    answers = evaluated.answers(sent)
    np.testing.assert_allclose(answers[0]["y"], [1, 1, 1])
    assert evaluated.inputs("", sent) == sent
    assert evaluated.answers_with("", sent, answers) == answers
    with pytest.raises(InputRefused, match="does not take an evaluation request"):
        evaluated.answers([{"x": np.zeros(5, dtype="float32")}])


def test_what_is_served_is_held_against_the_source(tmp_path: Path) -> None:
    model = from_onnx(onnx_models.linear(tmp_path / "m.onnx"), "m", tmp_path / "models")
    sent, interface = requests(), interface_of(model.config)
    source = Alone(model).answers(sent)
    weights = (np.arange(12).reshape(4, 3) / 7).astype("float32")
    served = Fake(m=lambda x: (x @ weights + 1) * 0.9)
    gate = ServedGate(Accuracy(metric="relative_error"), sent, source, connect=served)
    assert gate.drop(ENDPOINT, interface) == pytest.approx(0.1, rel=1e-5)
    first = ServedGate(Accuracy(metric="relative_error"), sent, connect=served)
    assert first.drop(ENDPOINT, interface) == 0, "the first candidate is the source, unless known"


def test_served_answers_that_cannot_be_judged_fail_the_candidate_alone(tmp_path: Path) -> None:
    model = from_onnx(onnx_models.linear(tmp_path / "m.onnx"), "m", tmp_path / "models")
    sent = requests()
    served = Fake(m=lambda x: np.zeros((1, 7), dtype="float32"))
    source = Alone(model).answers(sent)
    gate = ServedGate(Accuracy(metric="cosine"), sent, source, connect=served)
    with pytest.raises(CandidateFailed, match="cannot be judged: cosine cannot compare"):
        gate.drop(ENDPOINT, interface_of(model.config))


def test_of_a_file_s_outputs_those_that_the_configuration_declares_are_answers(
    tmp_path: Path,
) -> None:
    model = declared(two_outputs(tmp_path), "output { name: 'y' data_type: TYPE_FP32 dims: 4 }")
    evaluated, sent = Alone(model), requests()
    assert [sorted(each) for each in evaluated.answers(sent)] == [["y"]] * 3
    of_a_variant = [{"y": each["x"], "z": each["x"]} for each in sent]
    assert [sorted(each) for each in evaluated.answers_with("", sent, of_a_variant)] == [["y"]] * 3
    more = declared(tmp_path, "output { name: 'w' data_type: TYPE_FP32 dims: 4 }")
    with pytest.raises(InputRefused, match="declares outputs that"):
        Alone(more)


def test_a_value_for_each_sample_is_answered_as_it_is_served(tmp_path: Path) -> None:
    """Its input and one of its outputs have no dimension but the batch: Triton reshapes [1]."""
    model = from_onnx(scalars(tmp_path / "m.onnx"), "m", tmp_path / "models")
    sent: list[Sample] = [{"x": np.full(1, value, dtype="float32")} for value in (2.0, 3.0)]
    answers = Alone(model).answers(sent)
    assert [each["y"].tolist() for each in answers] == [[2] * 3, [3] * 3]
    assert [each["s"].tolist() for each in answers] == [[2], [3]]


def two_outputs(folder: Path) -> Path:
    tensors = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["b", 4]) for n in "xyz"]
    nodes = [helper.make_node("Identity", ["x"], [name]) for name in "yz"]
    version = folder / "repository" / "two" / "1"
    version.mkdir(parents=True)
    graph = helper.make_graph(nodes, "two", tensors[:1], tensors[1:])
    onnx_models.save(graph, version / "model.onnx")
    return folder


def declared(folder: Path, outputs: str) -> ServedModel:
    repository = folder / "repository"
    (repository / "two" / "config.pbtxt").write_text(
        "backend: 'onnxruntime' max_batch_size: 4"
        f" input {{ name: 'x' data_type: TYPE_FP32 dims: 4 }} {outputs}"
    )
    return from_repository(repository, "two", folder / "work")


def scalars(path: Path) -> Path:
    """s = x, y = x three times."""
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["b"])]
    outputs = [
        helper.make_tensor_value_info("y", TensorProto.FLOAT, ["b", 3]),
        helper.make_tensor_value_info("s", TensorProto.FLOAT, ["b"]),
    ]
    constants = [
        numpy_helper.from_array(np.array([1], dtype="int64"), "axis"),
        numpy_helper.from_array(np.ones((1, 3), dtype="float32"), "w"),
    ]
    nodes = [
        helper.make_node("Unsqueeze", ["x", "axis"], ["u"]),
        helper.make_node("MatMul", ["u", "w"], ["y"]),
        helper.make_node("Identity", ["x"], ["s"]),
    ]
    return onnx_models.save(helper.make_graph(nodes, "s", inputs, outputs, constants), path)


def test_an_interface_is_told_by_a_configuration_alone(tmp_path: Path) -> None:
    interface = interface_of(pipeline(tmp_path).config)
    assert interface.batched
    assert [(t.name, t.datatype, t.shape) for t in interface.inputs] == [("x", "FP32", (4,))]
