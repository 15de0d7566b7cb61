"""int8 and fp8: quantized graphs from ranges of activations that are already known."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from onnx import TensorProto, numpy_helper

from autotune.adapters.variants import graphs
from autotune.adapters.variants.ort import CalibrationMethod as OrtMethod
from autotune.adapters.variants.ort import QuantFormat, QuantType, quantize_static
from autotune.adapters.variants.prepare import Prepared
from autotune.adapters.variants.quiet import quiet
from autotune.core.study import CalibrationMethod

_LARGEST_INT8, _LARGEST_FP8 = 127.0, 448.0
_FP8_OPSET = 19
ORT_METHODS = {
    CalibrationMethod.MINMAX: OrtMethod.MinMax,
    CalibrationMethod.ENTROPY: OrtMethod.Entropy,
    CalibrationMethod.PERCENTILE: OrtMethod.Percentile,
}


class Form(StrEnum):
    """Which engine is to read the graph: each refuses, or runs slowly, the other's."""

    CPU = "cpu"
    """ONNX Runtime's CPU kernels: uint8 activations with a zero point, every operator."""
    TENSORRT = "tensorrt"
    """Signed and symmetric, biases in floating point, heavy operators only and not their
    outputs."""
    FP8 = "fp8"
    """TensorRT's form in float8 (E4M3)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranges:
    """What a calibrator found, in ONNX Runtime's file of it. ``endless`` are the tensors that hold
    infinities: no scale fits them, so that the nodes at them stay as they are."""

    method: CalibrationMethod
    file: Path
    endless: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantization:
    """How a graph is quantized: ``left_out`` nodes stay in the source's precision; ``only`` these
    are quantized (empty: all); ``narrow`` keeps weights to 7 bits, which processors without VNNI
    need lest their sums of products saturate."""

    form: Form
    per_channel: bool = True
    left_out: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    heavy_only: bool = False
    narrow: bool = False


def quantized(prepared: Prepared, ranges: Ranges, how: Quantization, path: Path) -> Path:
    """Write the quantized graph. Raises what ONNX Runtime raises where it cannot."""
    cpu = how.form is Form.CPU
    with quiet():
        quantize_static(
            str(prepared.path),
            str(path),
            None,
            quant_format=QuantFormat.QDQ,
            op_types_to_quantize=None if cpu and not how.heavy_only else list(graphs.HEAVY),
            per_channel=how.per_channel,
            reduce_range=how.narrow,
            activation_type=QuantType.QUInt8 if cpu else QuantType.QInt8,
            weight_type=QuantType.QInt8,
            nodes_to_quantize=list(how.only),
            nodes_to_exclude=[*how.left_out, *_at(prepared.model, ranges.endless)],
            use_external_data_format=prepared.large,
            calibrate_method=ORT_METHODS[ranges.method],
            extra_options=_options(how.form),
            calibration_cache_path=ranges.file,
        )
        model = graphs.load(path)
        graphs.name_nodes(model)
        if how.form is Form.FP8:
            _to_fp8(model, prepared.model)
        for weights in graphs.beside(path):
            weights.unlink()
        graphs.save(model, path)
    return path


def quantized_anything(path: Path) -> bool:
    """Whether the graph holds a quantized tensor at all."""
    return any(node.op_type == "QuantizeLinear" for node in graphs.load(path).graph.node)


def _options(form: Form) -> dict[str, Any]:
    if form is Form.CPU:
        return {"ActivationSymmetric": False, "WeightSymmetric": True}
    return {
        "ActivationSymmetric": True,
        "WeightSymmetric": True,
        "QuantizeBias": False,
        "QDQDisableWeightAdjustForInt32Bias": True,
        "DedicatedQDQPair": False,
        "ForceQuantizeNoInputCheck": False,
        "AddQDQPairToWeight": False,
        "OpTypesToExcludeOutputQuantization": list(graphs.HEAVY),
    }


def _at(model: Any, tensors: Collection[str]) -> list[str]:
    return [
        node.name
        for node in model.graph.node
        if any(name in tensors for name in (*node.input, *node.output))
    ]


def _to_fp8(model: Any, source: Any) -> None:
    """Turn TensorRT's int8 form into float8: the same graph, with scales for the largest float8
    number instead of the largest int8, and weights rounded from the source's own."""
    weights = {tensor.name: tensor for tensor in source.graph.initializer}
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    done: set[str] = set()
    for node in model.graph.node:
        if node.op_type not in ("QuantizeLinear", "DequantizeLinear"):
            continue
        data, scale, zero = node.input[:3]
        if scale not in done:
            done.add(scale)
            ratio = np.float32(_LARGEST_INT8 / _LARGEST_FP8)
            _replace(tensors[scale], numpy_helper.to_array(tensors[scale]) * ratio)
        if zero not in done:
            done.add(zero)
            zeros = np.zeros(tuple(tensors[zero].dims), ml_dtypes.float8_e4m3fn)
            _replace(tensors[zero], zeros)
        if node.op_type == "DequantizeLinear" and data in tensors and data not in done:
            done.add(data)
            original = numpy_helper.to_array(weights[data.removesuffix("_quantized")])
            steps = _along_axis(numpy_helper.to_array(tensors[scale]), original.ndim, node)
            rounded = np.clip(original / steps, -_LARGEST_FP8, _LARGEST_FP8)
            _replace(tensors[data], rounded.astype(ml_dtypes.float8_e4m3fn))
    for domain in model.opset_import:
        if domain.domain in ("", "ai.onnx"):
            domain.version = max(domain.version, _FP8_OPSET)
    assert all(t.data_type != TensorProto.INT8 for t in model.graph.initializer if t.name in done)


def _along_axis(scale: Any, rank: int, node: Any) -> Any:
    """A scale per channel, shaped so that it divides the weights."""
    if scale.size == 1:
        return scale.reshape(())
    axis = next((a.i for a in node.attribute if a.name == "axis"), 1)
    shape = [1] * rank
    shape[axis] = -1
    return scale.reshape(shape)


def _replace(tensor: Any, values: Any) -> None:
    tensor.CopyFrom(numpy_helper.from_array(np.asarray(values), tensor.name))
