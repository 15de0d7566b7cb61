"""Empty states, notices and errors: each says what to do next."""

from __future__ import annotations

from collections.abc import Sized
from typing import Any

import structlog
from dash import dcc, html
from dash.development.base_component import Component

from autotune.core.errors import AutotuneError, StoreFailed


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


def newest(found: Sized, most: int) -> Component | None:
    """Below a list that has as much as it may: there may be more."""
    if len(found) < most:
        return None
    return html.P(f"The newest {most:,} are listed.", className="quiet below")


def failure(error: Exception) -> Component:
    """What was refused or could not be done; what nobody is told over the network (where the
    database is, what nobody expected) is told to the log. ``data-passes``: dashboard.js takes it
    away when the database is back."""
    log = structlog.get_logger("autotune.web")
    if not isinstance(error, AutotuneError):
        log.error("failed", exc_info=error)
        return notice("This did not work.", html.P("The log says why."), kind="bad")
    if not isinstance(error, StoreFailed):
        return refusal(error)
    log.error("failed", error=str(error))
    words = f"{error.told[:1].upper()}{error.told[1:]}."
    passes: Any = {"data-passes": ""}
    return html.Div(html.Strong(words), className="notice bad", role="alert", **passes)


def not_found(path: str) -> Component:
    return html.Div(
        [
            html.H1("There is no such page", tabIndex=-1),
            empty(path, "Go to ", dcc.Link("the studies", href="/"), "."),
        ],
        className="lost",
    )
