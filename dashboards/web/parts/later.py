"""Parts of a page that are asked for when they are looked at, and when its plot stands: what is
above them is not kept waiting, and what nobody scrolls to is not made.

A plot says in its figure's ``meta`` what each of them is to show (`wanting`). When its place comes
into view, and whenever it is another, static/dashboard.js tells the part's store so; its callback
has `wanted` as its only input, and `place`, or what stands in it, as its output.
"""

from __future__ import annotations

from collections.abc import Mapping
from secrets import token_hex
from typing import Any

from dash import Input, Output, dcc, html
from dash.development.base_component import Component

from dashboards.figures.draw import Figure


def empty(name: str, content: Any = None) -> list[Component]:
    """With a key of its own: on a page that is made anew nothing was asked for yet. ``content``
    stands there at first."""
    named: Any = {"data-wants": _store(name)}
    return [
        html.Div(content, id=f"{name}-place", key=token_hex(4), className="later", **named),
        dcc.Store(id=_store(name)),
    ]


def place(name: str) -> Output:
    return Output(f"{name}-place", "children")


def wanted(name: str) -> Input:
    """What `wanting` gave for it; None before it was looked at."""
    return Input(_store(name), "data")


def wanting(figure: Figure, parts: Mapping[str, Mapping[str, Any]]) -> Figure:
    """A part is made anew where what is said of it here is another than before."""
    wants = {_store(name): dict(said) for name, said in parts.items()}
    return {**figure, "layout": {**figure["layout"], "meta": {"wants": wants}}}


def _store(name: str) -> str:
    return f"{name}-wanted"
