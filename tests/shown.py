"""What a Dash component shows: its text, its links, its parts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dash.development.base_component import Component


def walk(shown: Any) -> Iterator[Any]:
    """Every component and text in it, in the order of the page."""
    if isinstance(shown, list | tuple):
        for part in shown:
            yield from walk(part)
    elif isinstance(shown, Component):
        yield shown
        yield from walk(getattr(shown, "children", None))
    elif shown is not None:
        yield str(shown)


def text_of(shown: Any) -> str:
    return " ".join(part.strip() for part in walk(shown) if isinstance(part, str))


def parts_of(shown: Any, kind: type) -> list[Any]:
    return [part for part in walk(shown) if isinstance(part, kind)]


def links_of(shown: Any) -> list[str]:
    found = (getattr(part, "href", None) for part in walk(shown) if isinstance(part, Component))
    return [href for href in found if href]
