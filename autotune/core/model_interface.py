"""What a served model takes and gives, in Triton's words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Sample: TypeAlias = dict[str, NDArray[np.generic]]
"""One request's inputs by name, **without** the batch dimension."""

NUMPY_DTYPES: dict[str, str] = {
    "BOOL": "bool",
    "UINT8": "uint8",
    "UINT16": "uint16",
    "UINT32": "uint32",
    "UINT64": "uint64",
    "INT8": "int8",
    "INT16": "int16",
    "INT32": "int32",
    "INT64": "int64",
    "FP16": "float16",
    "FP32": "float32",
    "FP64": "float64",
    "BYTES": "object",
}
"""Triton datatype (protocol v2) to NumPy dtype name. BF16 has no NumPy dtype."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """A tensor of a served model: ``shape`` has no batch dimension; -1 is dynamic."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    optional: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInterface:
    """``batched`` says whether requests carry a leading batch dimension (max_batch_size > 0)."""

    name: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    batched: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where a server listens: ``host:port`` without a scheme, metrics as a URL or None."""

    http: str
    grpc: str
    metrics_url: str | None = None
