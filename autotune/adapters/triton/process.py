"""A child process that cannot outlive this one, with its log in a file."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

_GUARD = Path(__file__).with_name("exec_guard.py")
_MARGIN_S = 10.0
_TAIL_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """What to run. ``variables`` go on top of this process's environment; ``shm_prefix`` names
    the shared-memory segments to remove at the end; ``after`` is run then."""

    argv: Sequence[str]
    variables: Mapping[str, str] = field(default_factory=dict)
    shm_prefix: str = ""
    after: Sequence[str] = ()


class ChildProcess:
    """Runs a command under `exec_guard`, in a session of its own, its output added to ``log``.

    ``nice`` is added to its niceness; ``grace_s`` is how long it has between SIGTERM and SIGKILL,
    ``orphaned_s`` where this process is gone.
    """

    def __init__(
        self,
        command: Command,
        *,
        log: Path,
        nice: int = 0,
        grace_s: float = 10.0,
        orphaned_s: float | None = None,
    ) -> None:
        self.log = log
        self._grace_s = grace_s
        order = {
            "parent": os.getpid(),
            "command": list(command.argv),
            "nice": nice,
            "grace_s": grace_s,
            "orphaned_s": grace_s if orphaned_s is None else orphaned_s,
            "shm_prefix": command.shm_prefix,
            "after": list(command.after),
        }
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as sink:
            self._guard = subprocess.Popen(
                [sys.executable, "-I", str(_GUARD), json.dumps(order)],
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                env={**os.environ, **command.variables},
                start_new_session=True,
            )

    def running(self) -> bool:
        return self._guard.poll() is None

    def wait(self, timeout_s: float) -> bool:
        """Whether it has ended within so many seconds."""
        try:
            self._guard.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    @property
    def exit_status(self) -> int | None:
        """As a shell gives it: 128 more than the signal's number for one that a signal ended; None
        while it is running."""
        code = self._guard.poll()
        return code if code is None or code >= 0 else 128 - code

    @property
    def ended_by(self) -> signal.Signals | None:
        """The signal that ended it; None where none did, or it is running."""
        status = self.exit_status
        if status is not None:
            with contextlib.suppress(ValueError):
                return signal.Signals(status - 128)
        return None

    def ending(self) -> str:
        """How it ended, in words; "is running" while it has not."""
        status, by = self.exit_status, self.ended_by
        if status is None:
            return "is running"
        return f"ended with exit status {status}" if by is None else f"was ended by {by.name}"

    def pids(self) -> list[int]:
        """The command's process and all its descendants, without the guard."""
        return [process.pid for process in self._descendants()]

    def close(self, *, within_s: float | None = None) -> None:
        """SIGTERM, and SIGKILL after the grace, or ``within_s`` where that is less; returns when
        all of it is gone. Twice is fine."""
        if within_s is None or within_s >= self._grace_s:
            self._end(signal.SIGTERM, self._grace_s)
        elif self.running():
            self._guard.send_signal(signal.SIGTERM)
            self.wait(within_s)
            self.kill()

    def kill(self) -> None:
        """SIGKILL to all of it, for one that hangs; returns when nothing of it is left."""
        self._end(signal.SIGINT, 0.0)

    def _end(self, how: signal.Signals, grace_s: float) -> None:
        if not self.running():
            return
        self._guard.send_signal(how)
        try:
            self._guard.wait(grace_s + _MARGIN_S)
        except subprocess.TimeoutExpired:
            self._end_by_force()

    def _end_by_force(self) -> None:
        """The guard itself does not answer: it and its descendants, each by its id."""
        processes = [*self._descendants(), psutil.Process(self._guard.pid)]
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(processes[:-1], timeout=_MARGIN_S)
        self._guard.wait(_MARGIN_S)

    def _descendants(self) -> list[psutil.Process]:
        if not self.running():
            return []
        try:
            return psutil.Process(self._guard.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []


def tail(log: Path, lines: int, *, since: int = 0) -> str:
    """The last lines of a text file, of what stands after its first ``since`` bytes; empty where
    there is none. However long it or a line of it is, no more than its end is read."""
    try:
        with log.open("rb") as stream:
            end = stream.seek(0, os.SEEK_END)
            stream.seek(max(since, end - _TAIL_BYTES))
            last = stream.read(_TAIL_BYTES).decode(errors="replace")
    except OSError:
        return ""
    return "".join(last.splitlines(keepends=True)[-lines:]).rstrip()
