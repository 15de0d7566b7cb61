"""``autotune schedule``: studies asked again and again."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import click
from rich.table import Table

from autotune.bootstrap.schedules import Schedules, doubts
from autotune.bootstrap.service import local_user, open_service
from autotune.cli.console import Console
from autotune.cli.nightly import came_to, night_json, run_nights
from autotune.cli.options import db_option, json_option
from autotune.core.errors import InputRefused
from autotune.core.promotions import Target
from autotune.core.schedules import Policy, Schedule, ScheduleState
from autotune.service_ports import ScheduleView
from autotune.studyfile import read_study_file


@click.group(
    name="schedule",
    epilog="""\b
Examples:
  autotune schedule add nightly study.yaml --cron "0 2 * * *" --timezone Europe/Berlin
  autotune schedule add nightly study.yaml --cron "0 2 * * *" --policy propose --target ./models
  autotune schedule list
  autotune schedule run nightly
""",
)
def command() -> None:
    """Ask a study again and again: is the configuration in service still the best?

    `autotune serve` runs what is due. Without it, cron, a systemd timer or a Kubernetes CronJob may
    call `autotune nightly --once`.
    """


@command.command(
    "add", epilog='Example:  autotune schedule add nightly study.yaml --cron "0 2 * * *"'
)
@click.argument("name")
@click.argument("study", metavar="STUDY.yaml", type=click.Path(path_type=Path))
@click.option(
    "--cron",
    required=True,
    metavar='"M H D M W"',
    help="When: minute, hour, day of the month, month, day of the week.",
)
@click.option("--timezone", default="UTC", show_default=True, help="The IANA zone of --cron.")
@click.option(
    "--window-minutes",
    type=float,
    help="How long after it was due a run may go on; then it stops and keeps what it learned."
    "  [default: as long as the study's budget]",
)
@click.option(
    "--policy",
    type=click.Choice([str(policy) for policy in Policy]),
    default=str(Policy.REPORT),
    show_default=True,
    help="What is done with a better configuration: told, proposed for approval, or promoted.",
)
@click.option(
    "--margin",
    type=float,
    default=0.05,
    show_default=True,
    help="By which share a challenger has to be better.",
)
@click.option(
    "--target",
    "repository",
    type=click.Path(path_type=Path, file_okay=False),
    help="Model repository to promote into.",
)
@click.option("--target-grpc", metavar="HOST:PORT", help="Live Triton to promote to.")
@click.option("--target-http", metavar="HOST:PORT", help="Its HTTP address, for statistics.")
@click.option(
    "--shadow-s",
    type=float,
    default=20.0,
    show_default=True,
    help="Seconds for which the SLA is checked on the live Triton after the load.",
)
@db_option
@json_option
def add(name: str, study: Path, db: str, as_json: bool, **options: Any) -> None:
    """Ask the study of a study file whenever a cron expression is due."""
    schedule = Schedule(
        id=0,
        name=name,
        definition=read_study_file(study).definition,
        cron=options["cron"],
        timezone=options["timezone"],
        window_minutes=options["window_minutes"],
        policy=Policy(options["policy"]),
        margin=options["margin"],
        target=_target(options),
        created_by=local_user(),
    )
    with open_service(db) as store:
        view = Schedules(store).add(schedule, by=local_user())
    if as_json:
        Console.document(schedule_json(view))
        return
    Console.plain(f"schedule {name} is due next at {_next(view)}")
    for doubt in doubts(view.schedule):
        Console.note(doubt, style="yellow")
    Console.note(
        f"{study.name} is kept as it is now: to change it, remove the schedule and add it again\n"
        "autotune serve runs what is due; without it, see docs/nightly.md",
        style="dim",
    )


@command.command("list", epilog="Example:  autotune schedule list --json")
@db_option
@json_option
def list_(db: str, as_json: bool) -> None:
    """List the schedules, with their next and last runs."""
    with open_service(db, create=False) as store:
        views = Schedules(store).schedules()
    if as_json:
        Console.document([schedule_json(view) for view in views])
    elif not views:
        Console.plain('no schedule yet: autotune schedule add NAME STUDY.yaml --cron "0 2 * * *"')
    else:
        Console.out.print(_table(views))


@command.command("pause", epilog="Example:  autotune schedule pause nightly")
@click.argument("name")
@db_option
def pause(name: str, db: str) -> None:
    """Let a schedule rest. A run that has begun goes on."""
    with open_service(db, create=False) as store:
        Schedules(store).set_state(name, ScheduleState.PAUSED, by=local_user())
    Console.note(f"schedule {name} is paused")


@command.command("resume", epilog="Example:  autotune schedule resume nightly")
@click.argument("name")
@db_option
def resume(name: str, db: str) -> None:
    """Go on with a schedule that was paused."""
    with open_service(db, create=False) as store:
        view = Schedules(store).set_state(name, ScheduleState.ACTIVE, by=local_user())
    Console.note(f"schedule {name} is due next at {_next(view)}")


@command.command("remove", epilog="Example:  autotune schedule remove nightly")
@click.argument("name")
@db_option
def remove(name: str, db: str) -> None:
    """Remove a schedule. Its runs and studies stay."""
    with open_service(db, create=False) as store:
        Schedules(store).remove(name, by=local_user())
    Console.note(f"schedule {name} is removed; its runs stay")


@command.command(
    "run",
    epilog="""\b
