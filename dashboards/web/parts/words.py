"""Times, durations and numbers as people read them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from dash import html
from dash.development.base_component import Component

UNKNOWN = "–"


def moment(seconds: float | None) -> str:
    """``2026-11-30 21:08 UTC``."""
    if seconds is None:
        return UNKNOWN
    return datetime.fromtimestamp(seconds, tz=UTC).strftime("%Y-%m-%d %H:%M UTC")


def when(seconds: float | None) -> Component:
    """A moment as a time element: dashboard.js shows it in the reader's own zone."""
    if seconds is None:
        return html.Span(UNKNOWN)
    exact = datetime.fromtimestamp(seconds, tz=UTC)
    return html.Time(moment(seconds), dateTime=exact.isoformat(timespec="seconds"))


def duration(seconds: float | None) -> str:
    """``38 s``, ``4 min 10 s``, ``2 h 5 min``, ``3 d 4 h``."""
    if seconds is None:
        return UNKNOWN
    whole = max(round(seconds), 0)
    for unit, size, lesser, part in (("d", 86400, "h", 3600), ("h", 3600, "min", 60)):
        if whole >= size:
            return _two(whole // size, unit, whole % size // part, lesser)
    return _two(whole // 60, "min", whole % 60, "s") if whole >= 60 else f"{whole} s"


def _two(many: int, unit: str, rest: int, lesser: str) -> str:
    return f"{many} {unit}" + (f" {rest} {lesser}" if rest else "")


def count(number: int, one: str, more: str = "") -> str:
    """``1 trial``, ``1,240 trials``."""
    return f"{number:,} {one if number == 1 else more or one + 's'}"


def aria(**said: str) -> Any:
    """Attributes for those who hear the page: ``**aria(label="Trials")``."""
    return {f"aria-{name.rstrip('_')}": text for name, text in said.items()}
