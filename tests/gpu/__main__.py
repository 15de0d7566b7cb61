"""The whole check, in one command:

    python -m tests.gpu --out OUT [--minutes 8] [--device cpu|cuda] [--tiny]

Results stand in OUT/results.json and OUT/table.md after every part, however it ends. Exit status: 0
every part was run or skipped with its reason, 1 one failed or ran out of time, 2 refused, 130
interrupted.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from autotune.adapters.within import within
from autotune.bootstrap.models import gpus_of
from autotune.cli.signals import interruptible
from autotune.core.errors import AutotuneError, InputRefused, Interrupted
from autotune.core.study import ServerSpec
from tests.gpu.conduct import RESULTS, TABLE, Conductor, prepare
from tests.gpu.host import DRIVER_S
from tests.gpu.plan import Deadline, Options

SHORTEST_MINUTES = 0.5


def main(arguments: Sequence[str]) -> int:
    try:
        with interruptible():
            return check(options_of(arguments))
    except Interrupted as stop:
        say(str(stop))
        return 130
    except AutotuneError as error:
        say(f"error: {error}")
        return 2
    except OSError as error:  # a full disk, say: what was written before it stands
        say(f"error: the results cannot be written: {error}")
        return 1


def options_of(arguments: Sequence[str]) -> Options:
    parser = argparse.ArgumentParser(prog="python -m tests.gpu", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="a folder for the results")
    parser.add_argument("--minutes", type=float, default=8.0, help="how long it may take in all")
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), help="default: cuda where there is a GPU, else cpu"
    )
    parser.add_argument("--tiny", action="store_true", help="a small model, for two cores")
    given = parser.parse_args(arguments)
    return Options(
        out=given.out.absolute(),
        minutes=given.minutes,
        device=given.device or _device(),
        tiny=given.tiny,
    )


def _device() -> str:
    count = within(DRIVER_S, lambda: gpus_of(ServerSpec()))
    if count is None:
        raise InputRefused(
            "the GPU's driver does not answer",
            value=f"for {DRIVER_S:g} s",
            next_step="see what nvidia-smi says, or give --device cpu",
        )
    return "cuda" if count else "cpu"


def check(options: Options) -> int:
    refuse(options)
    options.out.mkdir(parents=True, exist_ok=True)
    end = Deadline(options.minutes * 60)
    prepare(options, end, say)
    status = Conductor(options=options, say=say).run(end)
    say(f"results: {options.out / TABLE} and {options.out / RESULTS}")
    return status


def refuse(options: Options) -> None:
    if not SHORTEST_MINUTES <= options.minutes < float("inf"):  # which not-a-number is not either
        raise InputRefused(f"--minutes is at least {SHORTEST_MINUTES}", value=options.minutes)
    if (options.out / RESULTS).exists():
        raise InputRefused(
            "the folder holds the results of a check already",
            value=str(options.out),
            next_step="give another --out",
        )


def say(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
