"""Plain data that JSON can say."""

from __future__ import annotations

import math
from typing import Any


def finite(value: Any) -> Any:
    """The same data with what JSON cannot say (infinity, not-a-number) as null, keys as text."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value
