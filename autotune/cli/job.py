"""``autotune job``: what a worker of the service runs. Not for people."""

from __future__ import annotations

import click

from autotune.bootstrap.job_run import run_job
from autotune.bootstrap.last_words import telling_last_words
from autotune.cli.console import Console
from autotune.cli.options import db_option
from autotune.cli.system_errors import in_words


@click.command(name="job", hidden=True, epilog="Example:  autotune job 12")
@click.argument("job_id", type=int)
@db_option
def command(job_id: int, db: str) -> int:
    """Do a job of the service's queue, in this process. Its worker starts it, holds its lease and
    records how it ended."""
    with telling_last_words(), in_words():
        return run_job(job_id, db=db, say=Console.note)
