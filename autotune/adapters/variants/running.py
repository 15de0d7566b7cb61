"""Runs an ONNX file on requests, one at a time, in ONNX Runtime on the CPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from autotune.adapters.variants.request import Outputs
from autotune.core.model_interface import Sample

_SILENT = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """Inputs and outputs: their types and numbers of dimensions, by name."""

    inputs: Mapping[str, tuple[str, int]]
    outputs: Mapping[str, tuple[str, int]]


class Runner:
    """A loaded ONNX file.

    Graph optimizations are off unless ``optimized``: with them on, one toolchain's int8 graph was
    silently wrong, so that they are compared with, not trusted. Raises what ONNX Runtime raises if
    the file cannot be loaded.
    """

    def __init__(self, path: Path, *, optimized: bool = False) -> None:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = _SILENT
        level = onnxruntime.GraphOptimizationLevel
        options.graph_optimization_level = (
            level.ORT_ENABLE_ALL if optimized else level.ORT_DISABLE_ALL
        )
        self._session = onnxruntime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"]
        )
        self.signature = Signature(
            inputs=_signature(self._session.get_inputs()),
            outputs=_signature(self._session.get_outputs()),
        )

    def __call__(self, sample: Sample) -> Outputs:
        """One request's outputs; both without the batch dimension, where the model has one."""
        batched = self._batched(sample)
        values = self._session.run(None, self.feed(sample))
        return {
            name: value[0] if batched and value.ndim else value
            for name, value in zip(self.signature.outputs, values, strict=True)
        }

    def feed(self, sample: Sample) -> dict[str, NDArray[Any]]:
        """A request as the graph takes it: with a batch dimension, where the model has one."""
        batched = self._batched(sample)
        return {
            name: _texts(value[np.newaxis] if batched and value.ndim < rank else value)
            for name, (_, rank) in self.signature.inputs.items()
            if (value := sample.get(name)) is not None
        }

    def _batched(self, sample: Sample) -> bool:
        """Requests have no batch dimension: a graph that takes one more dimension batches."""
        return any(
            name in sample and sample[name].ndim + 1 == rank
            for name, (_, rank) in self.signature.inputs.items()
        )


def _signature(nodes: list[Any]) -> dict[str, tuple[str, int]]:
    return {node.name: (node.type, len(node.shape or ())) for node in nodes}


def _texts(array: NDArray[Any]) -> NDArray[Any]:
    """Strings as ONNX Runtime takes them: str, not bytes."""
    if array.dtype != object:
        return array
    texts = [
        v.decode("utf-8", "surrogateescape") if isinstance(v, bytes) else v for v in array.flat
    ]
    return np.array(texts, dtype=object).reshape(array.shape)
