"""All studies, newest first."""

from __future__ import annotations

from dash import html
from dash.development.base_component import Component

from autotune.service_ports import Desks
from dashboards.web.parts import notes
from dashboards.web.routing import Asked, Page


def layout(desks: Desks, _asked: Asked) -> Component:
    found = desks.studies.studies()
    if not found:
        return html.Div(
            [
                html.H1("Studies", tabIndex=-1),
                notes.empty(
                    "No study has been run yet.",
                    "Run one: ",
                    notes.command("autotune tune study.yaml"),
                ),
            ]
        )
    return html.Div([html.H1("Studies", tabIndex=-1)])


PAGE = Page(path="/", title="Studies", layout=layout, nav="Studies")
