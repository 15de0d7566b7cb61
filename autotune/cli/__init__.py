"""The command line: one file per command; this one gathers them and turns errors into exits."""

from __future__ import annotations

import sys
from typing import NoReturn

import click

from autotune.cli.console import Console, report_error
from autotune.cli.exits import ExitCode
from autotune.cli.lazy import LazyGroup
from autotune.cli.signals import interruptible
from autotune.cli.system_errors import of_the_system, resumed
from autotune.core.errors import AutotuneError, InputRefused, Interrupted, StoreFailed

__all__ = ["cli", "main"]


@click.group(
    cls=LazyGroup,
    commands_in={
        "demo": "Tune the bundled OCR model on this machine's CPU.",
        "tune": "Run a study: from a study file, or straight from an ONNX model.",
        "studies": "List the stored studies.",
        "show": "Show one study's trials, front and pick.",
        "compare": "Measure two trials of a study again, interleaved: is one better?",
        "export": "Write a stored study's pick, or any trial, as a model repository.",
        "promote": "Put a study's pick, or any trial, into service: a repository, a live Triton.",
        "rollback": "Put back what a model's last promotion replaced.",
        "history": "Show what was in service of a model, its nights, and who did what.",
        "serve": "Run the service: dashboard, API, scheduler and worker.",
        "schedule": "Ask a study again and again: add, list, pause, resume, remove, run.",
        "nightly": "Run the schedules once, now: for cron, systemd timers and Kubernetes.",
        "token": "Make, list and revoke the tokens that the service asks for.",
        "bundle": "Pack autotune and its server into one archive, for a host without a network.",
        "doctor": "Say what this machine can measure and what is missing.",
    },
    unlisted=("job",),
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    help="""Find the Triton configuration that meets your SLA, by measuring it under real load.

    \b
    Start here:
      autotune demo
      autotune tune model.onnx --qps 60 --p95-ms 80

    \b
    Exit codes:
      0  the pick meets the SLA; the command did what it was asked
      1  anything else
      2  the input was refused
      3  no candidate meets the SLA
    """,
)
@click.version_option(package_name="triton-autotune", prog_name="autotune")
def cli() -> None:
    """Nothing by itself: the commands do the work."""


def main() -> NoReturn:
    """Run a command and exit with its code."""
    as_json = "--json" in sys.argv
    Console.answered = False
    try:
        with interruptible():
            code = cli.main(standalone_mode=False, prog_name="autotune")
    except click.exceptions.NoArgsIsHelpError as exc:
        Console.plain(exc.format_message())
        code = ExitCode.REFUSED
    except click.ClickException as exc:
        report_error(InputRefused(exc.format_message(), next_step=_usage(exc)), as_json=as_json)
        code = ExitCode.REFUSED
    except AutotuneError as exc:
        if isinstance(exc, StoreFailed) and exc.told.startswith("the disk"):
            exc.add_note(resumed().removeprefix("; "))
        report_error(exc, as_json=as_json)
        code = ExitCode.REFUSED if isinstance(exc, InputRefused) else ExitCode.FAILED
    except OSError as exc:
        report_error(of_the_system(exc), as_json=as_json)
        code = ExitCode.FAILED
    except (click.Abort, KeyboardInterrupt) as exc:
        cause = exc.__cause__ if isinstance(exc, click.Abort) else exc
        if isinstance(cause, Interrupted):
            report_error(cause, as_json=as_json)
        code = ExitCode.FAILED
    sys.exit(int(code or 0))


def _usage(exc: click.ClickException) -> str:
    context = getattr(exc, "ctx", None)
    return f"see: {context.command_path} --help" if context is not None else "see: autotune --help"
