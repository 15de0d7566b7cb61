"""``autotune studies``: what is stored."""

from __future__ import annotations

import click

from autotune.bootstrap import as_it_stands, open_store
from autotune.cli.console import Console
from autotune.cli.options import db_option, json_option
from autotune.cli.tables import studies_sheet
from autotune.core.as_json import study_json


@click.command(
    name="studies",
    epilog="Example:  autotune studies --json",
)
@db_option
@json_option
def command(db: str, as_json: bool) -> None:
    """List the stored studies, newest first."""
    with open_store(db, create=False) as store:
        records = [as_it_stands(record) for record in store.studies()]
    if as_json:
        Console.document([study_json(record) for record in records])
    elif not records:
        Console.plain(f"no study in {db} yet: autotune demo runs one")
    else:
        studies_sheet(records).print()
