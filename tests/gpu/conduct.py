"""Runs the parts one after another, each a process of its own, under its own time limit and that of
the whole; writes all results down after each."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from autotune.adapters import hardware, machine
from autotune.adapters.triton.process import ChildProcess, Command, tail
from autotune.adapters.within import within
from autotune.core.capability import Hardware
from autotune.core.errors import Interrupted
from autotune.settings import Settings
from tests.gpu import places
from tests.gpu.host import DRIVER_S, chosen_devices
from tests.gpu.plan import LEAST_S, PARTS, ROOT, Deadline, Options, Part, limit_s
from tests.gpu.report import State, part_file, read_json, write_json, write_text
from tests.gpu.table import table

FORMAT = 1
RESULTS = "results.json"
TABLE = "table.md"
PREPARING_SHARE = 0.5
"""Of all its time, the most that making the server ready may take."""
GRACE_S = 8.0
"""What a part has between being asked to end and being ended."""
BESIDE_S = 5.0
"""What a part takes before and after all that it plans: its imports, and the end of its server."""
_POLL_S = 0.1

Say = Callable[[str], None]


def prepare(options: Options, end: Deadline, say: Say) -> None:
    """Have the embedded server ready: in a checkout it may have to be built, once. Where that
    cannot be, or not in time, each part that needs it says why."""
    say("preparing the server")
    child = ChildProcess(
        Command(
            argv=[sys.executable, "-m", "tests.gpu.host"],
            variables=variables(options.out),
        ),
        log=part_file(options.out, "server").with_suffix(".log"),
        grace_s=GRACE_S,
    )
    try:
        if not _wait(child, time.monotonic() + PREPARING_SHARE * end.left_s):
            say("the server is not ready yet, and its share of the time is up")
    finally:
        child.close()


def part_command(options: Options, part: Part, seconds: float) -> list[str]:
    size = ["--tiny"] if options.tiny else []
    return [
        *(sys.executable, "-m", "tests.gpu.part", part.name),
        *("--out", str(options.out), "--seconds", f"{seconds:.1f}", "--device", options.device),
        *size,
    ]


@dataclass(slots=True, kw_only=True)
class Conductor:
    """``command`` makes a part's command line, given the seconds that it may plan with."""

    options: Options
    say: Say
    command: Callable[[Options, Part, float], Sequence[str]] = part_command
    _results: dict[str, Any] = field(default_factory=dict, init=False)

    def run(self, end: Deadline | None = None) -> int:
        """The exit status: 0 if every part was run or skipped with its reason, 1 if not, 130 if it
        was interrupted. ``end`` of it all, where its minutes began before."""
        options = self.options
        end = end or Deadline(options.minutes * 60)
        began = datetime.now(UTC)
        self._results = {"format": FORMAT, "ended": "not yet", **conditions(options, began)}
        self._results["parts"] = {
            part.name: {"state": State.NOT_REACHED, "title": part.title} for part in PARTS
        }
        self._write()
        ended = "complete"
        try:
            for place, part in enumerate(PARTS):
                self._run_part(part, limit_s(place, end.left_s, options), end)
        except Interrupted as stop:
            ended = str(stop)
        self._results["ended"] = ended
        self._results["seconds"] = round((datetime.now(UTC) - began).total_seconds(), 1)
        self._write()
        return self._status(interrupted=ended != "complete")

    def _status(self, *, interrupted: bool) -> int:
        if interrupted:
            return 130
        states = {entry["state"] for entry in self._results["parts"].values()}
        return 0 if states <= {State.OK, State.SKIPPED} else 1

    def _run_part(self, part: Part, limit: float, end: Deadline) -> None:
        if limit < LEAST_S:
            self._take(part, {"state": State.NOT_REACHED, "reason": "no time was left for it"})
            return
        self.say(f"({part.letter}) {part.title}: at most {limit:.0f} s")
        began = time.monotonic()
        child = ChildProcess(
            Command(
                argv=self.command(self.options, part, planned_s(limit)),
                variables=variables(self.options.out),
            ),
            log=self._log(part),
            grace_s=GRACE_S,
        )
        told = {"limit_s": round(limit, 1)}
        stopped = State.INTERRUPTED
        try:
            in_time = _wait(child, min(began + limit, time.monotonic() + end.left_s))
            stopped = State.FAILED if in_time else State.TIMED_OUT
        finally:
            try:  # a signal may end the ending of a part, and what that found is kept all the same
                child.close()
            finally:
                told["seconds"] = round(time.monotonic() - began, 1)
                self._take(part, {**self._found(part, child, stopped), **told})

    def _found(self, part: Part, child: ChildProcess, stopped: State) -> dict[str, Any]:
        """What the part wrote; where it did not say itself how it ended, ``stopped``, and why."""
        known = places.words(self.options.out)
        found: dict[str, Any] = places.without(
            read_json(part_file(self.options.out, part.name)), known
        )
        if found.get("state", State.RUNNING) != State.RUNNING:
            return found
        reason = {
            State.TIMED_OUT: "its time was up; what it had found by then is kept",
            State.INTERRUPTED: "the check was interrupted; what it had found by then is kept",
        }.get(stopped)
        if reason is None:
            last = places.without(tail(self._log(part), 3), known)
            reason = f"it {child.ending()}: {last}"
        return {**found, "state": stopped, "reason": reason}

    def _log(self, part: Part) -> Path:
        return part_file(self.options.out, part.name).with_suffix(".log")

    def _take(self, part: Part, found: dict[str, Any]) -> None:
        self._results["versions"].update(found.pop("versions", {}))
        self._results["parts"][part.name] = {"title": part.title, **found}
        self._write()
        reason = f": {found['reason']}" if found.get("reason") else ""
        self.say(f"({part.letter}) {found['state']}, {found.get('seconds', 0):.0f} s{reason}")

    def _write(self) -> None:
        write_json(self.options.out / RESULTS, self._results)
        write_text(self.options.out / TABLE, table(self._results))


