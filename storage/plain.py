"""Plain data: what goes into a JSON column, and comes out of it as it went in.

JSON has no NaN and no infinity (a database's own JSON functions refuse them), so such a number
stands as ``{"$float": "nan"}``. Mappings become dicts, tuples lists, NumPy scalars Python's;
whatever else JSON lacks (paths, dates) becomes its text.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

import numpy as np
from sqlalchemy import JSON, Dialect
from sqlalchemy.types import TypeDecorator

_TAG = "$float"
_NESTED = (dict, list)
"""What JSON makes of nested data: whatever else it makes is left as it is, and most of it is."""


def encode(value: object) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, float) and not math.isfinite(value):
        return {_TAG: repr(float(value))}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {str(key): encode(item) for key, item in value.items()}
    if isinstance(value, Sequence | set | frozenset) and not isinstance(value, bytes):
        return [encode(item) for item in value]
    return str(value)


def decode(value: Any) -> Any:
    if isinstance(value, dict):
        if len(value) == 1 and _TAG in value:
            return float(value[_TAG])
        return {key: decode(x) if type(x) in _NESTED else x for key, x in value.items()}
    if isinstance(value, list):
        return [decode(x) if type(x) in _NESTED else x for x in value]
    return value


def text(value: str) -> str:
    """A string that every database takes: NUL and lone surrogates are written out."""
    return value.encode("utf-8", "backslashreplace").decode().replace("\0", "\\x00")


class PlainJson(TypeDecorator[Any]):
    """A JSON column for plain data."""

    impl = JSON
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> Any:  # noqa: ARG002
        return encode(value)

    def process_result_value(self, value: Any, dialect: Dialect) -> Any:  # noqa: ARG002
        return decode(value)
