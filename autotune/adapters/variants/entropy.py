"""The range of a tensor by relative entropy, as ONNX Runtime and TensorRT choose it, in NumPy.

ONNX Runtime's own function gives the same thresholds and takes seconds for each tensor at as many
bins as the method needs: its default of 128 bins leaves it one range to choose from, the whole.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

from autotune.adapters.variants.ort import HistogramCollector, smooth_distribution


class EntropyCollector(HistogramCollector):  # type: ignore[misc]  # onnxruntime has no types
    """ONNX Runtime's collector with a quick choice of thresholds."""

    def get_entropy_threshold(
        self, histogram: tuple[Any, ...], num_quantized_bins: int
    ) -> tuple[Any, Any]:
        """The range whose quantized distribution is nearest to the true one: the least relative
        entropy over all symmetric ranges of ``num_quantized_bins`` bins or more (Migacz, "8-bit
        inference with TensorRT", GTC 2017)."""
        counts, edges, low, high = histogram[:4]
        middle = counts.size // 2
        widths = range(num_quantized_bins // 2, middle + 1)
        divergences = [_divergence(counts, middle, width, num_quantized_bins) for width in widths]
        best = widths[int(np.argmin(divergences))]
        chosen = edges[middle - best], edges[min(middle + best + 1, counts.size)]
        return max(chosen[0], low), min(chosen[1], high)


def _divergence(counts: NDArray[np.int64], middle: int, width: int, levels: int) -> float:
    """Of the range of ``width`` bins on each side of the middle, its outliers at its ends."""
    start, end = middle - width, min(middle + width + 1, counts.size)
    inside = counts[start:end]
    true = inside.copy()
    true[0] += counts[:start].sum()
    true[-1] += counts[end:].sum()
    per_level = inside.size // levels
    first = np.arange(levels) * per_level
    sums = np.add.reduceat(inside, first)
    filled = (true != 0).astype(np.int64)
    filled[levels * per_level :] = 0  # bins that no level covers stay empty in what is rounded
    taken = np.add.reduceat(filled, first)
    each = np.divide(sums, taken, out=np.zeros(levels), where=taken != 0).astype(np.int64)
    rounded = np.zeros(inside.size, dtype=np.int64)
    rounded[: levels * per_level] = np.repeat(each, per_level)
    p, q = smooth_distribution(true), smooth_distribution(rounded)
    if p is None or q is None:
        return float("inf")
    return float(special.rel_entr(p / p.sum(), q / q.sum()).sum())
