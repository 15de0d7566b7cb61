"""TensorRT's real builder, where there is one: TensorRT for RTX builds without a GPU.

To run it: ``pip install --no-deps --target DIR tensorrt-rtx-cu13-bindings tensorrt-rtx-cu13-libs``
(they are proprietary, 240 MB, and nothing here needs them), and put DIR on PYTHONPATH.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from autotune.adapters.variants.tensorrt import PLAN, PlanOptions, build_plan
from tests.onnx_models import linear, save

BINDINGS = "tensorrt_rtx_bindings"
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec(BINDINGS) is None,
    reason="tensorrt_rtx_bindings (a TensorRT whose builder needs no GPU) is not installed",
)
EIGHT = PlanOptions(batch_sizes=(1, 8), shapes={"x": [[3, 8, 8]]}, bindings=BINDINGS)


def convolution(path: Path, dtype: int) -> Path:
    """y = relu(conv(x)) in a precision, of float32 at both ends."""
    scalar = helper.tensor_dtype_to_np_dtype(dtype)
    weights = np.random.default_rng(1).normal(size=(4, 3, 3, 3)).astype(scalar)
    nodes = [
        helper.make_node("Cast", ["x"], ["low"], to=dtype),
        helper.make_node("Conv", ["low", "w"], ["conv"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["conv"], ["relu"]),
        helper.make_node("Cast", ["relu"], ["y"], to=TensorProto.FLOAT),
    ]
    return _graph(path, nodes, [numpy_helper.from_array(weights, "w")])


def quantized(path: Path, *, zero: np.ndarray) -> Path:  # type: ignore[type-arg]
    """A convolution of quantized input and weights; the type of ``zero`` is the activations'."""
    weights = np.random.default_rng(1).integers(-90, 90, size=(4, 3, 3, 3)).astype(np.int8)
    initial = {
        "scale": np.float32(0.02),
        "zero": zero,
        "w": weights,
        "w_scale": np.float32(0.01),
        "w_zero": np.int8(0),
    }
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["q"], name="x_quant"),
        helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["dq"]),
        helper.make_node("DequantizeLinear", ["w", "w_scale", "w_zero"], ["wdq"]),
        helper.make_node("Conv", ["dq", "wdq"], ["y"], pads=[1, 1, 1, 1]),
    ]
    tensors = [numpy_helper.from_array(np.asarray(v), name) for name, v in initial.items()]
    return _graph(path, nodes, tensors)


def _graph(path: Path, nodes: list[onnx.NodeProto], tensors: list[onnx.TensorProto]) -> Path:
    graph = helper.make_graph(
        nodes,
        "convolution",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3, "h", "w_"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 4, "h", "w_"])],
        tensors,
    )
    return save(graph, path)


@pytest.mark.parametrize("dtype", ["FLOAT", "FLOAT16", "BFLOAT16"])
def test_a_typed_graph_becomes_a_plan(tmp_path: Path, dtype: str) -> None:
    onnx_file = convolution(tmp_path / "model.onnx", getattr(TensorProto, dtype))
    made = build_plan(onnx_file, tmp_path, EIGHT)
    assert made.refused == ""
    assert (tmp_path / PLAN).stat().st_size > 1000
    assert made.notes[0] == "built for x 1–8×3×8×8"


def test_symmetric_int8_becomes_a_plan(tmp_path: Path) -> None:
    made = build_plan(quantized(tmp_path / "model.onnx", zero=np.int8(0)), tmp_path, EIGHT)
    assert made.refused == ""
    assert made.file == tmp_path / PLAN


def test_the_cpus_form_of_int8_is_refused_by_the_parser(tmp_path: Path) -> None:
    made = build_plan(quantized(tmp_path / "model.onnx", zero=np.uint8(128)), tmp_path, EIGHT)
    assert made.file is None
    assert made.refused.startswith("TensorRT cannot read the graph: ")
    assert "x_quant" in made.refused


def test_a_plan_is_built_from_no_more_than_paths(tmp_path: Path) -> None:
    onnx_file = linear(tmp_path / "model.onnx")
    made = build_plan(onnx_file, tmp_path, PlanOptions(bindings=BINDINGS))
    assert made.refused == ""
    assert made.notes[0] == "built for x 1×4"
