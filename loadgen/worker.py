"""The load process: a Locust local runner that takes commands as JSON lines.

Standard input: a `Command` a line. Standard output, one JSON line each:
``ready``; per run ``started`` (with the time of CLOCK_MONOTONIC at which the phase begins, so that
the driver can tell when the window opens by its own clock) and ``done``, ``failed``, or ``unsaved``
where the results could not be written. The raw
times go to the file that the command names. The process ends when its input is closed or its
parent dies.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import resource
import signal
import sys
import traceback
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import gevent
import numpy as np
from gevent.fileobject import FileObjectPosix
from locust.env import Environment

from loadgen.bodies import Body, load_bodies
from loadgen.pacing import OpenLoopPhase, Phase, SaturatePhase, Window
from loadgen.results import Code, RawRun
from loadgen.transport import InferClient
from loadgen.users import InferUser

_PR_SET_PDEATHSIG = 1
_SPARE_DESCRIPTORS = 64
_NICE = -10
_REAL_TIME_US = 500_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One phase. ``schedule`` is the .npy of an open loop's offsets; None saturates with
    ``in_flight`` requests."""

    host: str
    model: str
    bodies: str
    schedule: str | None
    in_flight: int
    warmup_s: float
    measure_s: float
    timeout_s: float
    cap: int
    result: str

    @property
    def window(self) -> Window:
        return Window(
            warmup_s=self.warmup_s,
            measure_s=self.measure_s,
            timeout_s=self.timeout_s,
            cap=min(self.cap, _descriptors() - _SPARE_DESCRIPTORS),
        )


class WorkerUser(InferUser):
    command: ClassVar[Command]
    bodies: ClassVar[list[Body]]
    events: ClassVar[Events]

    def model_name(self) -> str:
        return self.command.model

    def make_phase(self) -> Phase:
        command = self.command
        client = InferClient(command.host, command.model, self.bodies)
        phase: Phase
        if command.schedule is None:
            phase = SaturatePhase(client, command.window, self.report, command.in_flight)
        else:
            schedule = np.load(command.schedule).tolist()
            phase = OpenLoopPhase(client, command.window, self.report, schedule)
        _quiet_gc()
        _come_first()
        return phase

    def starting(self, at: float) -> None:
        self.events.write(event="started", at=at)


class Events:
    """Writes events to what was standard output; whatever else prints goes to standard error."""

    def __init__(self) -> None:
        self._fd = os.dup(1)
        os.dup2(2, 1)

    def write(self, **event: Any) -> None:
        os.write(self._fd, json.dumps(event).encode() + b"\n")


class Service:
    """Runs one command at a time; the bodies of the last one are kept."""

    def __init__(self, events: Events) -> None:
        self._environment = Environment(user_classes=[WorkerUser], catch_exceptions=False)
        self._runner = self._environment.create_local_runner()
        self._events = events
        self._bodies_from = ""
        WorkerUser.events = events

    def run(self, command: Command) -> None:
        try:
            recorded = self._phase(command)
        except Exception:  # noqa: BLE001  -- whatever it is, the driver must hear of it
            self._events.write(event="failed", reason=traceback.format_exc(limit=-3))
            return
        try:
            _save(recorded, Path(command.result))
        except OSError as exc:
            self._events.write(event="unsaved", reason=str(exc))
            return
        self._events.write(event="done", **_scalars(recorded))

    def _phase(self, command: Command) -> RawRun:
        if self._bodies_from != command.bodies:
            WorkerUser.bodies = load_bodies(Path(command.bodies))
            self._bodies_from = command.bodies
        WorkerUser.command = command
        WorkerUser.recorded = None
        self._runner.start(1, spawn_rate=1)
        assert self._runner.spawning_greenlet is not None
        self._runner.spawning_greenlet.join()
        self._runner.user_greenlets.join()
        self._runner.stop()
        gc.enable()
        recorded = _recorded()
        if recorded is None:
            errors = [
                error["msg"] + error["traceback"] for error in self._runner.exceptions.values()
            ]
            raise RuntimeError("the phase did not end: " + "".join(errors))
        _check_settled(recorded, command)
        return recorded


def _recorded() -> RawRun | None:
    return WorkerUser.recorded


def _check_settled(recorded: RawRun, command: Command) -> None:
    due = recorded.scheduled_s
    counted = (due >= command.warmup_s) & (due < command.warmup_s + command.measure_s)
    lost = int(np.count_nonzero((recorded.code == Code.PENDING) & counted))
    if lost:
        raise RuntimeError(f"{lost} requests were neither answered nor timed out")


def _save(recorded: RawRun, path: Path) -> None:
    np.savez(
        path,
        scheduled_s=recorded.scheduled_s,
        sent_s=recorded.sent_s,
        done_s=recorded.done_s,
        code=recorded.code,
    )


def _scalars(recorded: RawRun) -> dict[str, Any]:
    return {
        "generator_cpu": recorded.generator_cpu,
        "max_in_flight": recorded.max_in_flight,
        "cap_hit": recorded.cap_hit,
    }


def _quiet_gc() -> None:
    """A full collection takes tens of milliseconds with Locust loaded: have it before the phase,
    and none during it."""
    gc.collect()
    gc.freeze()
    gc.disable()


def _descriptors() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1 << 20 if soft == resource.RLIM_INFINITY else soft


def _settle_in(parent: int) -> None:
    """Die with the parent, leave Ctrl-C to it, and have as many descriptors as the system gives."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit("the parent is gone")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _come_first() -> None:
    """Be scheduled before the server on a busy machine: what is sent late measures nothing.

    Real-time where it is allowed, else a better nice value. With both cores of a machine taken,
    the p99 send lag at 1,000 requests/s was 1.3 ms with the first, 4 to 6 ms with the second and
    above 500 ms with neither.
    """
    with suppress(OSError):
        _step_down_when_it_never_waits()
        os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(1))
        return
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, _NICE)
        # Between sessions it is the session's own nice value that counts, where Linux groups
        # processes by session (sched_autogroup), and this process has a session of its own.
        Path("/proc/self/autogroup").write_text(str(_NICE), encoding="ascii")


def _step_down_when_it_never_waits() -> None:
    """A real-time process that does not sleep for so long (`getrlimit(2)`, RLIMIT_RTTIME) is an
    ordinary one until the next phase: it has more to send than it can, and must not take a core
    from all others. Linux may keep 5% of a core for them, but need not."""

    def step_down(*_: object) -> None:
        with suppress(OSError):
            ordinary = os.SCHED_OTHER | os.SCHED_RESET_ON_FORK  # to clear the flag is a privilege
            os.sched_setscheduler(0, ordinary, os.sched_param(0))

    signal.signal(signal.SIGXCPU, step_down)
    _, hard = resource.getrlimit(resource.RLIMIT_RTTIME)
    resource.setrlimit(resource.RLIMIT_RTTIME, (_REAL_TIME_US, hard))


def main() -> None:
    _settle_in(int(sys.argv[1]))
    events = Events()
    service = Service(events)
    events.write(event="ready")
    for line in FileObjectPosix(0, "rb", close=False):
        order = json.loads(line)
        gevent.spawn(service.run, Command(**order))
    os._exit(0)  # the driver closed the input: nothing that still runs is wanted any more


if __name__ == "__main__":
    main()