Examples:
  autotune schedule run nightly
  autotune schedule run nightly --now
""",
)
@click.argument("name")
@click.option("--now", "here", is_flag=True, help="Run it here, in this process, instead.")
@db_option
@json_option
def run(name: str, here: bool, db: str, as_json: bool) -> int | None:
    """Queue a run for the service, besides those that are due."""
    with open_service(db, create=False) as store:
        desk = Schedules(store)
        if here:
            schedule = desk.schedule(name).schedule
        else:
            job = desk.run_now(name, by=local_user())
    if here:
        return run_nights([schedule], db=db, as_json=as_json)
    if as_json:
        Console.document({"job": job.id, "run": job.payload["run"]})
    else:
        Console.plain(f"job {job.id} waits for a worker: autotune serve has one")
    return None


def _target(options: dict[str, Any]) -> Target | None:
    repository: Path | None = options["repository"]
    grpc, http = options["target_grpc"], options["target_http"]
    if repository is None and grpc is None:
        if http is not None:
            raise InputRefused(
                "--target-http goes with --target-grpc", next_step="give the gRPC address too"
            )
        return None
    return Target(
        repository=None if repository is None else repository.absolute(),
        grpc=grpc,
        http=http,
        shadow_s=options["shadow_s"],
    )


# --------------------------------------------------------------------------------------- showing
def schedule_json(view: ScheduleView) -> dict[str, Any]:
    schedule = view.schedule
    target = schedule.target
    return {
        "name": schedule.name,
        "study": schedule.definition.get("study"),
        "state": str(schedule.state),
        "cron": schedule.cron,
        "timezone": schedule.timezone,
        "window_minutes": schedule.window_minutes,
        "policy": str(schedule.policy),
        "margin": schedule.margin,
        "target": None
        if target is None
        else {
            "repository": None if target.repository is None else str(target.repository),
            "grpc": target.grpc,
            "http": target.http,
            "shadow_s": target.shadow_s,
        },
        "created_at": schedule.created_at,
        "created_by": schedule.created_by,
        "next_at": view.next_at,
        "last": None if view.last is None else night_json(view.last),
    }


def _table(views: Sequence[ScheduleView]) -> Table:
    table = Table("name", "cron", "next", "last", "policy", box=None, pad_edge=False)
    for view in views:
        schedule, last = view.schedule, view.last
        came = "never" if last is None else f"{_local(view, last.scheduled_for)}: {came_to(last)}"
        table.add_row(
            schedule.name,
            f"{schedule.cron} {schedule.timezone}",
            _next(view),
            came,
            str(schedule.policy),
        )
    return table


def _next(view: ScheduleView) -> str:
    if view.next_at is not None:
        return _local(view, view.next_at)
    paused = view.schedule.state is ScheduleState.PAUSED
    return "paused" if paused else "zone unknown here"


def _local(view: ScheduleView, at: float) -> str:
    """By the clock of the schedule's zone; by UTC's where this machine does not know that."""
    try:
        zone: tzinfo = ZoneInfo(view.schedule.timezone)
    except (KeyError, ValueError, OSError):
        zone = UTC
    return f"{datetime.fromtimestamp(at, zone):%Y-%m-%d %H:%M %Z}"
