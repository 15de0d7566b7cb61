"""A search space: parameters, the conditions between them, and combinations that cannot pay."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    name: str
