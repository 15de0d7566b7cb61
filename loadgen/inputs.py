"""Request inputs: random ones, a perf_analyzer input-data file, or an ``.npz``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from autotune.core.errors import InputRefused
from autotune.core.model_interface import NUMPY_DTYPES, ModelInterface, Sample, TensorSpec
from autotune.core.workload import InputKind, InputSpec
from loadgen.input_checks import SHAPES_KEY, Tensor, bytes_array, limits, shape_of
from loadgen.input_json import read_json
from loadgen.input_npz import read_npz

RANGES_KEY = "workload.inputs.ranges"
_TEXT_LENGTH = 16


def build_samples(model: ModelInterface, spec: InputSpec, *, seed: int) -> Sequence[Sample]:
    """One sample per distinct request, each an array per input **without** the batch dimension.

    InputRefused, with what was expected, where the model and the inputs do not fit together.
    """
    _check_names(model, spec)
    if spec.kind is InputKind.RANDOM:
        return _random(model, spec, np.random.default_rng(seed))
    if spec.path is None:
        raise InputRefused(f"inputs of kind {spec.kind.value} need a file")
    read = read_json if spec.kind is InputKind.JSON else read_npz
    return read(model, spec, spec.path)


def _check_names(model: ModelInterface, spec: InputSpec) -> None:
    names = [tensor.name for tensor in model.inputs]
    for key, given in ((SHAPES_KEY, spec.shapes), (RANGES_KEY, spec.ranges)):
        for name in given:
            if name not in names:
                raise InputRefused(
                    f"{key} names an input that model {model.name} does not have",
                    value=name,
                    next_step=f"its inputs are {', '.join(names)}",
                )
    for tensor in model.inputs:
        if tensor.datatype not in NUMPY_DTYPES:
            raise InputRefused(
                f"input {tensor.name} has a datatype that cannot be sent (BF16 has no NumPy type)",
                value=tensor.datatype,
                next_step="serve the model with an FP32 or FP16 input",
            )


def _random(model: ModelInterface, spec: InputSpec, rng: np.random.Generator) -> list[Sample]:
    if spec.count < 1:
        raise InputRefused("workload.inputs.count must be at least 1", value=spec.count)
    wanted = [
        tensor
        for tensor in model.inputs
        if not tensor.optional or tensor.name in spec.shapes or tensor.name in spec.ranges
    ]
    shapes = {tensor.name: shape_of(tensor, spec) for tensor in wanted}
    bounds = {tensor.name: _bounds(tensor, spec.ranges) for tensor in wanted}
    return [
        {t.name: _draw(t, shapes[t.name], bounds[t.name], rng) for t in wanted}
        for _ in range(spec.count)
    ]


def _bounds(tensor: TensorSpec, ranges: Mapping[str, tuple[float, float]]) -> tuple[float, float]:
    """Low and high end. By default floats are uniform in [0, 1), bytes-sized unsigned integers
    (pixels) cover their type, and other integers are 0 or 1: the values that an id, a type and a
    mask can all take. Integer ranges include both ends."""
    given = ranges.get(tensor.name)
    dtype = np.dtype(NUMPY_DTYPES[tensor.datatype])
    if given is None:
        return (0, 255) if tensor.datatype == "UINT8" else (0, 1)
    low, high = given
    if tensor.datatype in {"BOOL", "BYTES"}:
        raise InputRefused(f"{RANGES_KEY}.{tensor.name}: {tensor.datatype} takes no range")
    if not (math.isfinite(low) and math.isfinite(high) and low <= high):
        raise InputRefused(
            f"{RANGES_KEY}.{tensor.name} is [low, high], low ≤ high", value=str(list(given))
        )
    lowest, highest = limits(dtype)
    if low < lowest or high > highest:
        raise InputRefused(
            f"{RANGES_KEY}.{tensor.name} must lie within {tensor.datatype}'s own range"
            f" [{lowest:g}, {highest:g}]",
            value=str(list(given)),
        )
    if dtype.kind in "iu" and (low != int(low) or high != int(high)):
        raise InputRefused(
            f"{RANGES_KEY}.{tensor.name}: an integer input takes whole numbers",
            value=str(list(given)),
        )
    return given


def _draw(
    tensor: TensorSpec,
    shape: tuple[int, ...],
    bounds: tuple[float, float],
    rng: np.random.Generator,
) -> Tensor:
    dtype = np.dtype(NUMPY_DTYPES[tensor.datatype])
    if tensor.datatype == "BYTES":
        letters = rng.integers(97, 123, size=(math.prod(shape), _TEXT_LENGTH), dtype=np.uint8)
        return bytes_array([row.tobytes() for row in letters], shape)
    if dtype.kind == "b":
        return rng.integers(0, 2, size=shape).astype(dtype)
    if dtype.kind in "iu":
        return rng.integers(int(bounds[0]), int(bounds[1]), size=shape, dtype=dtype, endpoint=True)
    low, high = bounds
    return (low + (high - low) * rng.random(size=shape)).astype(dtype)
