"""``autotune nightly``: nights that something else than the service starts."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from typing import Any

import click

from autotune.bootstrap.nights import Nights, schedules_to_run
from autotune.bootstrap.service import local_user
from autotune.cli.console import Console
from autotune.cli.exits import ExitCode
from autotune.cli.options import db_option, json_option
from autotune.cli.progress import listener
from autotune.cli.system_errors import of_the_system
from autotune.core.errors import AutotuneError, InputRefused
from autotune.core.plain import finite
from autotune.core.schedules import NightRun, Outcome, RunState, Schedule
from autotune.studyfile import read_definition

WORDS = {
    Outcome.HOLDS: "the champion still wins",
    Outcome.BETTER: "a better configuration was found",
    Outcome.PROPOSED: "a better configuration waits for approval",
    Outcome.PROMOTED: "a better configuration was promoted",
    Outcome.ROLLED_BACK: "a better configuration was promoted, did not hold, and was rolled back",
    Outcome.NO_PICK: "no candidate meets the SLA",
}


@click.command(
    name="nightly",
    epilog="""\b
Examples:
  autotune nightly --once
  autotune nightly --once resnet ocr --json
""",
)
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option("--once", is_flag=True, help="Run each schedule once, now, whatever its cron says.")
@db_option
@json_option
def command(names: Sequence[str], once: bool, db: str, as_json: bool) -> int:
    """Run the schedules of these names, or all that are active, one after the other, here.

    For cron, systemd timers and Kubernetes CronJobs. It needs no service; where one runs, it is the
    service that runs what is due.
    """
    if not once:
        raise InputRefused(
            "schedules are run again and again by the service",
            next_step="autotune serve; or give --once, to run each of them now",
        )
    schedules = schedules_to_run(db, names)
    if not schedules and not as_json:
        Console.note("no active schedule: autotune schedule list")
    return run_nights(schedules, db=db, as_json=as_json)


def run_nights(schedules: Sequence[Schedule], *, db: str, as_json: bool) -> int:
    """Run them, print what each came to, and say the worst of it by the exit code. One that fails
    does not keep the next from running."""
    nights = Nights(db=db, by=local_user(), say=Console.note)
    ended: list[tuple[Schedule, NightRun | AutotuneError]] = []
    for schedule in schedules:
        came = _night(nights, schedule, quiet=as_json)
        ended.append((schedule, came))
        if not as_json:
            print_night(schedule, came)
    if as_json:
        Console.document([_document(schedule, came) for schedule, came in ended])
    return max((exit_code(came) for _, came in ended), key=_SEVERITY.index, default=ExitCode.MEETS)


def _night(nights: Nights, schedule: Schedule, *, quiet: bool) -> NightRun | AutotuneError:
    try:
        study = read_definition(schedule.definition)
        with listener(study.sla, quiet=quiet) as listen:
            return nights.run(schedule, listen)
    except AutotuneError as exc:
        return exc
    except OSError as exc:
        return of_the_system(exc)
    except Exception as exc:  # noqa: BLE001 - what nobody foresaw of one costs the others nothing
        traceback.print_exc()
        return AutotuneError(f"{type(exc).__name__}: {exc}")


_SEVERITY = (ExitCode.MEETS, ExitCode.NO_CANDIDATE, ExitCode.FAILED)


def exit_code(came: NightRun | AutotuneError) -> ExitCode:
    """A night that its window ended has done what it could; one that it kept from beginning has
    not."""
    if isinstance(came, AutotuneError) or came.state in (RunState.FAILED, RunState.MISSED):
        return ExitCode.FAILED
    if came.outcome is Outcome.ROLLED_BACK:
        return ExitCode.FAILED
    return ExitCode.NO_CANDIDATE if came.outcome is Outcome.NO_PICK else ExitCode.MEETS


# --------------------------------------------------------------------------------------- showing
def print_night(schedule: Schedule, came: NightRun | AutotuneError) -> None:
    if isinstance(came, AutotuneError):
        Console.note(f"{schedule.name}: failed: {came}", style="red")
        return
    Console.plain(f"{schedule.name}: {in_words(came)}")
    if came.reason:
        Console.plain(f"  {came.reason}")


def in_words(run: NightRun) -> str:
    return str(run.state) if run.outcome is None else WORDS[run.outcome]


def came_to(run: NightRun) -> str:
    """In one word."""
    return str(run.state if run.outcome is None else run.outcome)


def night_json(run: NightRun) -> dict[str, Any]:
    return {
        "run": run.id,
        "schedule": run.schedule,
        "scheduled_for": run.scheduled_for,
        "state": str(run.state),
        "outcome": None if run.outcome is None else str(run.outcome),
        "job": run.job_id,
        "study": run.study_id,
        "promotion": run.promotion_id,
        "started_at": run.started_at,
        "ended_at": run.ended_at,
        "reason": run.reason,
        "summary": finite(dict(run.summary)),
    }


def _document(schedule: Schedule, came: NightRun | AutotuneError) -> dict[str, Any]:
    if isinstance(came, NightRun):
        return night_json(came)
    return {"schedule": schedule.name, "state": str(RunState.FAILED), "reason": str(came)}
