"""One thing that was looked at on this machine."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """``state`` is ok, warning or missing; ``required``: without it the embedded server cannot
    run here."""

    name: str
    state: str
    detail: str
    next_step: str = ""
    required: bool = False

    def to_json(self) -> dict[str, Any]:
        return asdict(self)
