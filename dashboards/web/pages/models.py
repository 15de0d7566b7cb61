"""Models that have schedules or promotions, and a model's history."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, tzinfo
from typing import Any
from urllib.parse import quote
from zoneinfo import ZoneInfo

from dash import ClientsideFunction, Dash, Input, Output, State, dcc, html, no_update
from dash.development.base_component import Component

from autotune.core.promotions import Promotion, PromotionState
from autotune.service_ports import Desks, ModelHistory, ModelLine
from dashboards.figures.data import label
from dashboards.figures.nights import draw_nights, metrics_of, points
from dashboards.web.pages.promotions import promotions_table
from dashboards.web.pages.run import candidate_words
from dashboards.web.pages.schedules import run_words, runs_table
from dashboards.web.pages.told import audit_listed
from dashboards.web.parts import cards, live, notes
from dashboards.web.parts.acts import button
from dashboards.web.parts.callbacks import answers
from dashboards.web.parts.tables import Column, table
from dashboards.web.parts.words import UNKNOWN, aria, count, when
from dashboards.web.routing import Asked, Page
from dashboards.web.shell import URL


def href(model: str) -> str:
    return f"/models/{quote(model, safe='')}"


# ------------------------------------------------------------------------------------------- list
def layout(_desks: Desks, _asked: Asked) -> Component:
    return html.Div([html.H1("Models", tabIndex=-1), live.place("models", every_ms=5000)])


def register(dash_app: Dash, desks: Desks) -> None:
    live.watch(dash_app, desks, "models", lambda d, _: d.promotions.lines(), listed)


def listed(found: Sequence[ModelLine]) -> Component:
    if not found:
        return notes.empty(
            "No model has a history yet.",
            "It begins with a schedule (",
            notes.command("autotune schedule add"),
            ") or a promotion (",
            notes.command("autotune promote"),
            ").",
        )
    columns = (
        Column(key="model", title="Model"),
        Column(key="champion", title="In service"),
        Column(key="since", title="Since"),
        Column(key="last", title="Last night"),
        Column(key="nights", title="Nights", number=True),
    )
    return table("models", "Models", columns, [_row(line) for line in found])


def _row(line: ModelLine) -> dict[str, Any]:
    champion = line.champion
    return {
        "model": dcc.Link(line.model, href=href(line.model)),
        "champion": "nothing that was promoted"
        if champion is None
        else [
            dcc.Link(f"promotion {champion.id}", href=f"/promotions/{champion.id}"),
            html.Small(candidate_words(champion.candidate), className="quiet under"),
        ],
        "since": UNKNOWN if champion is None else when(champion.applied_at),
        "last": UNKNOWN if line.last is None else run_words(line.last),
        "nights": f"{line.nights:,}",
    }


def in_service(champions: Sequence[Promotion]) -> Promotion | None:
    return next((each for each in champions if each.state is PromotionState.DONE), None)


# ---------------------------------------------------------------------------------------- history
def one(desks: Desks, asked: Asked) -> Component:
    model = asked["model"]
    history = desks.promotions.history(model)
    metrics = metrics_of(history.nights)
    limits = _limits(desks, history)
    return html.Div(
        [
            html.Nav(
                [dcc.Link("Models", href="/models"), f" / {model}"],
                className="eyebrow",
                **aria(label="Where this is"),
            ),
            html.H1(model, tabIndex=-1),
            _nights_plot(metrics, next((m for m in metrics if m in limits), None)),
            live.place("model", model, first=told(history)),
            dcc.Store(id="model-name", data=model),
            dcc.Store(id="model-zone"),
        ]
    )


def _limits(desks: Desks, history: ModelHistory) -> Mapping[str, float]:
    """The SLA's, of the schedule that ran last."""
    names = {night.schedule for night in history.nights[:1]}
    schedules = [view.schedule for view in desks.schedules.schedules()]
    asked = next((s.definition.get("sla") or {} for s in schedules if s.name in names), {})
    return {name: float(limit) for name, limit in asked.items() if isinstance(limit, int | float)}


