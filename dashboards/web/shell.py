"""What stands around every page: skip link, navigation, theme switch, what went wrong."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import unquote

from dash import ClientsideFunction, Dash, Input, Output, dcc, html, set_props
from dash.development.base_component import Component

from autotune.core.errors import InputRefused, StoreFailed
from autotune.service_ports import Desks
from dashboards.web.identity import current
from dashboards.web.parts import acts, notes
from dashboards.web.parts.callbacks import answers
from dashboards.web.parts.words import aria
from dashboards.web.routing import Page, find

PAGE, PROBLEM, URL, WHO = "page", "problem", "url", "who"
"""Ids that every page may rely on: where pages stand, what went wrong, the address, who looks."""


def shell(pages: Sequence[Page], title: str) -> Component:
    return html.Div(
        [
            dcc.Location(id=URL, refresh="callback-nav"),
            html.A("Skip to the page", href="#page", className="skip"),
            html.Header(
                [
                    dcc.Link(title, href="/", className="brand"),
                    html.Nav(_links(pages), id="navigation", **aria(label="Pages")),
                    html.Button(
                        "Theme", id="theme", className="theme", title="Light, dark or the system's"
                    ),
                    html.Div(id=WHO, className="who"),
                ],
                className="bar",
            ),
            html.Div(id=PROBLEM, className="problem", **aria(live="assertive")),
            html.Div(id="no-answer", className="no-answer", **aria(live="assertive")),
            html.Main(html.P("Loading …", className="quiet"), id=PAGE, tabIndex=-1),
            dcc.Store(id="title"),
            *acts.place(),
        ],
        className="shell",
    )


def _links(pages: Sequence[Page]) -> list[Component]:
    return [dcc.Link(page.nav, href=page.path, className="nav") for page in pages if page.nav]


def register(dash_app: Dash, desks: Desks, pages: Sequence[Page], title: str) -> None:
    @answers(
        dash_app,
        Output(PAGE, "children"),
        Output("title", "data"),
        Output(PROBLEM, "children"),
        Input(URL, "pathname"),
        Input(URL, "search"),
    )
    def show(path: str | None, query: str | None) -> tuple[Component, str, None]:
        shown, words = page_at(pages, desks, unquote(path or "/"), query or "")
        return shown, f"{words} · {title}", None

    @answers(dash_app, Output(WHO, "children"), Input(WHO, "id"))
    def know(_id: str) -> Any:
        return who_looks()

    acts.register(dash_app, desks, {name: act for page in pages for name, act in page.acts.items()})
    dash_app.clientside_callback(  # type: ignore[no-untyped-call]
        ClientsideFunction("autotune", "arrived"),
        Output(PAGE, "data-title"),
        Input("title", "data"),
    )


def who_looks() -> list[Component]:
    """Whose session it is, with the way out; nothing where no token is asked for."""
    who = current()
    if who is None or not who.token:
        return []
    out = html.Button("Log out", type="submit", className="theme")
    return [
        html.Span(f"{who.name} ({who.role})", className="quiet"),
        html.Form(out, action="/logout", method="post"),
    ]


def page_at(
    pages: Sequence[Page], desks: Desks, path: str, query: str = ""
) -> tuple[Component, str]:
    """A page's content and title; what it refuses is told in its place."""
    found = find(pages, path, query)
    if found is None:
        return notes.not_found(path), "There is no such page"
    page, asked = found
    try:
        return page.layout(desks, asked), page.title
    except (InputRefused, StoreFailed) as error:
        return html.Div([html.H1(page.title, tabIndex=-1), notes.failure(error)]), page.title


def tell(error: Exception) -> Any:
    """Dash's ``on_error`` (Dash itself would answer 500, and say nowhere why)."""
    set_props(PROBLEM, {"children": notes.failure(error)})
