"""What every source of request inputs must keep to: names, shapes, the bounds of a datatype."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from autotune.core.errors import InputRefused
from autotune.core.model_interface import NUMPY_DTYPES, ModelInterface, TensorSpec
from autotune.core.workload import InputSpec

Tensor: TypeAlias = NDArray[np.generic]

WORKLOAD_INPUTS = "workload.inputs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Requests for ``model`` as ``spec`` says, which stands under ``key`` in the study file."""

    model: ModelInterface
    spec: InputSpec
    key: str = WORKLOAD_INPUTS

    def tensor(self, name: str) -> TensorSpec:
        return next(tensor for tensor in self.model.inputs if tensor.name == name)


def shape_of(tensor: TensorSpec, wanted: Wanted) -> tuple[int, ...]:
    """The tensor's shape with every dynamic dimension given a size by the study."""
    given = wanted.spec.shapes.get(tensor.name)
    if given is None:
        if any(size < 0 for size in tensor.shape):
            raise InputRefused(
                f"input {tensor.name} has dynamic dimensions and no shape",
                value=str(list(tensor.shape)),
                next_step=f"set {wanted.key}.shapes: {{{tensor.name}: {_example(tensor.shape)}}}"
                f" (for an ONNX model by options: --shape {tensor.name}:"
                f"{','.join(map(str, _example(tensor.shape)))})",
            )
        return tensor.shape
    check_shape(tensor, tuple(given), f"{wanted.key}.shapes.{tensor.name}")
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


def check_tensor(tensor: TensorSpec, array: Tensor, shape: tuple[int, ...], where: str) -> None:
    """What an array that is given as it is must keep to; ``shape``: that of one request."""
    check_shape(tensor, shape, where)
    if tensor.datatype == "BYTES":
        if array.dtype.kind not in "SU":
            raise InputRefused(
                f"{where}: BYTES takes strings (dtype S or U)", value=str(array.dtype)
            )
        return
    wanted = np.dtype(NUMPY_DTYPES[tensor.datatype])
    if array.dtype != wanted:
        raise InputRefused(
            f"{where}: {tensor.datatype} takes dtype {wanted}",
            value=str(array.dtype),
            next_step=f"convert it with .astype('{wanted}')",
        )


def check_stated_shape(name: str, shape: tuple[int, ...], wanted: Wanted, where: str) -> None:
    """A shape that the study states as well must be the one that the data have."""
    stated = wanted.spec.shapes.get(name)
    if stated is not None and shape != tuple(stated):
        raise InputRefused(
            f"{where}: {wanted.key}.shapes says {list(stated)}", value=str(list(shape))
        )


def encoded(array: Tensor) -> Tensor:
    """Strings of dtype S or U as an array of bytes objects."""
    if array.dtype.kind == "U":
        array = np.char.encode(array.astype(np.str_), "utf-8")
    return bytes_array(array.ravel().tolist(), array.shape)
