"""Finding the ranges of activations, with memory for the tensors of one request alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from autotune.adapters.variants import graphs
from autotune.adapters.variants.entropy import EntropyCollector
from autotune.adapters.variants.ort import (
    CalibrationDataReader,
    QDQRegistry,
    QLinearOpsRegistry,
    TensorData,
    TensorsData,
    create_calibrator,
    save_tensors_data,
)
from autotune.adapters.variants.prepare import Prepared
from autotune.adapters.variants.quantize import ORT_METHODS, Form, Ranges
from autotune.adapters.variants.quiet import quiet
from autotune.core.study import CalibrationMethod

Feed: TypeAlias = Mapping[str, NDArray[Any]]
Spans: TypeAlias = dict[str, tuple[Any, Any]]
"""The smallest and largest value of each tensor."""
Histograms: TypeAlias = dict[str, tuple[Any, ...]]

PERCENTILE = 99.99
HISTOGRAM_FEEDS = 32
"""Requests that histograms are made of, spread over all: their ends are those of all, and counting
the values of every tensor takes longer than running the model."""
_BINS = 4096
_ENTROPY_BINS = 1024
_LEVELS = 128
"""Non-negative values of an int8: the entropy calibrator looks at ranges of so many bins or more,
from an eighth of the whole up."""


class Calibrator:
    """Ranges of one prepared graph for one form, by any method; ``feeds`` are run once for their
    ends, and some of them once more for their histograms."""

    def __init__(self, prepared: Prepared, form: Form, feeds: Sequence[Feed], folder: Path) -> None:
        self._prepared, self._form, self._feeds, self._folder = prepared, form, feeds, folder
        self._spans: Spans | None = None
        self._histograms: Histograms | None = None

    def ranges(self, method: CalibrationMethod) -> Ranges:
        """Raises what ONNX Runtime raises where the graph cannot be calibrated."""
        with quiet():
            spans = self._smallest_and_largest()
            endless = {name for name, span in spans.items() if not np.isfinite(span).all()}
            finite = {name: span for name, span in spans.items() if name not in endless}
            if method is not CalibrationMethod.MINMAX:
                finite = self._narrowed(method, finite)
            file = self._folder / f"{self._form}-{method}.json"
            save_tensors_data(_tensors_data(method, finite), file)
        return Ranges(method=method, file=file, endless=frozenset(endless))

    def _smallest_and_largest(self) -> Spans:
        if self._spans is None:
            calibrator = self._calibrator(CalibrationMethod.MINMAX)
            calibrator.collect_data(_Reader(self._feeds))
            self._spans = _spans(calibrator.compute_data().items())
        return self._spans

    def _narrowed(self, method: CalibrationMethod, spans: Spans) -> Spans:
        percentile = method is CalibrationMethod.PERCENTILE
        collector = _collector(method)
        collector.histogram_dict = {
            name: _folded(*kept) if percentile else _coarser(*kept)
            for name, kept in self._counted(spans).items()
        }
        found = collector.compute_collection_result()
        return {
            name: (np.float32(low), np.float32(high)) for name, (low, high, *_) in found.items()
        }

    def _counted(self, spans: Spans) -> Histograms:
        """Histograms of the known spans, filled with one request at a time: by itself ONNX
        Runtime's calibrator keeps all tensors of all requests, and widens a histogram bin by
        bin."""
        if self._histograms is None:
            calibrator = self._calibrator(CalibrationMethod.ENTROPY)
            calibrator.collector = _collector(CalibrationMethod.ENTROPY)
            calibrator.collector.histogram_dict = {
                name: _empty(*span) for name, span in spans.items()
            }
            calibrator.tensors_to_calibrate = set(spans)
            step = -(-len(self._feeds) // HISTOGRAM_FEEDS)
            for feed in self._feeds[::step]:
                calibrator.collect_data(_Reader([feed]))
            self._histograms = calibrator.collector.histogram_dict
        return self._histograms

    def _calibrator(self, method: CalibrationMethod) -> Any:
        every = sorted({*QLinearOpsRegistry, *QDQRegistry})
        return create_calibrator(
            self._prepared.path,
            every if self._form is Form.CPU else list(graphs.HEAVY),
            augmented_model_path=str(self._folder / "augmented.onnx"),
            calibrate_method=ORT_METHODS[method],
            use_external_data_format=self._prepared.large,
        )


class _Reader(CalibrationDataReader):  # type: ignore[misc]  # onnxruntime has no types
    def __init__(self, feeds: Sequence[Feed]) -> None:
        self._left: Iterator[Feed] = iter(feeds)

    def get_next(self) -> Feed | None:
        return next(self._left, None)


def _spans(found: Any) -> Spans:
    return {
        name: (np.float32(np.min(data.range_value[0])), np.float32(np.max(data.range_value[1])))
        for name, data in found
    }


def _tensors_data(method: CalibrationMethod, spans: Spans) -> Any:
    return TensorsData(
        ORT_METHODS[method],
        {
            name: TensorData(lowest=np.array(low), highest=np.array(high))
            for name, (low, high) in spans.items()
        },
    )


# ------------------------------------------------------------------------------------- histograms
def _collector(method: CalibrationMethod) -> EntropyCollector:
    return EntropyCollector(
        method=method.value,
        symmetric=method is CalibrationMethod.PERCENTILE,
        num_bins=_BINS,
        num_quantized_bins=_LEVELS,
        percentile=PERCENTILE,
        scenario="same",
    )


def _empty(low: Any, high: Any) -> tuple[Any, ...]:
    """A histogram without a value, as ONNX Runtime's collector keeps it: counts, edges, and the
    ends, the largest of which is the histogram's own on both sides."""
    top = np.float32(max(abs(low), abs(high)) or 1.0)
    edges = np.linspace(-top, top, _BINS + 1, dtype=np.float32)
    return (np.zeros(_BINS, dtype=np.int64), edges, low, high, top)


def _coarser(counts: Any, edges: Any, *ends: Any) -> tuple[Any, ...]:
    """The same in fewer bins: the entropy calibrator's time grows with their square."""
    each = _BINS // _ENTROPY_BINS
    return (counts.reshape(-1, each).sum(axis=1), edges[::each], *ends)


def _folded(counts: Any, edges: Any, low: Any, high: Any, _top: Any) -> tuple[Any, ...]:
    """The same of the absolute values."""
    middle = _BINS // 2
    return (counts[middle:] + counts[:middle][::-1], edges[middle:], low, high)
