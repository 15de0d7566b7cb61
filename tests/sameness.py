"""Equality for what dataclasses cannot compare: NaN equals NaN, arrays compare by their bytes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from search_spaces.candidate import Candidate


def comparable(value: Any) -> Any:
    if isinstance(value, Candidate):
        return ("candidate", value.key)
    if isinstance(value, np.ndarray):
        return (value.dtype.str, value.shape, value.tobytes())
    if dataclasses.is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value)]
        return (type(value).__name__, [(n, comparable(getattr(value, n))) for n in names])
    if isinstance(value, Mapping):
        return sorted((repr(key), comparable(item)) for key, item in value.items())
    if isinstance(value, list | tuple):
        return [comparable(item) for item in value]
    if isinstance(value, float):
        return ("float", (value + 0.0).hex())  # -0.0 equals 0.0; SQLite does not keep its sign
    return value
