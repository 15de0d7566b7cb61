"""Do the calibration samples look like the requests that the accuracy is judged on?"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from autotune.core.model_interface import Sample

_OUTSIDE = 0.1
"""Of the calibration's span: the ends of two samples of the same kind differ by as much."""
_DISTANCE = 0.25
"""Kolmogorov-Smirnov distance: the largest difference of the shares of values below any value."""
_PER_SAMPLE = 4096
_FEW = 8


def gaps(calibration: Sequence[Sample], evaluation: Sequence[Sample]) -> tuple[str, ...]:
    """What the calibration samples lack, in words, by input; empty where nothing is seen.

    Looked at are the ends of the values, their distribution and the sizes of each dimension.
    """
    found = []
    if len(calibration) < min(_FEW, len(evaluation)):
        found.append(f"calibration has only {len(calibration)} samples")
    for name in sorted({name for sample in evaluation for name in sample}):
        own = [sample[name] for sample in calibration if name in sample]
        theirs = [sample[name] for sample in evaluation if name in sample]
        if not own:
            found.append(f"no calibration sample has the input {name!r}")
            continue
        found += [f"input {name!r}: {gap}" for gap in _of_input(own, theirs)]
    return tuple(found)


def _of_input(own: list[NDArray[np.generic]], theirs: list[NDArray[np.generic]]) -> list[str]:
    found = _sizes(own, theirs)
    if own[0].dtype.kind not in "fiub" or theirs[0].dtype.kind not in "fiub":
        return found
    a, b = _pooled(own), _pooled(theirs)
    if not a.size or not b.size:
        return found
    slack = _OUTSIDE * float(a.max() - a.min())
    if b.min() < a.min() - slack or b.max() > a.max() + slack:
        found.append(
            f"evaluation values lie in {b.min():.4g} to {b.max():.4g}, calibration saw"
            f" {a.min():.4g} to {a.max():.4g}"
        )
    distance = _distance(a, b)
    if distance > _DISTANCE:
        found.append(
            "evaluation values are distributed otherwise than calibration's (medians"
            f" {np.median(b):.3g} and {np.median(a):.3g}, distance {distance:.2f} of 1)"
        )
    return found


def _distance(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    """Kolmogorov-Smirnov. (SciPy's own comes with parts of it that a bundle leaves out.)"""
    values = np.concatenate([a, b])
    below = [np.searchsorted(np.sort(each), values, side="right") / each.size for each in (a, b)]
    return float(np.abs(below[0] - below[1]).max())


def _sizes(own: list[NDArray[np.generic]], theirs: list[NDArray[np.generic]]) -> list[str]:
    if len({array.ndim for array in (*own, *theirs)}) > 1:
        return ["evaluation requests have another number of dimensions than calibration's"]
    seen, asked = [array.shape for array in own], [array.shape for array in theirs]
    for axis in range(own[0].ndim):
        low, high = min(s[axis] for s in seen), max(s[axis] for s in seen)
        least, most = min(s[axis] for s in asked), max(s[axis] for s in asked)
        if least < low or most > high:
            return [
                f"evaluation requests have sizes {least} to {most} in dimension {axis},"
                f" calibration saw {low} to {high}"
            ]
    return []


def _pooled(arrays: list[NDArray[np.generic]]) -> NDArray[np.float64]:
    """Values of all samples, evenly: the ends of each, and at most so many between."""
    parts: list[NDArray[np.float64]] = []
    for array in arrays:
        flat = array.astype(np.float64).ravel()
        flat = flat[np.isfinite(flat)]
        if flat.size:
            ends = np.array([flat.min(), flat.max()])
            parts += [flat[:: max(1, flat.size // _PER_SAMPLE)], ends]
    return np.concatenate(parts) if parts else np.empty(0)
