"""The style sheet: the report's, with the theme's switch and what only pages have."""

from __future__ import annotations

import hashlib
from importlib import resources

from jinja2 import Environment, PackageLoader

PATH = "/style.css"


def sheet() -> str:
    """Light or dark by the system, or by ``data-theme`` on the document, which wins."""
    templates = Environment(loader=PackageLoader("dashboards", "templates"), autoescape=False)  # noqa: S701
    report = templates.get_template("report.css").render()
    light, dark = (
        templates.get_template(name).render().strip() for name in ("light.css", "dark.css")
    )
    chosen = (
        f':root[data-theme="light"] {{\n{light}\n  color-scheme: light;\n}}\n'
        f':root[data-theme="dark"] {{\n{dark}\n  color-scheme: dark;\n}}\n'
    )
    own = resources.files("dashboards.web").joinpath("static/dashboard.css").read_text("utf-8")
    return "\n".join([report, chosen, own])


def address(text: str) -> str:
    """Where it is served: with what it holds, so that a newer one is fetched anew."""
    return f"{PATH}?{hashlib.sha256(text.encode()).hexdigest()[:12]}"
