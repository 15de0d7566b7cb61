"""ONNX graphs as the recipes handle them: loading, saving, opsets, names, neighbours."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

import onnx
from onnx import helper, version_converter

HEAVY = ("Conv", "ConvTranspose", "MatMul", "Gemm")
"""What takes the time in most networks: the operators that low precision pays for."""
_FUSED_INTO_HEAVY = ("Clip", "Relu")
_LARGEST_FILE = 1_500_000_000
"""Bytes; protobuf ends at 2 GB."""
_WEIGHTS = ".data"
_OLD_ENOUGH_IR = 10
"""An IR version that releases of ONNX Runtime since 1.18 read."""


def load(path: Path) -> Any:
    """The whole model, with weights that stand in files beside it."""
    return onnx.load(str(path))


def save(model: Any, path: Path) -> tuple[Path, ...]:
    """Write a model; the files of weights beside it, where it is too large for one file."""
    model.ir_version = min(model.ir_version, max(_OLD_ENOUGH_IR, _needed_ir(model)))
    if model.ByteSize() < _LARGEST_FILE:
        onnx.save(model, str(path))
        return ()
    weights = path.with_name(f"{path.name}{_WEIGHTS}")
    onnx.save(model, str(path), save_as_external_data=True, location=weights.name)
    return (weights,)


def beside(path: Path) -> tuple[Path, ...]:
    """The files beside a model that hold weights of its main graph."""
    model = onnx.load(str(path), load_external_data=False)
    names = {
        entry.value
        for tensor in model.graph.initializer
        if tensor.data_location == onnx.TensorProto.EXTERNAL
        for entry in tensor.external_data
        if entry.key == "location"
    }
    return tuple(path.parent / name for name in sorted(names))


def opset(model: Any) -> int:
    """The version of ONNX's own operators."""
    return max((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), default=1)


def raised(model: Any, version: int) -> Any:
    """The model at an opset of at least ``version``. Whatever ONNX's converter raises, where it
    cannot."""
    return model if opset(model) >= version else version_converter.convert_version(model, version)


def name_nodes(model: Any) -> None:
    """Give each node of the main graph a name of its own: they are told apart by it."""
    taken = Counter(node.name for node in model.graph.node)
    for index, node in enumerate(model.graph.node):
        if not node.name or taken[node.name] > 1:
            node.name = f"{node.name or node.op_type}_{index}"


def name_free_dimensions(model: Any) -> None:
    """Give each unknown dimension of the inputs, ``?`` or nothing, a name of its own: equal names
    are taken for equal sizes."""
    for tensor in model.graph.input:
        for axis, size in enumerate(tensor.type.tensor_type.shape.dim):
            if not size.HasField("dim_value") and size.dim_param in ("", "?"):
                size.dim_param = f"{tensor.name}_{axis}"


def heavy_groups(model: Any) -> list[tuple[str, ...]]:
    """The heavy nodes by name, in the graph's order, each with the Clip or Relu behind it: the two
    are quantized as one, so that they stay in the source's precision together."""
    takers: dict[str, list[Any]] = {}
    for node in model.graph.node:
        for name in node.input:
            takers.setdefault(name, []).append(node)
    return [
        (
            node.name,
            *(n.name for n in takers.get(node.output[0], ()) if n.op_type in _FUSED_INTO_HEAVY),
        )
        for node in model.graph.node
        if node.op_type in HEAVY
    ]


def graphs(model: Any) -> Iterator[Any]:
    """The main graph and all bodies of loops and branches."""
    waiting = [model.graph]
    while waiting:
        graph = waiting.pop()
        yield graph
        waiting += [child for node in graph.node for child in bodies(node)]


def bodies(node: Any) -> list[Any]:
    found = []
    for attribute in node.attribute:
        found += ([attribute.g] if attribute.HasField("g") else []) + list(attribute.graphs)
    return found


def in_order(model: Any) -> None:
    """Put the main graph's nodes behind those whose outputs they take, as ONNX wants it."""
    nodes = list(model.graph.node)
    makers = {name: index for index, node in enumerate(nodes) for name in node.output if name}
    needs = {
        index: sorted(makers[name] for name in _needs(node) if name in makers)
        for index, node in enumerate(nodes)
    }
    ordered = [nodes[index] for index in TopologicalSorter(needs).static_order()]
    del model.graph.node[:]
    model.graph.node.extend(ordered)


def _needs(node: Any) -> set[str]:
    needed = set(node.input)
    for body in bodies(node):
        own = {t.name for t in (*body.input, *body.initializer)}
        own |= {name for inner in body.node for name in inner.output}
        needed |= {name for inner in body.node for name in _needs(inner)} - own
    return needed


def _needed_ir(model: Any) -> int:
    return int(helper.find_min_ir_version_for(model.opset_import, ignore_unknown=True))
