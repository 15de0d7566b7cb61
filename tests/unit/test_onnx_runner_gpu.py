"""What the ONNX runner asks of ONNX Runtime for an instance on a GPU, without one."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from autotune.adapters.triton.runners import ONNX_RUNNER
from tests import onnx_models
from tests.fake_torch import FakeBackend, ModelError

BOTH = ["CUDAExecutionProvider", "CPUExecutionProvider"]


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", FakeBackend())
    spec = importlib.util.spec_from_file_location("an_onnx_runner", ONNX_RUNNER)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def with_cuda(runner: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(runner.ort, "get_available_providers", lambda: BOTH)
    return runner


def instance(kind: str, device: int = 0) -> dict[str, str]:
    return {"model_instance_kind": kind, "model_instance_device_id": str(device)}


def test_an_instance_on_a_gpu_gets_the_cuda_provider_of_its_device_with_tf32_off(
    with_cuda: Any,
) -> None:
    cuda = ("CUDAExecutionProvider", {"device_id": "1", "use_tf32": "0"})
    assert with_cuda.providers_of({}, instance("GPU", 1)) == [cuda, "CPUExecutionProvider"]
    (_, options), _ = with_cuda.providers_of({"use_tf32": "1"}, instance("GPU"))
    assert options == {"device_id": "0", "use_tf32": "1"}


def test_an_instance_on_the_cpu_and_one_that_is_told_to_use_the_cpu(with_cuda: Any) -> None:
    cpu = {"execution_provider": "CPUExecutionProvider"}
    assert with_cuda.providers_of({}, instance("CPU")) == ["CPUExecutionProvider"]
    assert with_cuda.providers_of(cpu, instance("GPU")) == ["CPUExecutionProvider"]


def test_without_onnxruntime_gpu_an_instance_on_a_gpu_is_refused_with_what_to_install(
    runner: Any,
) -> None:
    with pytest.raises(ModelError, match="install onnxruntime-gpu for the server's Python"):
        runner.providers_of({}, instance("GPU"))


def test_the_cuda_provider_needs_an_instance_on_a_gpu(with_cuda: Any) -> None:
    with pytest.raises(ModelError, match="needs an instance of KIND_GPU, not KIND_CPU"):
        with_cuda.providers_of({"execution_provider": BOTH[0]}, instance("CPU"))


def test_a_cuda_provider_that_did_not_start_is_refused_and_not_replaced_by_the_cpu(
    runner: Any,
) -> None:
    session = SimpleNamespace(get_providers=lambda: ["CPUExecutionProvider"])
    with pytest.raises(ModelError, match="cannot start its CUDAExecutionProvider"):
        runner.refuse_without_gpu(session)
    runner.refuse_without_gpu(SimpleNamespace(get_providers=lambda: BOTH))


def test_a_run_by_io_binding_answers_as_a_plain_one(runner: Any, tmp_path: Path) -> None:
    onnx_models.linear(tmp_path / "model.onnx")
    session = runner.open_session({}, tmp_path, ["CPUExecutionProvider"])
    # Not contiguous, which a binding would read wrong.
    feed = {"x": np.arange(24, dtype=np.float32).reshape(3, 8)[:, ::2]}
    (plain,) = runner.plain_run(session, ["y"], feed)
    (bound,) = runner.bound_run(session, ["y"], feed)
    np.testing.assert_array_equal(bound, plain)


def model_of(folder: Path, kind: int, shape: list[str]) -> None:
    """A model that gives back what it takes, as ``y``."""
    node = helper.make_node("Identity", ["a"], ["y"])
    taken, given = (helper.make_tensor_value_info(name, kind, shape) for name in ("a", "y"))
    graph = helper.make_graph([node], "same", [taken], [given])
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), folder / "model.onnx")


def test_strings_which_cannot_be_bound_are_run_without(runner: Any, tmp_path: Path) -> None:
    model_of(tmp_path, TensorProto.STRING, ["n"])
    session = runner.open_session({}, tmp_path, ["CPUExecutionProvider"])
    feed = {"a": np.array(["one", "two"], dtype=object)}
    (found,) = runner.bound_run(session, ["y"], feed)
    assert found.tolist() == ["one", "two"]


def test_a_number_without_a_dimension_is_bound_as_one(runner: Any, tmp_path: Path) -> None:
    model_of(tmp_path, TensorProto.FLOAT, [])
    session = runner.open_session({}, tmp_path, ["CPUExecutionProvider"])
    (found,) = runner.bound_run(session, ["y"], {"a": np.array(3, dtype=np.float32)})
    assert found.shape == ()
