"""ONNX Runtime's own tools, imported in one place: its packages put folders of modules with names
like ``models`` and ``constants`` on `sys.path`, which is taken back here."""

from __future__ import annotations

from autotune.adapters.variants.quiet import quiet

with quiet():
    from onnxruntime.quantization import (
        CalibrationDataReader,
        CalibrationMethod,
        QuantFormat,
        QuantType,
        TensorData,
        TensorsData,
        create_calibrator,
        quant_pre_process,
        quantize_static,
        save_tensors_data,
    )
    from onnxruntime.quantization.calibrate import HistogramCollector
    from onnxruntime.quantization.quant_utils import smooth_distribution
    from onnxruntime.quantization.registry import QDQRegistry, QLinearOpsRegistry
    from onnxruntime.transformers.float16 import DEFAULT_OP_BLOCK_LIST, convert_float_to_float16

__all__ = [
    "DEFAULT_OP_BLOCK_LIST",
    "CalibrationDataReader",
    "CalibrationMethod",
    "HistogramCollector",
    "QDQRegistry",
    "QLinearOpsRegistry",
    "QuantFormat",
    "QuantType",
    "TensorData",
    "TensorsData",
    "convert_float_to_float16",
    "create_calibrator",
    "quant_pre_process",
    "quantize_static",
    "save_tensors_data",
    "smooth_distribution",
]
