"""Runs a command and sees to it that nothing of it outlives the one who asked for it.

Run as a script, by process.py: ``exec_guard.py '{"parent": 12, "command": [...], …}'``. It starts
the command as its child and ends it, with all descendants, when the parent is gone (looked at ten
times a second, by id: a thread's end is no parent's end; the command gets SIGTERM and
``orphaned_s`` first), on SIGTERM (SIGTERM and ``grace_s`` first) or on SIGINT (at once). As a
subreaper it inherits orphans, so that a server's helper processes cannot escape by losing their
parent. At the end it removes what the command left in shared memory and runs a closing command.
Exits as the command did.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_POLL_S = 0.1
_AFTER_TIMEOUT_S = 30
_AUTOGROUP = Path("/proc/self/autogroup")
_AUTOGROUP_ATTEMPTS = 5
_LIBC = ctypes.CDLL(None, use_errno=True)


class _Asked:
    """Which end was asked for by signal."""

    softly = False
    now = False

    def soften(self, *_: object) -> None:
        self.now = self.now or self.softly
        self.softly = True

    def hasten(self, *_: object) -> None:
        self.now = True


def main(order: dict[str, Any]) -> int:
    asked = _Asked()
    signal.signal(signal.SIGTERM, asked.soften)
    signal.signal(signal.SIGINT, asked.hasten)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    _step_back(order["nice"])

    def orphaned() -> bool:
        return bool(os.getppid() != order["parent"])

    def unwanted() -> bool:
        return asked.now or asked.softly or orphaned()

    child = subprocess.Popen(
        order["command"],
        stdin=subprocess.DEVNULL,
        preexec_fn=_prepare_child(os.getpid()),  # noqa: PLW1509 - no threads here
    )
    _wait(child, unwanted)
    if child.poll() is None and not asked.now:
        child.terminate()
        since = time.monotonic()

        def enough() -> bool:
            lasts_s = order["orphaned_s"] if orphaned() else order["grace_s"]
            return asked.now or time.monotonic() > since + lasts_s

        _wait(child, enough)
    _kill_descendants(child)
    status = child.wait()
    _clean(order)
    return status if status >= 0 else 128 - status


def _step_back(nice: int) -> None:
    """Take a worse priority, which the command inherits.

    Between sessions Linux may go by the session's own nice value alone (sched_autogroup), and this
    process leads a session of its own: so both are set. Neither needs a privilege. Where there are
    no such groups, or too many of them were changed within a tenth of a second, the first remains.
    """
    os.nice(nice)
    for _ in range(_AUTOGROUP_ATTEMPTS if nice else 0):
        try:
            _AUTOGROUP.write_text(str(nice), encoding="ascii")
        except BlockingIOError:
            time.sleep(_POLL_S)
        except OSError:
            return
        else:
            return


def _prepare_child(guard: int) -> Callable[[], None]:
    def prepare() -> None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != guard:
            os._exit(1)

    return prepare


def _wait(child: subprocess.Popen[bytes], enough: Callable[[], bool]) -> None:
    while child.poll() is None and not enough():
        time.sleep(_POLL_S)


def _kill_descendants(child: subprocess.Popen[bytes]) -> None:
    """Until there is none: one that is killed hands its own children up to this process."""
    while descendants := psutil.Process().children(recursive=True):
        for process in descendants:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        child.wait()  # first: psutil would take its exit status away
        if psutil.wait_procs(descendants, timeout=5)[1]:
            return  # one is stuck in the kernel; its pending SIGKILL is all that can be done


def _clean(order: dict[str, Any]) -> None:
    if order["shm_prefix"]:
        for segment in Path("/dev/shm").glob(order["shm_prefix"] + "*"):  # noqa: S108
            with contextlib.suppress(OSError):
                segment.unlink()
    if order["after"]:
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            subprocess.run(
                order["after"], stdin=subprocess.DEVNULL, timeout=_AFTER_TIMEOUT_S, check=False
            )


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
