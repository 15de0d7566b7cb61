"""Request inputs: random ones, those of a file or a folder, or what a Python function makes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from autotune.core.errors import InputRefused
from autotune.core.model_interface import NUMPY_DTYPES, ModelInterface, Sample, TensorSpec
from autotune.core.workload import InputKind, InputSpec
from loadgen.input_checks import (
    WORKLOAD_INPUTS,
    Tensor,
    Wanted,
    bytes_array,
    limits,
    shape_of,
)
from loadgen.input_json import read_json
from loadgen.input_npz import read_folder, read_npz
from loadgen.input_python import read_python

_TEXT_LENGTH = 16


def build_samples(
    model: ModelInterface, spec: InputSpec, *, seed: int, key: str = WORKLOAD_INPUTS
) -> Sequence[Sample]:
    """One sample per distinct request, each an array per input **without** the batch dimension.

    ``key``: where ``spec`` stands in the study file, for messages. InputRefused, with what was
    expected, where the model and the inputs do not fit together.
    """
    wanted = Wanted(model=model, spec=spec, key=key)
    _check_names(wanted)
    if spec.kind is InputKind.RANDOM:
        return _random(wanted, np.random.default_rng(seed))
    if spec.path is None:
        raise InputRefused(f"inputs of kind {spec.kind.value} need a path")
    if spec.kind is InputKind.PYTHON:
        return read_python(wanted, spec.path, seed)
    readers = {InputKind.JSON: read_json, InputKind.NPZ: read_npz, InputKind.FOLDER: read_folder}
    return readers[spec.kind](wanted, spec.path)


def _check_names(wanted: Wanted) -> None:
    model, spec = wanted.model, wanted.spec
    names = [tensor.name for tensor in model.inputs]
    for key, given in (("shapes", spec.shapes), ("ranges", spec.ranges)):
        for name in given:
            if name not in names:
                raise InputRefused(
                    f"{wanted.key}.{key} names an input that model {model.name} does not have",
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


def _random(wanted: Wanted, rng: np.random.Generator) -> list[Sample]:
    spec = wanted.spec
    if spec.count < 1:
        raise InputRefused(f"{wanted.key}.count must be at least 1", value=spec.count)
    drawn = [
        tensor
        for tensor in wanted.model.inputs
        if not tensor.optional or tensor.name in spec.shapes or tensor.name in spec.ranges
    ]
    shapes = {tensor.name: shape_of(tensor, wanted) for tensor in drawn}
    bounds = {
        tensor.name: _bounds(tensor, spec.ranges, f"{wanted.key}.ranges.{tensor.name}")
        for tensor in drawn
    }
    return [
        {t.name: _draw(t, shapes[t.name], bounds[t.name], rng) for t in drawn}
        for _ in range(spec.count)
    ]


def _bounds(
    tensor: TensorSpec, ranges: Mapping[str, tuple[float, float]], where: str
) -> tuple[float, float]:
    """Low and high end. By default floats are uniform in [0, 1), bytes-sized unsigned integers
    (pixels) cover their type, and other integers are 0 or 1: the values that an id, a type and a
    mask can all take. Integer ranges include both ends."""
    given = ranges.get(tensor.name)
    dtype = np.dtype(NUMPY_DTYPES[tensor.datatype])
    if given is None:
        return (0, 255) if tensor.datatype == "UINT8" else (0, 1)
    low, high = given
    if tensor.datatype in {"BOOL", "BYTES"}:
        raise InputRefused(f"{where}: {tensor.datatype} takes no range")
    if not (math.isfinite(low) and math.isfinite(high) and low <= high):
        raise InputRefused(f"{where} is [low, high], low ≤ high", value=str(list(given)))
    lowest, highest = limits(dtype)
    if low < lowest or high > highest:
        raise InputRefused(
            f"{where} must lie within {tensor.datatype}'s own range [{lowest:g}, {highest:g}]",
            value=str(list(given)),
        )
    if dtype.kind in "iu" and (low != int(low) or high != int(high)):
        raise InputRefused(
            f"{where}: an integer input takes whole numbers",
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
