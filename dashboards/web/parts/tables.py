"""Small tables for reading, and grids for many rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import dash_ag_grid
from dash import html
from dash.development.base_component import Component

from dashboards.web.parts.words import aria


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """``sortable`` makes its heading a button, with id ``{"sort": <table's name>, "by": key}``."""

    key: str
    title: str
    number: bool = False
    sortable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Sorted:
    """By which column, and which way, a table's rows stand."""

    by: str
    down: bool = False


def table(  # noqa: PLR0913 - what a table is, named apart
    name: str,
    label: str,
    columns: Sequence[Column],
    rows: Sequence[Mapping[str, Any]],
    *,
    order: Sorted | None = None,
    dense: bool = False,
) -> Component:
    """A table for reading; on a narrow screen each row becomes a card of its own, with the
    columns' titles beside the values, unless it is ``dense``. Rows map columns' keys to content,
    ``class`` to a class of the row; the first column names the row."""
    return html.Div(
        html.Table(
            [
                html.Thead(html.Tr([_heading(name, column, order) for column in columns])),
                html.Tbody([_row(columns, row) for row in rows]),
            ],
            className="rows dense" if dense else "rows cards-when-narrow",
            **aria(label=label),
        ),
        className="scroll",
        tabIndex=0,
        role="region",
        **aria(label=label),
    )


def _heading(name: str, column: Column, order: Sorted | None) -> Component:
    classes = "number" if column.number else ""
    if not column.sortable:
        return html.Th(column.title, scope="col", className=classes)
    here = order is not None and order.by == column.key
    sort = {} if not here else aria(sort="descending" if order and order.down else "ascending")
    button = html.Button(column.title, id={"sort": name, "by": column.key}, type="button")
    return html.Th(button, scope="col", className=classes, **sort)


def _row(columns: Sequence[Column], row: Mapping[str, Any]) -> Component:
    first, *others = columns
    cells: list[Component] = [html.Th(row.get(first.key), scope="row")]
    for column in others:
        named: Any = {"data-title": column.title}
        classes = "number" if column.number else ""
        cells.append(html.Td(row.get(column.key), className=classes, **named))
    return html.Tr(cells, className=row.get("class", ""))


# ---------------------------------------------------------------------------------------- grids
ROW_PX, HEADINGS_PX = 32, 94


def grid(
    name: str,
    label: str,
    columns: Sequence[Mapping[str, Any]],
    rows: Sequence[Mapping[str, Any]],
    *,
    row_id: str,
) -> Component:
    """A grid of many rows: sorted, filtered and scrolled in the browser, by keyboard too. It is as
    high as its rows, up to a limit (the style sheet's). Later rows come from a callback
    (``rowData``, and ``style`` of ``<name>-region``, see `height`); ``row_id`` is the field, a
    text, that names a row, so that they leave what is selected and scrolled to as it is.
    """
    options: dict[str, Any] = {
        "suppressFieldDotNotation": True,
        "animateRows": False,
        "rowHeight": ROW_PX,
        "ensureDomOrder": True,
    }
    return html.Div(
        dash_ag_grid.AgGrid(
            id=name,
            columnDefs=list(columns),
            rowData=list(rows),
            defaultColDef={
                "sortable": True,
                "resizable": True,
                "filter": True,
                "minWidth": 70,
                "wrapHeaderText": True,
                "autoHeaderHeight": True,
            },
            dashGridOptions=options,
            getRowId=f"params.data['{row_id}']",
            style={"height": "100%", "width": "100%"},
            className="grid",
        ),
        id=f"{name}-region",
        className="grid-region",
        style=height(len(rows)),
        role="region",
        **aria(label=label),
    )


def height(rows: int) -> dict[str, str]:
    """The style of a grid's region: what its rows and headings take."""
    return {"height": f"{max(rows, 3) * ROW_PX + HEADINGS_PX}px"}


def number_column(field: str, title: str, *, words: str = "params.value", **more: Any) -> Any:
    """A column of numbers, right-aligned; ``words`` is a JavaScript expression of what is shown,
    made of functions of ``static/dashboard.js``."""
    return {
        "field": field,
        "headerName": title,
        "type": "rightAligned",
        "filter": "agNumberColumnFilter",
        "valueFormatter": {"function": words},
        **more,
    }


def text_column(field: str, title: str, **more: Any) -> Any:
    return {"field": field, "headerName": title, "filter": "agTextColumnFilter", **more}
