"""One part of the check, a process of its own; `tests.gpu.conduct` starts it:

    python -m tests.gpu.part NAME --out OUT --seconds S --device cuda|cpu [--tiny]

It writes OUT/parts/NAME.json as it finds things, ends before its seconds are over where it can, and
stops at SIGTERM.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from autotune.cli.signals import interruptible
from autotune.core.errors import AutotuneError, Interrupted
from tests.gpu.context import Context
from tests.gpu.plan import PARTS, Deadline, Options, scale_of
from tests.gpu.report import Report, Skipped, State, part_file


def run(name: str, context: Context) -> None:
    """Run it, and write down how it ended. Interrupted passes: what is written stands as it is."""
    try:
        # Each part imports a lot, and few of them the same.
        importlib.import_module(f"tests.gpu.{name}").run(context)
    except Skipped as why:
        context.report.end(State.SKIPPED, str(why))
    except AutotuneError as error:
        traceback.print_exc()
        context.report.end(State.FAILED, str(error))
    except Exception as error:  # noqa: BLE001 - whatever it is, the other parts go on
        traceback.print_exc()
        context.report.end(State.FAILED, f"{type(error).__name__}: {error}")
    else:
        context.report.end(State.OK)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.part", description=__doc__)
    parser.add_argument("name", choices=[part.name for part in PARTS])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--device", choices=("cpu", "cuda"), required=True)
    parser.add_argument("--tiny", action="store_true")
    given = parser.parse_args(arguments)
    options = Options(out=given.out.absolute(), device=given.device, tiny=given.tiny)
    context = Context(
        options=options,
        scale=scale_of(options),
        deadline=Deadline(given.seconds),
        report=Report(part_file(options.out, given.name)),
    )
    try:
        with interruptible():
            run(given.name, context)
    except Interrupted as stop:
        sys.stderr.write(f"{stop}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
