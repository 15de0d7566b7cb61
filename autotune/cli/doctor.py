"""``autotune doctor``: what this machine can measure and what is missing."""

from __future__ import annotations

import click
from rich.table import Table

from autotune.bootstrap import examine_machine
from autotune.cli.console import Console
from autotune.cli.exits import ExitCode
from autotune.cli.options import json_option

MARKS = {"ok": ("ok", "green"), "warning": ("note", "yellow"), "missing": ("missing", "red")}


@click.command(
    name="doctor",
    epilog="Example:  autotune doctor",
)
@json_option
def command(as_json: bool) -> int:
    """Say what this machine can measure and what is missing. Exits 1 if the embedded server
    cannot run here."""
    checks = examine_machine()
    if as_json:
        Console.document([check.to_json() for check in checks])
    else:
        table = Table(box=None, pad_edge=False, show_header=False)
        for check in checks:
            mark, style = MARKS[check.state]
            table.add_row(check.name, f"[{style}]{mark}[/]", check.detail)
            if check.next_step:
                table.add_row("", "", f"[dim]→ {check.next_step}[/]")
        Console.out.print(table)
    blocked = any(check.state == "missing" and check.required for check in checks)
    return ExitCode.FAILED if blocked else ExitCode.MEETS
