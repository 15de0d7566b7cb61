"""Sixteen-bit floating point: fp16 and bf16 graphs with the source's inputs and outputs."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from autotune.adapters.variants import graphs
from autotune.adapters.variants.ort import DEFAULT_OP_BLOCK_LIST, convert_float_to_float16
from autotune.adapters.variants.quiet import quiet
from autotune.core.variants import Precision

DELICATE = (
    "Softmax",
    "LogSoftmax",
    "LayerNormalization",
    "InstanceNormalization",
    "BatchNormalization",
    "ReduceMean",
    "ReduceSum",
    "ReduceSumSquare",
    "ReduceL2",
    "Pow",
    "Exp",
    "Log",
    "Sqrt",
    "Div",
)
"""Operators whose results leave fp16's range or lose most of its digits first."""
_BF16_OPSET = 22
"""Since then Conv and the pools are declared for bfloat16."""
_BF16_CAST_OPSET = 13
"""Since then Cast knows bfloat16."""
_DTYPES = {Precision.FP16: np.dtype(np.float16), Precision.BF16: np.dtype(ml_dtypes.bfloat16)}
_FLOAT, _HALF, _BRAIN = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16


def to_fp16(model: Any, *, ops: Collection[str] = (), nodes: Collection[str] = ()) -> Any:
    """In fp16 but for the inputs and outputs, the operators ``ops`` and the nodes ``nodes``; the
    model that is given is used up."""
    with quiet():
        half = convert_float_to_float16(
            model,
            keep_io_types=True,
            op_block_list=[*DEFAULT_OP_BLOCK_LIST, *ops],
            node_block_list=list(nodes),
        )
    graphs.in_order(half)
    return half


def to_bf16(model: Any, *, ops: Collection[str] = ()) -> tuple[Any, str]:
    """The same in bfloat16, its weights rounded from the source's own, and a note.

    It is the fp16 graph with bfloat16 in fp16's place: which values stay in fp32 is decided alike.
    """
    note = ""
    try:
        with quiet():
            model = graphs.raised(model, _BF16_OPSET)
    except OSError:  # a full disk says nothing of the model
        raise
    except Exception:  # noqa: BLE001 - ONNX's converter raises bare exceptions
        note = f"the opset stays {graphs.opset(model)}, which declares no bfloat16 convolution"
    source = onnx.ModelProto()
    source.CopyFrom(model)
    brain = to_fp16(model, ops=ops)
    _rename_types(brain.graph, source.graph)
    return brain, note


def in_steps(model: Any, precision: Precision, *, spared: Collection[str] = ()) -> Any:
    """The fp32 graph with every weight and every intermediate value rounded to fp16 or bf16, but
    for results of the operators ``spared``: what a device computes that has such operators.

    ONNX Runtime's CPU provider has few: it computes a chain of fp16 operators in fp32, where
    nothing overflows, and does not run bfloat16 at all.
    """
    short = _HALF
    if precision is Precision.BF16:
        short, model = _BRAIN, graphs.raised(model, _BF16_CAST_OPSET)
    spared = {*spared, *DEFAULT_OP_BLOCK_LIST}
    inferred = onnx.shape_inference.infer_shapes(model)
    floats = {
        info.name
        for info in (*inferred.graph.value_info, *inferred.graph.input, *inferred.graph.output)
        if info.type.tensor_type.elem_type == _FLOAT
    }
    for tensor in model.graph.initializer:
        if tensor.data_type == _FLOAT:
            with np.errstate(over="ignore"):
                rounded = numpy_helper.to_array(tensor).astype(_DTYPES[precision])
            tensor.CopyFrom(numpy_helper.from_array(rounded.astype(np.float32), tensor.name))
    taken = [tensor.name for tensor in model.graph.input if tensor.name in floats]
    nodes = [cast for name in taken for cast in _rounding(name, f"{name}__short", short)]
    for node in model.graph.node:
        for index, name in enumerate(node.input):
            if name in taken:
                node.input[index] = f"{name}__short"
        after: list[Any] = []
        for index, name in enumerate(node.output):
            if name in floats and node.op_type not in spared:
                node.output[index] = f"{name}__fp32"
                after += _rounding(f"{name}__fp32", name, short)
        nodes += [node, *after]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return model


def blamed_nodes(message: str) -> list[str]:
    """The nodes that an error of ONNX Runtime's type check names."""
    return re.findall(r"of operator \(\w+\) in node \(([^)]+)\)", message)


def _rounding(name: str, rounded: str, short: int) -> list[Any]:
    between = f"{rounded}__cast"
    return [
        helper.make_node("Cast", [name], [between], to=short),
        helper.make_node("Cast", [between], [rounded], to=_FLOAT),
    ]


def _rename_types(graph: Any, source: Any) -> None:
    """fp16 → bfloat16 in a graph that was made from ``source``; the converter keeps the order of
    nodes but for casts of its own, so that they are paired by their names and outputs."""
    weights = {tensor.name: tensor for tensor in source.initializer}
    for tensor in graph.initializer:
        _as_brain(tensor, weights.get(tensor.name))
    for info in (*graph.value_info, *graph.input, *graph.output):
        if info.type.tensor_type.elem_type == _HALF:
            info.type.tensor_type.elem_type = _BRAIN
    own = {_key(node): node for node in source.node}
    for node in graph.node:
        _rename_attributes(node, own.get(_key(node)))


def _key(node: Any) -> tuple[str, ...]:
    return (node.op_type, *node.output) if node.op_type == "Constant" else (node.name,)


def _rename_attributes(node: Any, source: Any | None) -> None:
    before = {attribute.name: attribute for attribute in source.attribute} if source else {}
    for attribute in node.attribute:
        original = before.get(attribute.name)
        if attribute.name in ("to", "dtype") and attribute.i == _HALF:
            attribute.i = _BRAIN
        if attribute.HasField("t"):
            _as_brain(attribute.t, original.t if original is not None else None)
        if attribute.HasField("g") and original is not None:
            _rename_types(attribute.g, original.g)


def _as_brain(tensor: Any, original: Any | None) -> None:
    if tensor.data_type != _HALF:
        return
    exact = tensor if original is None or original.data_type != _FLOAT else original
    values = numpy_helper.to_array(exact).astype(ml_dtypes.bfloat16)
    tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
