"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from autotune.settings import Settings


def db_option(function: Any) -> Any:
    return click.option(
        "--db",
        metavar="URL",
        default=lambda: Settings.from_environment().database,
        help="Database: a SQLite file or an SQLAlchemy URL.  [default: ./autotune.db]",
    )(function)


def json_option(function: Any) -> Any:
    return click.option(
        "--json", "as_json", is_flag=True, help="Print one JSON document and nothing else."
    )(function)


def out_option(function: Any) -> Any:
    return click.option(
        "--out",
        type=click.Path(path_type=Path),
        default=Path("autotune-out"),
        show_default=True,
        help="Directory for the exported model repository.",
    )(function)


def resume_option(function: Any) -> Any:
    return click.option("--resume", is_flag=True, help="Go on with this study's interrupted run.")(
        function
    )
