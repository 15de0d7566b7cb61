"""What a page is, and which one a path names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias
from urllib.parse import parse_qsl

from dash import Dash
from dash.development.base_component import Component
from starlette.routing import compile_path

from autotune.service_ports import Desks
from dashboards.web.parts.acts import Act

Asked: TypeAlias = Mapping[str, str]
"""What an address says: the page path's parameters, and the query's under their own names."""


def _nothing(_dash_app: Dash, _desks: Desks) -> None:
    """A page without callbacks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """``path`` in FastAPI's words (``/study/{reference}``). ``layout`` builds the page anew for
    every visit and raises InputRefused where there is no such thing; ``register`` adds its
    callbacks once, when the application is made. ``nav`` is its word in the navigation (empty: it
    is not there). ``acts`` are what its buttons do, by names of their own (any page's buttons may
    name them)."""

    path: str
    title: str
    layout: Callable[[Desks, Asked], Component]
    register: Callable[[Dash, Desks], None] = _nothing
    nav: str = ""
    acts: Mapping[str, Act] = field(default_factory=dict)

    def asked(self, path: str) -> Asked | None:
        """The parameters of a path of this page; None if it is none."""
        pattern, _, _ = compile_path(self.path)
        found = pattern.match(path)
        return None if found is None else found.groupdict()


def find(pages: Sequence[Page], path: str, query: str = "") -> tuple[Page, Asked] | None:
    """The page of a path, with what the address says; None if there is none."""
    if "\0" in path:  # nothing is called so, and not every database can be asked for it
        return None
    plain = path.rstrip("/") or "/"
    for page in pages:
        asked = page.asked(plain)
        if asked is not None:
            return page, {**dict(parse_qsl(query.removeprefix("?"))), **asked}
    return None
