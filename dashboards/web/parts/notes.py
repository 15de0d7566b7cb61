"""Empty states, notices and errors: each says what to do next."""

from __future__ import annotations

from typing import Any

from dash import dcc, html
from dash.development.base_component import Component

from autotune.core.errors import AutotuneError


def empty(what: str, *next_step: Any) -> Component:
    """Nothing is there yet: says what, and what to do next."""
    return html.Div(
        [html.P(what, className="empty-what"), html.P(list(next_step), className="quiet")],
        className="empty",
    )


def command(text: str) -> Component:
    """A command to type."""
    return html.Code(text, className="command")


def notice(words: str, *more: Any, kind: str = "warn") -> Component:
    """``kind``: warn, bad or good."""
    return html.Div([html.Strong(words), *more], className=f"notice {kind}", role="status")


def refusal(error: AutotuneError) -> Component:
    """What was refused: the rule, the value, the next step."""
    got = "" if error.value is None else f" (got {error.value})"
    return html.Div(
        [
            html.Strong(f"{error.rule}{got}"),
            html.P(error.next_step) if error.next_step else None,
        ],
        className="notice bad",
        role="alert",
    )


def not_found(path: str) -> Component:
    return html.Div(
        [
            html.H1("There is no such page", tabIndex=-1),
            empty(path, "Go to ", dcc.Link("the studies", href="/"), "."),
        ],
        className="lost",
    )
