"""``autotune doctor``: what this machine can measure and what is missing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from autotune.bootstrap import Check, engines_here, examine_machine
from autotune.cli.console import Console
from autotune.cli.exits import ExitCode
from autotune.cli.options import json_option
from autotune.core.capability import Answer, Capability
from autotune.core.variants import Engine, Precision

MARKS = {"ok": ("ok", "green"), "warning": ("note", "yellow"), "missing": ("missing", "red")}
CELLS = {Answer.YES: ("yes", "green"), Answer.UNTRIED: ("yes?", "yellow"), Answer.NO: ("no", "dim")}
_RAISED = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
_NAME = 21


@click.command(
    name="doctor",
    epilog="Example:  autotune doctor",
)
@click.option(
    "--load/--no-load",
    default=True,
    help="Also how many requests per second it can send, found by sending them to a server that"
    " does nothing: some seconds on all cores.  [default: load]",
)
@json_option
def command(load: bool, as_json: bool) -> int:
    """Say what this machine can measure and what is missing. Exits 1 if the embedded server
    cannot run here."""
    checks, engines = examine_machine(load=load), engines_here()
    if as_json:
        Console.document([*(check.to_json() for check in checks), *_engines_json(engines)])
    else:
        _print_checks(checks)
        Console.out.print()
        _print_engines(engines)
    blocked = any(check.state == "missing" and check.required for check in checks)
    return ExitCode.FAILED if blocked else ExitCode.MEETS


def _print_checks(checks: Iterable[Check]) -> None:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column()
    table.add_column()
    table.add_column(overflow="fold")
    for check in checks:
        table.add_row(check.name, Text(*MARKS[check.state]), Text(check.detail))
        if check.next_step:
            table.add_row("", "", Text(f"→ {check.next_step}", style="dim"))
    Console.out.print(table)


def _print_engines(engines: Sequence[Capability]) -> None:
    """A row per engine, a column per precision; reasons and notes by number below."""
    notes = list(dict.fromkeys(each.note for each in engines if each.note))
    cell = 7 if Console.out.width >= 64 else 6
    head = "".join(str(precision).ljust(cell) for precision in Precision)
    Console.out.print(Text("variants".ljust(_NAME) + head.rstrip(), style="bold"), soft_wrap=True)
    for engine, row in groupby(engines, key=lambda each: each.variant.engine):
        line = Text(str(engine).ljust(_NAME))
        for each in row:
            word, style = CELLS[each.answer]
            raised = str(notes.index(each.note) + 1).translate(_RAISED) if each.note else ""
            line.append((word + raised).ljust(cell), style)
        line.rstrip()
        Console.out.print(line, soft_wrap=True)
    for number, note in enumerate(notes, start=1):
        Console.hanging(Text(note, style="dim"), f"{number:>2} ")
    if any(each.answer is Answer.UNTRIED for each in engines):
        Console.hanging(
            Text(f"by the vendors' documentation; {Answer.UNTRIED}", style="dim"), "yes? "
        )


def _engines_json(engines: Iterable[Capability]) -> list[dict[str, Any]]:
    """An entry per engine, like a check's, with what there is to say of each precision."""
    return [
        _engine_json(engine, list(row))
        for engine, row in groupby(engines, key=lambda each: each.variant.engine)
    ]


def _engine_json(engine: Engine, row: Sequence[Capability]) -> dict[str, Any]:
    runs = [str(each.variant.precision) for each in row if each.answer is not Answer.NO]
    return {
        "name": str(engine),
        "state": "ok" if runs else "warning",
        "detail": f"runs {', '.join(runs)}" if runs else row[0].note,
        "next_step": "",
        "required": False,
        "precisions": {
            str(each.variant.precision): {"answer": str(each.answer), "note": each.note}
            for each in row
        },
    }