def planned_s(limit: float) -> float:
    """What of its limit a part plans with, to end by itself before it."""
    return max(limit / 2, limit - max(BESIDE_S, limit / 10))


def _wait(child: ChildProcess, until: float) -> bool:
    """Whether it ended before that time of `time.monotonic`."""
    while child.running():
        if time.monotonic() >= until:
            return False
        time.sleep(_POLL_S)
    return True


def variables(out: Path) -> dict[str, str]:
    """Of a part's environment: scratch and database stay below ``out``."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return {
        "PYTHONPATH": path,
        "PYTHONUNBUFFERED": "1",
        "AUTOTUNE_WORK": str(out / "work"),
        "AUTOTUNE_DB": str(out / "studies.db"),
    }


def _hardware() -> Hardware:
    """With the GPU that the check is of."""
    return hardware.seen(chosen_devices(), Settings.from_environment().visible_devices)


def conditions(options: Options, began: datetime) -> dict[str, Any]:
    """Where and when: all that a reader needs to place the figures, and nothing that names the
    host."""
    here: Mapping[str, Any] = machine.describe()
    seen = within(DRIVER_S, _hardware)
    gpu = None
    if seen is not None and seen.compute_capability is not None:
        capability = ".".join(map(str, seen.compute_capability))
        gpu = {"name": seen.gpu, "driver": seen.driver, "compute_capability": capability}
    return {
        "date": began.strftime("%Y-%m-%d"),
        "began_at": began.isoformat(timespec="seconds"),
        "device": options.device,
        "tiny": options.tiny,
        "minutes": options.minutes,
        "gpu": gpu,
        "machine": {key: here[key] for key in ("processor", "cores", "memory_mb", "system")},
        "versions": {
            "python": here["python"],
            **{name: found for name, found in here["versions"].items() if found},
        },
    }
