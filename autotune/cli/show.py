"""``autotune show``: one study's trials, front and pick."""

from __future__ import annotations

import click

from autotune.bootstrap import StoredStudy, open_store
from autotune.cli.as_json import stored_json
from autotune.cli.console import Console
from autotune.cli.options import db_option, json_option
from autotune.cli.render import print_stored


@click.command(
    name="show",
    epilog="""\b
Examples:
  autotune show ocr
  autotune show 12 --json
""",
)
@click.argument("study")
@db_option
@json_option
def command(study: str, db: str, as_json: bool) -> None:
    """Show a study by its name (its latest run) or its id."""
    with open_store(db, create=False) as store:
        stored = StoredStudy.load(store, study)
    if as_json:
        Console.document(stored_json(stored))
    else:
        print_stored(stored)
