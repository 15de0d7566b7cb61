"""Comparing two answers of a model, value by value."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from autotune.core.errors import OutputsDiffer
from autotune.core.model_interface import ModelInterface, TensorSpec
from autotune.core.study import Tolerance

Array: TypeAlias = NDArray[Any]
Outputs: TypeAlias = dict[str, Array]
"""A model's outputs by name, with the batch dimension."""

TOLERANCES = {
    "FP16": Tolerance(rtol=1e-2, atol=1e-2),
    "FP32": Tolerance(rtol=1e-3, atol=1e-4),
    "FP64": Tolerance(rtol=1e-6, atol=1e-9),
}
"""Per datatype. Another batch size, thread count or release of ONNX Runtime adds the same products
in another order, which moves a result by up to about the number of terms times the datatype's
epsilon: for FP32 (epsilon 1.2e-7) and sums of thousands of terms 1e-3, for FP16 (epsilon 1e-3,
summed in FP32) some epsilons. What the check is for is off by the size of the values themselves.
Integers, booleans and strings must be equal."""

NEXT_STEP = (
    "Do not trust any timing of this server. A known cause: NumPy 2 or later in the server's own"
    " environment corrupts Triton's Python backend (python_backend#384); it needs numpy<2 or"
    " DLPack. If it is only rounding, say so in the study: tolerance: {rtol: ..., atol: ...}."
)


def compare(
    model: ModelInterface, served: Outputs, expected: Outputs, tolerance: Tolerance, where: str
) -> float:
    """The largest absolute difference over all outputs; OutputsDiffer if one is too large.

    Datatype and shape are compared first; NaN equals NaN and an infinity itself.
    """
    worst = 0.0
    for spec in model.outputs:
        own = _reshaped(expected[spec.name], served[spec.name], spec)
        worst = max(worst, _compare_output(spec, served[spec.name], own, tolerance, where))
    return worst


def _reshaped(expected: Array, served: Array, spec: TensorSpec) -> Array:
    """A tensor with no dimension but the batch is declared as [1] and reshaped by Triton."""
    scalar = spec.shape == (1,) and expected.ndim + 1 == served.ndim
    return expected.reshape(served.shape) if scalar and expected.size == served.size else expected


def _compare_output(
    spec: TensorSpec, served: Array, expected: Array, tolerance: Tolerance, where: str
) -> float:
    for what, one, other in (
        ("datatype", kind_of(served), kind_of(expected)),
        ("shape", served.shape, expected.shape),
    ):
        if one != other:
            raise OutputsDiffer(
                f"output {spec.name!r} ({where}): the server's {what} is {one},"
                f" the model's {other}",
                next_step=NEXT_STEP,
            )
    if served.dtype.kind == "f":
        distance, wrong = _float_distance(spec, served, expected, tolerance)
    else:
        wrong = _texts(served) != _texts(expected)
        distance = wrong.astype(np.float64)
    if wrong.any():
        worst = np.unravel_index(int(np.argmax(np.where(wrong, distance, -1.0))), wrong.shape)
        raise OutputsDiffer(
            f"output {spec.name!r} ({where}): the server answers {served[worst]!s} where the model"
            f" run directly gives {expected[worst]!s}, at index {[int(i) for i in worst]} of shape"
            f" {list(served.shape)}; {int(wrong.sum())} of {wrong.size} values differ",
            next_step=NEXT_STEP,
        )
    return float(distance.max(initial=0.0))


def kind_of(array: Array) -> str:
    return "string" if array.dtype.kind in "OSU" else array.dtype.name


def _texts(array: Array) -> Array:
    """Strings as bytes, whichever way they came; other arrays as they are."""
    if array.dtype.kind not in "OSU":
        return array
    values = [v.encode("utf-8", "surrogateescape") if isinstance(v, str) else v for v in array.flat]
    return np.array(values, dtype=object).reshape(array.shape)


def _float_distance(
    spec: TensorSpec, served: Array, expected: Array, tolerance: Tolerance
) -> tuple[Array, Array]:
    default = TOLERANCES.get(spec.datatype, TOLERANCES["FP32"])
    rtol = tolerance.rtol if tolerance.rtol is not None else default.rtol
    atol = tolerance.atol if tolerance.atol is not None else default.atol
    a, b = served.astype(np.float64), expected.astype(np.float64)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(invalid="ignore"):
        distance = np.where(same, 0.0, np.abs(a - b))
        distance = np.where(np.isnan(distance), np.inf, distance)
        wrong = ~same & ~(distance <= (atol or 0.0) + (rtol or 0.0) * np.abs(b))
    # An infinity on one side only is infinitely far, whatever share of it is allowed.
    return distance, wrong | np.isinf(distance)
