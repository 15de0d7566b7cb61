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

PERCENTILE = 99.99
_BINS = {CalibrationMethod.ENTROPY: 1024, CalibrationMethod.PERCENTILE: 2048}
_LEVELS = 128
"""Non-negative values of an int8: the entropy calibrator looks at ranges of so many bins or more,
from an eighth of the whole up."""


class Calibrator:
    """Ranges of one prepared graph for one form, by any method; each feed is run once a method."""

    def __init__(self, prepared: Prepared, form: Form, feeds: Sequence[Feed], folder: Path) -> None:
        self._prepared, self._form, self._feeds, self._folder = prepared, form, feeds, folder
        self._spans: Spans | None = None

    def ranges(self, method: CalibrationMethod) -> Ranges:
        """Raises what ONNX Runtime raises where the graph cannot be calibrated."""
        with quiet():
            if self._spans is None:
                self._spans = self._smallest_and_largest()
            endless = {name for name, span in self._spans.items() if not np.isfinite(span).all()}
            finite = {name: span for name, span in self._spans.items() if name not in endless}
            if method is not CalibrationMethod.MINMAX:
                finite = self._by_histogram(method, finite)
            file = self._folder / f"{self._form}-{method}.json"
            save_tensors_data(_tensors_data(method, finite), file)
        return Ranges(method=method, file=file, endless=frozenset(endless))

    def _smallest_and_largest(self) -> Spans:
        calibrator = self._calibrator(CalibrationMethod.MINMAX)
        calibrator.collect_data(_Reader(self._feeds))
        return _spans(calibrator.compute_data())

    def _by_histogram(self, method: CalibrationMethod, spans: Spans) -> Spans:
        """The calibrator is given empty histograms of the known spans, and one feed at a time: by
        itself it keeps all tensors of all feeds, and widens a histogram bin by bin."""
        calibrator = self._calibrator(method)
        collector = EntropyCollector(
            method=method.value,
            symmetric=method is CalibrationMethod.PERCENTILE,
            num_bins=_BINS[method],
            num_quantized_bins=_LEVELS,
            percentile=PERCENTILE,
            scenario="same",
        )
        collector.histogram_dict = {name: _empty(method, *span) for name, span in spans.items()}
        calibrator.collector = collector
        calibrator.tensors_to_calibrate = set(spans)
        for feed in self._feeds:
            calibrator.collect_data(_Reader([feed]))
        return _spans(calibrator.compute_data())

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
        for name, data in found.items()
    }


def _tensors_data(method: CalibrationMethod, spans: Spans) -> Any:
    return TensorsData(
        ORT_METHODS[method],
        {
            name: TensorData(lowest=np.array(low), highest=np.array(high))
            for name, (low, high) in spans.items()
        },
    )


def _empty(method: CalibrationMethod, low: Any, high: Any) -> tuple[Any, ...]:
    """A histogram without a value, as ONNX Runtime's collector keeps it."""
    bins = _BINS[method]
    top = np.float32(max(abs(low), abs(high)) or 1.0)
    start = 0.0 if method is CalibrationMethod.PERCENTILE else -top
    edges = np.linspace(start, top, bins + 1, dtype=np.float32)
    counts = np.zeros(bins, dtype=np.int64)
    return (counts, edges, low, high) if start == 0.0 else (counts, edges, low, high, top)
