"""Two trials of a study side by side: what differs, in what they are and in how they fared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dash import Dash, Input, Output, dcc, html
from dash.development.base_component import Component

from autotune.core.comparison import Comparison
from autotune.core.errors import AutotuneError
from autotune.core.sla import Sla
from autotune.service_ports import Desks, StudyOutline
from dashboards.figures import draw
from dashboards.figures.data import Entry, split, step_split
from dashboards.figures.latency import draw_latencies
from dashboards.web.pages.trial import number_of, read
from dashboards.web.pages.trial_parts import (
    APART,
    href,
    in_turn,
    in_turn_table,
    versus,
    versus_table,
)
from dashboards.web.parts import cards, configs, notes
from dashboards.web.parts.callbacks import answers
from dashboards.web.parts.states import badge
from dashboards.web.parts.tables import Column, table
from dashboards.web.parts.words import UNKNOWN, aria
from dashboards.web.routing import Asked, Page


def layout(desks: Desks, asked: Asked) -> Component:
    outline = desks.studies.outline(asked["reference"])
    a, b = asked.get("a", "").strip(), asked.get("b", "").strip()
    content = (
        _both(desks, outline, number_of(a), number_of(b))
        if a and b
        else [notes.empty("Two trials are compared.", "Name both by their numbers, then Compare.")]
    )
    return html.Div([_head(outline), _choice(a, b), *content], className="compare")


def _head(outline: StudyOutline) -> Component:
    record = outline.record
    return html.Div(
        [
            html.Nav(
                [
                    dcc.Link("Studies", href="/"),
                    " / ",
                    dcc.Link(f"{record.name} (run {record.id})", href=f"/study/{record.id}"),
                    " / compare",
                ],
                className="eyebrow",
                **aria(label="Where this is"),
            ),
            html.H1("Compare two trials", tabIndex=-1),
        ]
    )


def _choice(a: str, b: str) -> Component:
    """A plain form: the address that it makes is this page's own."""
    return html.Form(
        [
            *(
                _number(name, title, value)
                for name, title, value in (("a", "Trial", a), ("b", "with trial", b))
            ),
            html.Button("Compare", type="submit", className="action main"),
        ],
        method="get",
        className="controls",
    )


def _number(name: str, title: str, value: str) -> Component:
    return html.Div(
        [
            html.Label(title, htmlFor=f"compare-{name}"),
            dcc.Input(
                id=f"compare-{name}",
                name=name,
                type="number",
                min=0,
                step=1,
                value=value,
                required=True,
            ),
        ],
        className="field narrow",
    )


def _both(desks: Desks, outline: StudyOutline, a: int, b: int) -> list[Component | None]:
    sla, study_id = outline.study.sla, outline.record.id
    one, other = (read(desks, study_id, number, sla, samples=False) for number in (a, b))
    return [
        cards.section("What they are", _candidates(study_id, one, other), name="candidates"),
        cards.section("Figures", _figures(one, other, outline), name="figures"),
        _compared(outline.comparisons, a, b, study_id),
        *_drawn(one, other, sla),
        cards.section(
            "Configurations",
            html.Div(html.P("Reading …", className="quiet"), id="compare-config"),
            name="configurations",
        ),
        dcc.Store(id="compare-of", data=[study_id, a, b]),
    ]


# -------------------------------------------------------------------------------- what they are
def _candidates(study_id: int, one: Entry, other: Entry) -> Component:
    before, after = one.candidate.to_json(), other.candidate.to_json()
    names = list(dict.fromkeys([*before, *after]))
    differing = [name for name in names if before.get(name) != after.get(name)]
    columns = (
        Column(key="name", title="Parameter"),
        Column(key="one", title=f"Trial {one.number}"),
        Column(key="other", title=f"Trial {other.number}"),
    )
    standings = {
        "name": "standing",
        "one": [
            dcc.Link(f"trial {one.number}", href=href(study_id, one.number)),
            " ",
            badge(one.standing),
        ],
        "other": [
            dcc.Link(f"trial {other.number}", href=href(study_id, other.number)),
            " ",
            badge(other.standing),
        ],
    }
    ordered = [*differing, *(name for name in names if name not in differing)]
    rows = [
        {
            "name": name,
            "one": str(before.get(name, UNKNOWN)),
            "other": str(after.get(name, UNKNOWN)),
            "class": "picked" if name in differing else "",
        }
        for name in ordered
    ]
    told = "They are the same candidate." if not differing else "What differs stands first, tinted."
    return html.Div(
        [
            html.P(told, className="quiet"),
            table("candidates", "Candidates", columns, [standings, *rows]),
        ]
    )


def _figures(one: Entry, other: Entry, outline: StudyOutline) -> Component:
    rows = versus(one, other, outline)
    if not rows:
        return notes.empty("Neither was measured.", one.why or other.why or "")
    return html.Div([html.P(APART, className="quiet"), versus_table(one, other, rows)])


def _compared(comparisons: Sequence[Comparison], a: int, b: int, study_id: int) -> Component:
    found = in_turn(comparisons, a, b)
    if not found:
        nothing = notes.empty(
            "They were not run against each other.",
            "Runs in turn, under the same arrivals, tell smaller differences apart: ",
            notes.command(f"autotune compare {study_id} {a} {b}"),
        )
        return cards.section("Runs of both in turn", nothing, name="compared")
    return cards.section("Runs of both in turn", in_turn_table(found, b), name="compared")


# ------------------------------------------------------------------------------------- drawn
def _drawn(one: Entry, other: Entry, sla: Sla) -> list[Component]:
    names = [(f"trial {entry.number}", entry) for entry in (one, other)]
    latency = draw_latencies([(name, entry.measurement) for name, entry in names], sla)
    shown = []
    if latency is not None:
        said = "Latency distributions of both trials, with the SLA’s limit"
        plot = cards.plot("compare-latency", said, figure=latency, tall=True)
        shown.append(cards.section("Latency, by the share of requests", plot, name="latencies"))
    steps = [(name, entry.steps) for name, entry in names]
    whole = [split(name, entry.measurement) for name, entry in names]
    where = (
        draw.draw_step_splits([step_split(name, found) for name, found in steps if found])
        if any(found for _, found in steps)
        else draw.draw_splits([each for each in whole if each is not None])
    )
    if where is not None:
        plot = cards.plot(
            "compare-split", "Mean time in queue and in compute of both", figure=where
        )
        shown.append(cards.section("Where the time goes", plot, name="splits"))
    return shown


def register(dash_app: Dash, desks: Desks) -> None:
    @answers(dash_app, Output("compare-config", "children"), Input("compare-of", "data"))
    def config(of: Sequence[int]) -> Any:
        study_id, a, b = of
        try:
            one, other = (desks.studies.config(study_id, number).config for number in (a, b))
        except AutotuneError as error:
            return notes.failure(error)
        text = configs.between(one, other, (f"trial {a}", f"trial {b}"))
        if not text:
            return html.P("They are the same.", className="quiet")
        return configs.diff(text, f"From trial {a} to trial {b}")


PAGE = Page(path="/study/{reference}/compare", title="Compare", layout=layout, register=register)
