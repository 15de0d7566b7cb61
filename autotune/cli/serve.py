"""``autotune serve``: the service."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import structlog

from autotune.bootstrap.logs import LogFormat, set_up_logs
from autotune.cli.options import db_option
from autotune.core.errors import InputRefused


@click.command(
    name="serve",
    epilog="""\b
Examples:
  autotune serve
  autotune serve --host 0.0.0.0 --allow-host tuning.example.com --log-format json
  autotune serve --no-worker --no-scheduler
""",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8080,
    show_default=True,
    help="Port to listen on; 0 takes a free one.",
)
@db_option
@click.option(
    "--root",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    default=Path(),
    help="The folder that studies from the API may name files in.  [default: the current one]",
)
@click.option(
    "--allow-host",
    "hosts",
    multiple=True,
    metavar="NAME",
    help="A name that the service goes by, besides addresses and localhost.",
)
@click.option(
    "--allow-remote",
    "remotes",
    multiple=True,
    metavar="HOST",
    help="A host whose Triton studies from the API may tune, besides this machine.",
)
@click.option(
    "--trust-proxy",
    "proxies",
    multiple=True,
    metavar="ADDRESS",
    help="A reverse proxy that is believed who asks through it, and whether over TLS.",
)
@click.option("--no-worker", is_flag=True, help="Do no jobs: another process on the database does.")
@click.option("--no-scheduler", is_flag=True, help="Start no runs of schedules.")
@click.option(
    "--lease",
    "lease_s",
    type=click.FloatRange(min=3),
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="After how long a worker that gives no sign of life has lost its job.",
)
@click.option(
    "--keep-samples",
    "keep_samples_days",
    type=click.FloatRange(min=1),
    metavar="DAYS",
    help="Remove the raw times of the requests of studies that ended longer ago.  [default: keep]",
)
@click.option(
    "--log-format",
    type=click.Choice([str(each) for each in LogFormat]),
    default=str(LogFormat.TEXT),
    show_default=True,
    help="The log's form, on standard error.",
)
def command(*, no_worker: bool, no_scheduler: bool, log_format: str, **options: Any) -> None:
    """Run the dashboard, the API, the scheduler and the worker, until SIGTERM or Ctrl-C.

    Whoever can reach it on this machine may use it; elsewhere a token is asked for, and it does not
    start without one (`autotune token add`). A job that runs when the service is stopped is stopped
    too, and goes on when the service is started again. See docs/service.md.
    """
    set_up_logs(LogFormat(log_format))
    structlog.get_logger("autotune.serve").info("starting")
    try:
        from autotune.bootstrap.serving import Asked, serve  # noqa: PLC0415 - an extra's
    except ModuleNotFoundError as exc:
        raise InputRefused(
            "autotune serve needs packages that are not installed",
            value=exc.name,
            next_step="pip install 'triton-autotune[serve]'; a bundle is without it",
        ) from exc
    serve(Asked(worker=not no_worker, scheduler=not no_scheduler, **options))
