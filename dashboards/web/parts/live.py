"""Pages that follow what they show: asked every so often, drawn again only when it is another."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

from dash import Dash, Input, Output, State, ctx, dcc, html, no_update
from dash.development.base_component import Component

from autotune.service_ports import Desks
from dashboards.web.parts.acts import ACTED
from dashboards.web.parts.callbacks import answers

EVERY_MS = 2500


def place(name: str, asked: Any = "", *, first: Any = None, every_ms: int = EVERY_MS) -> Component:
    """Where it stands. ``asked`` is what `watch`'s functions are given; ``first`` what stands there
    at once."""
    waiting = html.P("Reading …", className="quiet")
    return html.Div(
        [
            html.Div(waiting if first is None else first, id=f"{name}-shown"),
            dcc.Store(id=f"{name}-asked", data=asked),
            dcc.Store(id=f"{name}-stamp"),
            dcc.Interval(id=f"{name}-tick", interval=every_ms),
        ]
    )


def watch(
    dash_app: Dash,
    desks: Desks,
    name: str,
    read: Callable[[Desks, Any], Any],
    show: Callable[[Any], Any],
) -> None:
    """``read`` what there is now, cheaply; ``show`` it where its `repr` has changed. Whatever was
    done by a button is seen at once."""

    @answers(
        dash_app,
        Output(f"{name}-shown", "children"),
        Output(f"{name}-stamp", "data"),
        Input(f"{name}-tick", "n_intervals"),
        Input(f"{name}-asked", "data"),
        Input(ACTED, "data"),
        State(f"{name}-stamp", "data"),
    )
    def look(_tick: int | None, asked: Any, _acted: int, before: str | None) -> tuple[Any, Any]:
        found = read(desks, asked)
        stamp = hashlib.sha256(repr(found).encode()).hexdigest()[:16]
        if stamp == before and ctx.triggered_id != f"{name}-asked":
            return no_update, no_update
        return show(found), stamp
