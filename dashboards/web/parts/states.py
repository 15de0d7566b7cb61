"""Badges of states: a word, and a colour that repeats it."""

from __future__ import annotations

from enum import StrEnum

from dash import html
from dash.development.base_component import Component

from autotune.core.standing import Standing
from dashboards.figures.draw import MARKS

_GOOD = {"done", "meets", "better", "promoted", "in_service", "approved", "sent", "active", "holds"}
_BAD = {"failed", "misses", "worse", "rolled_back", "no_pick"}
_WARN = {
    "interrupted",
    "undecided",
    "tie",
    "in doubt",
    "proposed",
    "waiting",
    "paused",
    "missed",
    "likely",
}
_BUSY = {"running", "applying", "verifying"}


def badge(state: StrEnum | str) -> Component:
    """A study's, job's, run's or promotion's state, or a trial's standing."""
    return html.Span(str(state).replace("_", " "), className=f"badge {kind_of(str(state))}")


def kind_of(state: str) -> str:
    """good, bad, warn, busy, or quiet: what a state's colour says."""
    kinds = (("good", _GOOD), ("bad", _BAD), ("warn", _WARN), ("busy", _BUSY))
    return next((kind for kind, states in kinds if state in states), "quiet")


_GLYPHS = {
    "circle": "●",
    "triangle-up": "▲",
    "diamond": "◆",
    "diamond-open": "◇",
    "x": "✕",
    "square-open": "□",
    "line-ew-open": "—",
    "circle-open": "○",
}


def glyph(standing: Standing) -> str:
    """The mark that stands for it in plots."""
    return _GLYPHS[MARKS[standing][0]]
