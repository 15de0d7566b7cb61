"""What every source of request inputs must keep to: names, shapes, the bounds of a datatype."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from autotune.core.errors import InputRefused
from autotune.core.model_interface import ModelInterface, TensorSpec
from autotune.core.workload import InputSpec

Tensor: TypeAlias = NDArray[np.generic]

SHAPES_KEY = "workload.inputs.shapes"


def shape_of(tensor: TensorSpec, spec: InputSpec) -> tuple[int, ...]:
    """The tensor's shape with every dynamic dimension given a size by the study."""
    given = spec.shapes.get(tensor.name)
    if given is None:
        if any(size < 0 for size in tensor.shape):
            raise InputRefused(
                f"input {tensor.name} has dynamic dimensions and no shape",
                value=str(list(tensor.shape)),
                next_step=f"set {SHAPES_KEY}: {{{tensor.name}: {_example(tensor.shape)}}}"
                f" (for an ONNX model by options: --shape {tensor.name}:"
                f"{','.join(map(str, _example(tensor.shape)))})",
            )
        return tensor.shape
    check_shape(tensor, tuple(given), f"{SHAPES_KEY}.{tensor.name}")
    return tuple(given)


def _example(shape: tuple[int, ...]) -> list[int]:
    return [16 if size < 0 else size for size in shape]


def check_shape(tensor: TensorSpec, shape: tuple[int, ...], where: str) -> None:
    fits = len(shape) == len(tensor.shape) and all(
        size >= 0 and wanted in (-1, size) for size, wanted in zip(shape, tensor.shape, strict=True)
    )
    if not fits:
        raise InputRefused(
            f"{where}: input {tensor.name} takes the shape {list(tensor.shape)}"
            " (-1 is any size; no batch dimension)",
            value=str(list(shape)),
        )


def check_inputs(model: ModelInterface, names: Iterable[str], where: str) -> None:
    given = set(names)
    needed = {tensor.name for tensor in model.inputs if not tensor.optional}
    known = {tensor.name for tensor in model.inputs}
    for problem, wrong in (("lacks", needed - given), ("has unknown", given - known)):
        if wrong:
            raise InputRefused(
                f"{where} {problem} input {', '.join(sorted(wrong))}",
                next_step=f"model {model.name} takes {', '.join(sorted(known))}",
            )


def limits(dtype: np.dtype[Any]) -> tuple[float, float]:
    if dtype.kind in "iu":
        return np.iinfo(dtype).min, np.iinfo(dtype).max
    return float(np.finfo(dtype).min), float(np.finfo(dtype).max)


def bytes_array(elements: Sequence[bytes], shape: tuple[int, ...]) -> Tensor:
    array = np.empty(len(elements), dtype=np.object_)
    array[:] = elements
    return array.reshape(shape)
