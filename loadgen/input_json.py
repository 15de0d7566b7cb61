"""perf_analyzer's input-data JSON."""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from autotune.core.errors import InputRefused
from autotune.core.model_interface import NUMPY_DTYPES, Sample, TensorSpec
from loadgen.input_checks import (
    Tensor,
    Wanted,
    bytes_array,
    check_inputs,
    check_shape,
    limits,
    shape_of,
)


def read_json(wanted: Wanted, path: Path) -> list[Sample]:
    """perf_analyzer's input-data JSON: ``{"data": [{"IN": [...]}, ...]}``; a tensor is a flat
    list, ``{"content": [...], "shape": [...]}`` or ``{"b64": "..."}``. The steps of a stream (a
    list in ``data``) become samples of their own. ``validation_data`` is not used."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as exc:
        raise InputRefused(
            "the input-data file cannot be read as JSON", value=str(path), next_step=str(exc)
        ) from exc
    entries = document.get("data") if isinstance(document, dict) else None
    if not isinstance(entries, list) or not entries:
        raise InputRefused(
            'an input-data file holds {"data": [{"INPUT": [...]}, ...]}', value=str(path)
        )
    steps = [step for entry in entries for step in (entry if isinstance(entry, list) else [entry])]
    return [_json_sample(wanted, step, f"{path}, data[{i}]") for i, step in enumerate(steps)]


def _json_sample(wanted: Wanted, step: object, where: str) -> Sample:
    if not isinstance(step, dict):
        raise InputRefused(f"{where} must map input names to tensors", value=type(step).__name__)
    check_inputs(wanted.model, step, where)
    return {
        name: _json_tensor(wanted.tensor(name), wanted, value, f"{where}, {name}")
        for name, value in step.items()
    }


def _json_tensor(tensor: TensorSpec, wanted: Wanted, value: object, where: str) -> Tensor:
    shape: tuple[int, ...] | None = None
    if isinstance(value, dict):
        shape = _json_shape(value.get("shape"), where)
        if "b64" in value:
            elements = _decoded(tensor, value["b64"], where)
            return _shaped(tensor, wanted, elements, shape, where)
        value = value.get("content")
    if not isinstance(value, list):
        raise InputRefused(f'{where} must be a list, {{"content": [...]}} or {{"b64": "..."}}')
    return _shaped(tensor, wanted, _elements(tensor, _flat(value), where), shape, where)


def _json_shape(value: object, where: str) -> tuple[int, ...] | None:
    if value is None:
        return None
    if not isinstance(value, list) or not all(type(size) is int and size >= 0 for size in value):
        raise InputRefused(f"{where}: shape is a list of sizes", value=str(value))
    return tuple(value)


def _flat(value: list[Any]) -> list[Any]:
    if any(isinstance(item, list) for item in value):
        return [
            leaf for item in value for leaf in _flat(item if isinstance(item, list) else [item])
        ]
    return value


def _is_whole(value: object) -> bool:
    return type(value) is int


_ACCEPTED: dict[str, tuple[str, Callable[[object], bool]]] = {
    "O": ("strings", lambda value: isinstance(value, str)),
    "b": ("true or false", lambda value: value in (True, False)),
    "i": ("whole numbers", _is_whole),
    "u": ("whole numbers", _is_whole),
    "f": ("numbers", lambda value: type(value) in (int, float)),
}
"""By the kind of the NumPy dtype: what a JSON value must be, in words and as a test."""


def _elements(tensor: TensorSpec, values: list[Any], where: str) -> Tensor:
    """A flat array of the tensor's datatype; every value must be one that it can hold."""
    dtype = np.dtype(NUMPY_DTYPES[tensor.datatype])
    words, accepts = _ACCEPTED[dtype.kind]
    for value in values:
        if not accepts(value):
            raise InputRefused(f"{where}: {tensor.datatype} takes {words}", value=repr(value))
    if dtype.kind == "O":
        return bytes_array([str(value).encode() for value in values], (len(values),))
    if dtype.kind in "iuf" and values:
        lowest, highest = limits(dtype)
        if min(values) < lowest or max(values) > highest:
            raise InputRefused(
                f"{where}: {tensor.datatype} holds {lowest:g} to {highest:g}",
                value=f"{min(values)} to {max(values)}",
            )
    return np.array(values, dtype=dtype)


def _decoded(tensor: TensorSpec, value: object, where: str) -> Tensor:
    """The raw little-endian elements of a base64 text. BYTES elements carry a four-byte length
    each, as Triton has them; bytes that do not parse so are taken as one element."""
    try:
        raw = base64.b64decode(str(value), validate=True)
    except (binascii.Error, ValueError) as exc:
        raise InputRefused(f"{where}: b64 is not valid base64", next_step=str(exc)) from exc
    if tensor.datatype == "BYTES":
        elements = _length_prefixed(raw) or [raw]
        return bytes_array(elements, (len(elements),))
    dtype = np.dtype(NUMPY_DTYPES[tensor.datatype])
    if len(raw) % dtype.itemsize:
        raise InputRefused(
            f"{where}: {tensor.datatype} has {dtype.itemsize} bytes per element", value=len(raw)
        )
    return np.frombuffer(raw, dtype=dtype)


def _length_prefixed(raw: bytes) -> list[bytes] | None:
    elements: list[bytes] = []
    at = 0
    while at < len(raw):
        end = at + 4 + int.from_bytes(raw[at : at + 4], "little")
        if at + 4 > len(raw) or end > len(raw):
            return None
        elements.append(raw[at + 4 : end])
        at = end
    return elements


def _shaped(
    tensor: TensorSpec, wanted: Wanted, elements: Tensor, shape: tuple[int, ...] | None, where: str
) -> Tensor:
    if shape is None:
        shape = shape_of(tensor, wanted)
    else:
        check_shape(tensor, shape, where)
    if elements.size != math.prod(shape):
        raise InputRefused(
            f"{where}: shape {list(shape)} needs {math.prod(shape)} elements", value=elements.size
        )
    return elements.reshape(shape)