def _nights_plot(metrics: Sequence[str], first: str | None) -> Component:
    if not metrics:
        nothing = notes.empty(
            "No night has measured its champion yet.",
            "After a schedule's first run its figures stand here, night by night.",
        )
        return cards.section("Night by night", nothing, name="nights")
    options = [{"label": label(metric), "value": metric} for metric in metrics]
    return cards.section(
        "Night by night",
        html.Div(
            [
                html.Label("Metric", htmlFor="model-metric"),
                dcc.Dropdown(
                    id="model-metric",
                    options=options,
                    value=first or metrics[0],
                    clearable=False,
                    searchable=False,
                ),
            ],
            className="field narrow",
        ),
        cards.plot(
            "model-nights",
            "A metric of the champion over its nights, with intervals; a table of the runs follows",
        ),
        name="nights",
    )


def told(history: ModelHistory) -> list[Component | None]:
    champion = in_service(history.champions)
    return [
        cards.section("In service", _champion(champion, history.model), name="champion"),
        cards.section("Runs", runs_table(history.nights), name="model-runs"),
        cards.section("Promotions", _promotions(history), name="model-promotions"),
        cards.section("What was done", audit_listed(history.audit), name="model-audit"),
    ]


def _champion(champion: Promotion | None, model: str) -> Component:
    if champion is None:
        return notes.empty(
            "Nothing of it that was promoted is in service.",
            "Propose a trial on its page, or have a schedule do so (",
            notes.command("--policy propose"),
            ").",
        )
    return html.Div(
        [
            cards.facts(
                [
                    (
                        "promotion",
                        dcc.Link(f"promotion {champion.id}", href=f"/promotions/{champion.id}"),
                    ),
                    ("candidate", candidate_words(champion.candidate)),
                    ("target", str(champion.target)),
                    ("since", [when(champion.applied_at), f" by {champion.decided_by}"]),
                ]
            ),
            html.Div([button("roll-back", model, "Roll back …")], className="actions below"),
        ]
    )


def _promotions(history: ModelHistory) -> Component:
    if not history.champions:
        return html.P("None has been in service yet.", className="quiet")
    return promotions_table(history.champions, "champions")


@dataclass(frozen=True, slots=True)
class _Drawn:
    figure: Any
    words: str


def register_one(dash_app: Dash, desks: Desks) -> None:
    live.watch(dash_app, desks, "model", lambda d, model: d.promotions.history(model), told)
    dash_app.clientside_callback(  # type: ignore[no-untyped-call]
        ClientsideFunction("autotune", "zone"),
        Output("model-zone", "data"),
        Input("model-zone", "id"),
    )

    @answers(
        dash_app,
        Output("model-nights", "figure"),
        Output("model-nights-note", "children"),
        Input("model-metric", "value"),
        Input("model-zone", "data"),
        Input("model-stamp", "data"),
        State("model-name", "data"),
    )
    def draw(
        metric: str | None, zone: str | None, _stamp: str | None, model: str
    ) -> tuple[Any, Any]:
        if metric is None or zone is None:
            return no_update, no_update
        drawn = _draw(desks, model, metric, zone)
        return drawn.figure, drawn.words

    @answers(
        dash_app,
        Output(URL, "pathname", allow_duplicate=True),
        Input("model-nights", "clickData"),
        prevent_initial_call=True,
    )
    def open_run(clicked: Mapping[str, Any] | None) -> Any:
        run = clicked and clicked["points"][0].get("customdata")
        return no_update if run is None else f"/runs/{run}"


def _draw(desks: Desks, model: str, metric: str, zone: str) -> _Drawn:
    history = desks.promotions.history(model)
    found = points(history.nights, metric)
    known, name = _zone(zone)
    limit = _limits(desks, history).get(metric)
    figure = draw_nights(found, metric, history.champions, limit=limit, zone=known)
    if figure is None:
        return _Drawn(cards.NOTHING, "No night knows it.")
    nights = count(len({point.run for point in found}), "night")
    return _Drawn(figure, f"{nights}; 95% intervals; times in {name}. Click a point for its run.")


def _zone(name: str) -> tuple[tzinfo, str]:
    """The reader's, where this machine knows it."""
    try:
        return ZoneInfo(name), name
    except (KeyError, ValueError, OSError):
        return UTC, "UTC"


PAGE = Page(path="/models", title="Models", layout=layout, register=register, nav="Models")
ONE = Page(path="/models/{model}", title="Model", layout=one, register=register_one)
