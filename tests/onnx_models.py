"""Small ONNX models, made on the spot."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Dims = Sequence[int | str]


def linear(
    path: Path,
    *,
    input_dims: Dims = ("batch", 4),
    output_dims: Dims = ("batch", 3),
    dtype: int = TensorProto.FLOAT,
    external: str = "",
) -> Path:
    """y = x·W + 1 with a fixed 4×3 W; ``external``: a file beside it for the weights."""
    scalar = helper.tensor_dtype_to_np_dtype(dtype)
    weights = numpy_helper.from_array((np.arange(12).reshape(4, 3) / 7).astype(scalar), "w")
    one = numpy_helper.from_array(np.ones(3, dtype=scalar), "one")
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["h"]),
            helper.make_node("Add", ["h", "one"], ["y"]),
        ],
        "linear",
        [helper.make_tensor_value_info("x", dtype, list(input_dims))],
        [helper.make_tensor_value_info("y", dtype, list(output_dims))],
        [weights, one],
    )
    return save(graph, path, external)


def single(path: Path, op: str, dtype: int, dims: Dims = ("batch", 4), out: Dims = ()) -> Path:
    """One operator from x to y, of the same datatype."""
    graph = helper.make_graph(
        [helper.make_node(op, ["x"], ["y"])],
        op,
        [helper.make_tensor_value_info("x", dtype, list(dims))],
        [helper.make_tensor_value_info("y", dtype, list(out or dims))],
    )
    return save(graph, path)


def row_sum(path: Path) -> Path:
    """y = the sum of each row of x: an output without a dimension but the batch."""
    axes = numpy_helper.from_array(np.array([1], dtype=np.int64), "axes")
    graph = helper.make_graph(
        [helper.make_node("ReduceSum", ["x", "axes"], ["y"], keepdims=0)],
        "row_sum",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch"])],
        [axes],
    )
    return save(graph, path)


def sequence_output(path: Path) -> Path:
    """An output that is no tensor."""
    graph = helper.make_graph(
        [helper.make_node("SequenceConstruct", ["x"], ["y"])],
        "sequence",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4])],
        [helper.make_tensor_sequence_value_info("y", TensorProto.FLOAT, None)],
    )
    return save(graph, path)


def save(graph: onnx.GraphProto, path: Path, external: str = "") -> Path:
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    if external:
        onnx.save(model, path, save_as_external_data=True, location=external, size_threshold=0)
    else:
        onnx.save(model, path)
    return path
