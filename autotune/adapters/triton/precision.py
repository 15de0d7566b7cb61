"""The precision of an ONNX file, by its weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from math import prod
from pathlib import Path

import onnx
from onnx import TensorProto

from autotune.core.variants import Precision

_FLOATS: dict[int, Precision] = {
    TensorProto.FLOAT: Precision.FP32,
    TensorProto.FLOAT16: Precision.FP16,
    TensorProto.BFLOAT16: Precision.BF16,
}
_INT8 = {TensorProto.INT8, TensorProto.UINT8}
_FP8 = {
    TensorProto.FLOAT8E4M3FN,
    TensorProto.FLOAT8E4M3FNUZ,
    TensorProto.FLOAT8E5M2,
    TensorProto.FLOAT8E5M2FNUZ,
}
_INTEGER_OPS = {"ConvInteger", "MatMulInteger", "QLinearConv", "QLinearMatMul"}
_QUANTIZERS = {"QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"}


def precision_of(path: Path) -> Precision | None:
    """What most of an ONNX file's weights are held in: int8 and fp8 where the graph quantizes, else
    the floating-point type of most values; without any weights, that of its inputs. None where
    neither tells."""
    graph = onnx.load(str(path), load_external_data=False).graph
    operators = {node.op_type for node in graph.node}
    if operators & _INTEGER_OPS:
        return Precision.INT8
    held = _values_by_type(graph)
    if operators & _QUANTIZERS:
        if any(kind in held for kind in _FP8):
            return Precision.FP8
        if any(kind in held for kind in _INT8):
            return Precision.INT8
    floats = {kind: count for kind, count in held.items() if kind in _FLOATS}
    if not floats:
        inputs = [value.type.tensor_type.elem_type for value in graph.input]
        floats = Counter(kind for kind in inputs if kind in _FLOATS)
    return _FLOATS[max(floats, key=lambda kind: floats[kind])] if floats else None


def _values_by_type(graph: onnx.GraphProto) -> Counter[int]:
    """How many values each datatype's weights hold."""
    held: Counter[int] = Counter()
    for tensor in _weights(graph):
        held[tensor.data_type] += prod(tensor.dims)
    return held


def _weights(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    yield from graph.initializer
    for node in graph.node:
        if node.op_type == "Constant":
            yield from (each.t for each in node.attribute if each.HasField("t"))
