"""The load process as the driver sees it: started, spoken to in JSON lines, ended by its id."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from autotune.core.errors import AutotuneError, LoadFailed

_ROOT = Path(__file__).resolve().parent.parent
_LOG_LINES = 15
_LOOK_S = 0.2
"""How soon it is found out that one of several processes has died."""


def unwritable(reason: str) -> AutotuneError:
    """Not `LoadFailed`: a full disk stays full, however often the load is run again."""
    return AutotuneError(
        "the load generator's files cannot be written",
        value=reason,
        next_step="Make room in the temporary directory, or set TMPDIR; then go on with --resume.",
    )


class LoadProcess:
    """The load process and its pipes. It dies with the thread that started it (Linux sends a
    parent-death signal per thread) and when its standard input is closed."""

    def __init__(self, log: Path) -> None:
        self._log = log
        path = os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH"))))
        with log.open("ab") as stderr:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "loadgen.worker", str(os.getpid())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env={**os.environ, "PYTHONPATH": path},
                start_new_session=True,
                bufsize=0,
            )
        assert self._process.stdout is not None
        self._events = self._process.stdout
        os.set_blocking(self._events.fileno(), False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._events, selectors.EVENT_READ)
        self._buffer = b""

    @property
    def pid(self) -> int:
        return self._process.pid

    def alive(self) -> bool:
        return self._process.poll() is None

    def send(self, command: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(command).encode() + b"\n")
        except OSError as exc:
            raise self._died() from exc

    def expect(self, name: str, deadline: float) -> dict[str, Any]:
        """The next event, which must be ``name``. LoadFailed if it is another, comes after
        ``deadline`` (of `time.monotonic`), or the process dies."""
        if not self.wait(deadline):
            raise LoadFailed(
                f"the load generator did not get to '{name}' by its deadline and was stopped",
                next_step=self._log_tail(),
            )
        line, _, self._buffer = self._buffer.partition(b"\n")
        event: dict[str, Any] = json.loads(line)
        if event.get("event") == "unsaved":
            raise unwritable(event["reason"])
        if event.get("event") != name:
            raise LoadFailed("the load generator failed", next_step=str(event.get("reason", event)))
        return event

    def wait(self, until: float) -> bool:
        """Wait for an event, at most until a time of `time.monotonic`: whether one is there, for
        `expect` to take. LoadFailed if the process dies."""
        while b"\n" not in self._buffer:
            # What is there already is read even after the time: this process may wake late.
            if not self._selector.select(max(0.0, until - time.monotonic())):
                return False
            chunk = self._events.read(65536)
            if chunk == b"":
                raise self._died()
            self._buffer += chunk or b""
        return True

    def kill(self) -> None:
        """End the process at once, by its id, and close its pipes."""
        with suppress(ProcessLookupError):
            self._process.kill()
        self._process.wait()
        self._selector.close()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()

    def _died(self) -> LoadFailed:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
        return LoadFailed(
            "the load generator died",
            value=f"exit {self._process.poll()}",
            next_step=self._log_tail(),
        )

    def _log_tail(self) -> str:
        text = self._log.read_text(encoding="utf-8", errors="replace")
        return "\n".join(text.splitlines()[-_LOG_LINES:])


LEAD_S = 0.02
LEAD_OF_MANY_S = 0.1
"""How long before a moment one process, or each of several, hears of it: what is due by then can
be told from what is due after it."""


class LoadFleet:
    """The processes that share a phase: told the same, and waited for until all have spoken."""

    def __init__(self, members: Sequence[LoadProcess]) -> None:
        self.members = tuple(members)

    @property
    def lead_s(self) -> float:
        """How long before a moment all are told of it."""
        return LEAD_S if len(self.members) == 1 else LEAD_OF_MANY_S

    def send(self, command: dict[str, Any]) -> None:
        for member in self.members:
            member.send(command)

    def expect(self, name: str, deadline: float) -> list[dict[str, Any]]:
        """The next event of each, which must be ``name``; see `LoadProcess.expect`."""
        while not self.wait(min(deadline, time.monotonic() + _LOOK_S)):
            if time.monotonic() >= deadline:
                break
        return [member.expect(name, deadline) for member in self.members]

    def wait(self, until: float) -> bool:
        """Whether each has an event by then; see `LoadProcess.wait`. All of them are looked after:
        one that dies is not found out only when the first has spoken."""
        spoken = [member.wait(until) for member in self.members]
        return all(spoken)
