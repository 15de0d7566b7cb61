"""Configurations and their differences, as texts."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from dash import dcc, html
from dash.development.base_component import Component

from dashboards.web.parts.words import aria

_KINDS = {"+": "added", "-": "removed", "@": "hunk"}


def diff(text: str, label: str) -> Component:
    """A unified diff, its lines coloured by what they are."""
    lines: list[list[Any]] = [
        [html.Span(line, className=_kind(line)), "\n"] for line in text.splitlines()
    ]
    return html.Pre(
        [part for line in lines for part in line], className="diff", tabIndex=0, **aria(label=label)
    )


def _kind(line: str) -> str:
    return "hunk" if line.startswith(("---", "+++")) else _KINDS.get(line[:1], "kept")


def between(before: Mapping[str, str], after: Mapping[str, str], names: Sequence[str]) -> str:
    """The unified diff of configurations by model; ``names`` tells the two apart."""
    return "".join(
        line
        for model in sorted({*before, *after})
        for line in difflib.unified_diff(
            before.get(model, "").splitlines(keepends=True),
            after.get(model, "").splitlines(keepends=True),
            f"{model}/config.pbtxt ({names[0]})",
            f"{model}/config.pbtxt ({names[1]})",
        )
    )


def texts(configs: Mapping[str, str], name: str) -> Component:
    """Each model's config.pbtxt, to read and to copy."""
    return html.Div(
        [_text(model, text, f"{name}-{at}") for at, (model, text) in enumerate(configs.items())]
    )


def _text(model: str, text: str, name: str) -> Component:
    return html.Details(
        [
            html.Summary(f"{model}/config.pbtxt"),
            html.Div(
                [
                    html.Pre(text, id=name, tabIndex=0, **aria(label=f"{model}/config.pbtxt")),
                    dcc.Clipboard(target_id=name, className="copy", title="Copy"),
                ],
                className="code",
            ),
        ],
        className="config-details",
    )
