"""``autotune history``: what was in service of a model, and what was done about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime

import click
from rich.table import Table

from autotune.bootstrap.desk_promotions import history
from autotune.bootstrap.service import open_service
from autotune.cli.console import Console
from autotune.cli.options import db_option, json_option
from autotune.core.promotions import AuditEntry, Promotion
from autotune.core.schedules import NightRun
from autotune.service_ports import ModelHistory

_LONGEST_WORD = 32


@click.command(
    name="history",
    epilog="""\b
Examples:
  autotune history ocr
  autotune history ocr --diff
  autotune history ocr --json
""",
)
@click.argument("model")
@click.option(
    "--last",
    type=click.IntRange(min=1),
    default=20,
    show_default=True,
    help="How many of each to show.",
)
@click.option("--diff", is_flag=True, help="With the configurations' differences.")
@db_option
@json_option
def command(model: str, *, last: int, diff: bool, db: str, as_json: bool) -> None:
    """Show a model's champions, its nights, and every step that was taken about it."""
    with open_service(db, create=False) as store:
        found = history(store, model)
    if as_json:
        Console.document(asdict(found))
    else:
        print_history(found, last=last, diff=diff)


def print_history(found: ModelHistory, *, last: int, diff: bool) -> None:
    for title, table in (
        ("promotions that have been in service", _champions(found.champions[:last])),
        ("nights", _nights(found.nights[:last])),
        ("steps", _steps(found.audit[:last])),
    ):
        if not table.row_count:
            continue
        Console.plain(f"\n{found.model}: {title}")
        _keep_words(table)
        Console.out.print(table)
    if diff:
        _print_diffs(found.audit[:last])


def _champions(promotions: Sequence[Promotion]) -> Table:
    table = _table("", "since", "state", "study", "trial", "target", "why")
    for each in promotions:
        table.add_row(
            str(each.id),
            _time(each.applied_at),
            str(each.state).replace("_", " "),
            str(each.study_id),
            str(each.trial),
            str(each.target),
            "; ".join(filter(None, (each.why, each.reason))),
        )
    return table


def _nights(runs: Sequence[NightRun]) -> Table:
    table = _table("due", "schedule", "state", "outcome", "study", "why")
    for run in runs:
        outcome = "" if run.outcome is None else str(run.outcome).replace("_", " ")
        study = "" if run.study_id is None else str(run.study_id)
        due = _time(run.scheduled_for)
        table.add_row(due, run.schedule, str(run.state), outcome, study, run.reason)
    return table


def _steps(entries: Sequence[AuditEntry]) -> Table:
    table = _table("when", "who", "what", "of", "why")
    for entry in entries:
        table.add_row(_time(entry.at), entry.who, entry.action, entry.subject, entry.why)
    return table


def _print_diffs(entries: Sequence[AuditEntry]) -> None:
    for entry in entries:
        if entry.diff:
            Console.plain(f"\n{_time(entry.at)}  {entry.subject}: {entry.action}")
            Console.plain(entry.diff.rstrip())


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _keep_words(table: Table) -> None:
    """Whole as long as they are not very long: on a narrow terminal the last column, which has
    sentences, gives way."""
    for column in table.columns[:-1]:
        words = [word for cell in column.cells for word in str(cell).split()]
        column.min_width = min(max(map(len, words), default=0), _LONGEST_WORD)


def _time(at: float | None) -> str:
    return "" if at is None else datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M UTC")
