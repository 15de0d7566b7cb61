"""The table of a study's trials."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dash import Dash, Input, Output, State, dcc, html, no_update
from dash.development.base_component import Component

from autotune.core.standing import Standing
from autotune.service_ports import Desks, StudyDetail, TrialLine
from dashboards.figures.cloud import known_metrics
from dashboards.figures.draw import axis_title
from dashboards.figures.effects import value_words, varied
from dashboards.web.pages.study_parts import pick_of
from dashboards.web.parts import cards
from dashboards.web.parts.callbacks import answers
from dashboards.web.parts.tables import grid, height, number_column, text_column
from search_spaces.candidate import Value

SHOWN = (
    "p50_ms",
    "p95_ms",
    "p99_ms",
    "achieved_qps",
    "saturation_qps",
    "queue_ms",
    "compute_ms",
    "mean_batch",
    "utilization",
    "memory_mb",
    "sm_active",
    "power_w",
    "energy_j_per_1000",
    "cost_per_1000",
    "error_rate",
    "accuracy_drop",
)
_WORDS = {
    "utilization": "autotuneShare(params.value)",
    "sm_active": "autotuneShare(params.value)",
    "error_rate": "autotuneShare(params.value)",
    "accuracy_drop": "autotuneShare(params.value)",
}
_DIGITS = 5
_LETTER_PX, _BESIDE_PX = 8, 56
PLACE, PLACED = "trials-place", "trials-placed"
"""Where the grid stands, and whether it does (to ask the place itself would send all rows back)."""


def section() -> Component:
    """Without the grid: to make one takes as long as to draw a plot, which comes first."""
    return cards.section(
        "Trials",
        html.Div(id=PLACE, className="grid-place"),
        dcc.Store(id=PLACED),
        name="trials-section",
    )


def register(dash_app: Dash, desks: Desks) -> None:
    @answers(
        dash_app,
        Output(PLACE, "children"),
        Output(PLACED, "data"),
        Input("cloud-drawn", "data"),
        State("study-reference", "data"),
        State(PLACED, "data"),
        prevent_initial_call=True,
    )
    def place(version: str | None, reference: str, placed: bool | None) -> tuple[Any, Any]:
        if version is None or placed:
            return no_update, no_update
        detail = desks.studies.study(reference)
        return grid("trials", "Trials", columns_of(detail), rows_of(detail), row_id="id"), True

    @answers(
        dash_app,
        Output("trials", "columnDefs"),
        Output("trials", "rowData"),
        Output("trials-region", "style"),
        Input("cloud-drawn", "data"),
        State("study-reference", "data"),
        prevent_initial_call=True,
    )
    def fill(version: str | None, reference: str) -> tuple[Any, Any, Any]:
        """Of a grid that is there: what was sorted, filtered and scrolled to stays."""
        if version is None:
            return (no_update,) * 3
        detail = desks.studies.study(reference)
        return columns_of(detail), rows_of(detail), height(len(detail.lines))


def columns_of(detail: StudyDetail) -> list[Any]:
    parameters, known = varied(detail.lines), known_metrics(detail.lines)
    metrics = [metric for metric in SHOWN if metric in known]
    return [
        number_column("n", "Trial", pinned="left", width=92, cellRenderer="AutotuneTrial"),
        text_column("standing", "Standing", width=118, cellRenderer="AutotuneStanding"),
        *(_parameter(detail.lines, name) for name in parameters),
        *(
            number_column(
                metric,
                axis_title(metric),
                words=_WORDS.get(metric, "autotuneNumber(params.value)"),
                width=132,
            )
            for metric in metrics
        ),
        text_column("why", "Why", width=420, flex=1),
    ]


def _parameter(lines: Sequence[TrialLine], name: str) -> Any:
    values = [line.candidate.values[name] for line in lines if name in line.candidate.values]
    field = f"p {name}"
    width = min(max(130, _BESIDE_PX + _LETTER_PX * len(name)), 280)
    if all(_plain_number(value) for value in values):
        return number_column(field, name, width=width)
    return text_column(field, name, width=max(width, 150))


def _plain_number(value: Value) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def rows_of(detail: StudyDetail) -> list[dict[str, Any]]:
    """By the columns' fields; what is not known is missing. Why a trial meets the SLA stands on its
    own page, where there are many."""
    pick, study_id = pick_of(detail), detail.record.id
    return [_row(line, study_id, picked=line.number == pick) for line in detail.lines]


def _row(line: TrialLine, study_id: int, *, picked: bool) -> dict[str, Any]:
    row: dict[str, Any] = {
        "id": str(line.number),
        "n": line.number,
        "s": study_id,
        "standing": str(line.standing),
    }
    for name, value in line.candidate.values.items():
        row[f"p {name}"] = value if _plain_number(value) else value_words(value)
    for metric in SHOWN:
        if metric in line.values:
            row[metric] = float(f"{line.values[metric]:.{_DIGITS}g}")
    if line.standing is not Standing.MEETS:
        row["why"] = line.why
    if picked:
        row["pick"] = True
    return row
