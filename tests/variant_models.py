"""Small networks to build variants of, their requests, and how far two answers are apart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from autotune.adapters.variants.request import Outputs
from autotune.adapters.variants.running import Runner
from autotune.adapters.variants.sensitive import relative_error
from autotune.core.model_interface import Sample
from autotune.core.study import CalibrationMethod, CalibrationSpec
from autotune.core.workload import InputKind, InputSpec

CLASSES = 5


def network(
    path: Path, *, opset: int = 17, batch: str = "batch", delicate: bool = False, seed: int = 0
) -> Path:
    """x (3×8×8) → conv1 → relu → conv2 → clip → pool → gemm → y.

    ``delicate``: conv2's channels are of sizes that no single scale fits, and made equal again
    behind it, so that quantizing it, and it alone, spoils the answers.
    """
    draw = np.random.default_rng(seed)
    spread = np.geomspace(1.0, 2000.0, 16).astype(np.float32) if delicate else np.ones(16, "f4")
    weights: dict[str, NDArray[Any]] = {
        "w1": draw.normal(0, 0.3, (8, 3, 3, 3)),
        "b1": draw.normal(0, 0.1, 8),
        "w2": draw.normal(0, 0.2, (16, 8, 3, 3)) * spread[:, None, None, None],
        "b2": draw.normal(0, 0.1, 16) * spread,
        "even": (1 / spread)[:, None, None],
        "w3": draw.normal(0, 0.3, (16, CLASSES)),
        "b3": draw.normal(0, 0.1, CLASSES),
        "low": np.array(0.0),
        "high": np.array(6.0 * spread.max()),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["c1"], name="conv1", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c1"], ["r1"], name="relu1"),
        helper.make_node("Conv", ["r1", "w2", "b2"], ["c2"], name="conv2", pads=[1, 1, 1, 1]),
        helper.make_node("Clip", ["c2", "low", "high"], ["k2"], name="clip2"),
        helper.make_node("Mul", ["k2", "even"], ["m2"], name="even2"),
        helper.make_node("GlobalAveragePool", ["m2"], ["p"], name="pool"),
        helper.make_node("Flatten", ["p"], ["f"], name="flatten"),
        helper.make_node("Gemm", ["f", "w3", "b3"], ["y"], name="gemm"),
    ]
    graph = helper.make_graph(
        nodes,
        "network",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, 3, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [batch, CLASSES])],
        [numpy_helper.from_array(w.astype(np.float32), name) for name, w in weights.items()],
    )
    return saved(graph, path, opset)


def saved(graph: onnx.GraphProto, path: Path, opset: int = 17) -> Path:
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, str(path))
    return path


def requests(count: int, *, seed: int, scale: float = 1.0) -> list[Sample]:
    draw = np.random.default_rng(seed)
    return [{"x": (draw.normal(0, scale, (3, 8, 8))).astype(np.float32)} for _ in range(count)]


def error_against(source: Path, samples: Sequence[Sample]) -> Callable[[Sequence[Outputs]], float]:
    """The relative error of answers, against the source's."""
    runner = Runner(source)
    expected = [runner(sample) for sample in samples]
    return lambda outputs: relative_error(outputs, expected)


def spec(
    *methods: CalibrationMethod,
    exclude: tuple[str, ...] | None = None,
    max_excluded: int = 8,
) -> CalibrationSpec:
    return CalibrationSpec(
        data=InputSpec(kind=InputKind.RANDOM),
        methods=methods or (CalibrationMethod.MINMAX,),
        exclude=exclude,
        max_excluded=max_excluded,
    )
