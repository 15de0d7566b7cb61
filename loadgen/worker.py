"""The load process: a Locust local runner that takes commands as JSON lines.

Standard input: a `Command` a line; then ``{"do": "start", "at": …}``, a time of CLOCK_MONOTONIC;
while it runs, ``{"do": "open", "at_s": …}`` ends its warm-up and ``{"do": "close", "at_s": …}``
its window, in seconds since the start, which else end when they are as long as they may be.
Standard output, one JSON line each: ``ready``; per run ``armed`` (it can start), ``opened``,
``closed`` (with ``at``, the time of CLOCK_MONOTONIC of that moment, sent when it comes) and
``done``; or ``failed``; or ``unsaved`` where the results could not be written. The raw times go to
the file that the command names; what is known meanwhile is appended to the stream file (see
`loadgen.stream`), if it names one. The process ends when its input is closed or its parent dies.

Where one process cannot send as much, several do: each has a share of the requests, and all are
told the same moments.
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
from gevent.event import AsyncResult
from gevent.fileobject import FileObjectPosix
from locust.env import Environment

from loadgen.bodies import Body, load_bodies
from loadgen.pacing import (
    Arrivals,
    OpenLoopPhase,
    Phase,
    SaturatePhase,
    Share,
    Watcher,
    Window,
)
from loadgen.results import Code, RawRun
from loadgen.stream import StreamWriter
from loadgen.transport import InferClient
from loadgen.users import InferUser

_PR_SET_PDEATHSIG = 1
_SPARE_DESCRIPTORS = 64
_NICE = -10
_REAL_TIME_US = 500_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One phase, or this process's share of it (see `loadgen.pacing.Share`). ``warm_up`` and
    ``arrivals`` are the .npy of an open loop's offsets; None saturates with ``in_flight``
    requests."""

    host: str
    model: str
    bodies: str
    warm_up: str | None
    arrivals: str | None
    in_flight: int
    warmup_s: float
    measure_s: float
    timeout_s: float
    tail_s: float
    cap: int
    result: str
    stream: str | None
    index: int = 0
    of: int = 1

    @property
    def window(self) -> Window:
        return Window(
            warmup_s=self.warmup_s,
            measure_s=self.measure_s,
            timeout_s=self.timeout_s,
            tail_s=self.tail_s,
            cap=min(self.cap, _descriptors() - _SPARE_DESCRIPTORS),
            share=Share(index=self.index, of=self.of),
        )


class WorkerUser(InferUser):
    command: ClassVar[Command]
    bodies: ClassVar[list[Body]]
    events: ClassVar[Events]
    phase: ClassVar[Phase | None] = None
    beginning: ClassVar[AsyncResult[float] | None] = None
    reporter: Reporter | None = None

    def model_name(self) -> str:
        return self.command.model

    def make_phase(self) -> Phase:
        command = self.command
        client = InferClient(command.host, command.model, self.bodies)
        self.reporter = reporter = Reporter(self.events, command.stream)
        phase: Phase
        if command.warm_up is None or command.arrivals is None:
            phase = SaturatePhase(client, command.window, self.report, command.in_flight, reporter)
        else:
            phase = OpenLoopPhase(
                client,
                command.window,
                self.report,
                Arrivals(
                    warm_up=np.load(command.warm_up).tolist(),
                    window=np.load(command.arrivals).tolist(),
                ),
                reporter,
            )
        _quiet_gc()
        _come_first()
        return phase

    def begins(self) -> float:
        beginning: AsyncResult[float] = AsyncResult()
        type(self).beginning = beginning
        self.events.write(event="armed")
        return float(beginning.get() or 0.0)

    def starting(self, phase: Phase, at: float) -> None:
        assert self.reporter is not None
        self.reporter.start = at
        type(self).phase = phase

    def on_stop(self) -> None:
        type(self).phase = None
        if self.reporter is not None:
            self.reporter.end()


class Events:
    """Writes events to what was standard output; whatever else prints goes to standard error."""

    def __init__(self) -> None:
        self._fd = os.dup(1)
        os.dup2(2, 1)

    def write(self, **event: Any) -> None:
        os.write(self._fd, json.dumps(event).encode() + b"\n")


class Reporter(Watcher):
    """Sends the moments of a phase to the driver, and its requests to the stream file."""

    def __init__(self, events: Events, stream: str | None) -> None:
        self._events = events
        self._stream = None if stream is None else StreamWriter(Path(stream))
        self.start = 0.0

    def opened(self, at_s: float, cpu_s: float) -> None:
        self._events.write(event="opened", at=self.start + at_s, at_s=at_s, cpu_s=cpu_s)

    def closed(self, at_s: float) -> None:
        self._events.write(event="closed", at=self.start + at_s, at_s=at_s)

    def sent(self, number: int, scheduled_s: float, sent_s: float) -> None:
        if self._stream is not None:
            self._stream.sent(number, scheduled_s, sent_s)

    def settled(
        self, number: int, scheduled_s: float, sent_s: float, done_s: float, code: int
    ) -> None:
        if self._stream is not None:
            self._stream.settled(number, scheduled_s, sent_s, done_s, code)

    def mark(
        self, now_s: float, complete_s: float, cpu_s: float, max_in_flight: int, cap_hit: bool
    ) -> None:
        if self._stream is None:
            return
        try:
            self._stream.mark(now_s, complete_s, cpu_s, max_in_flight, cap_hit)
        except OSError as exc:
            self._events.write(event="unsaved", reason=str(exc))
            self.end()

    def end(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None


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

    def control(self, order: dict[str, Any]) -> None:
        """Start the phase that is armed; open or close the window of the one that runs: too late,
        that is of no use."""
        phase = WorkerUser.phase
        if order["do"] == "start":
            assert WorkerUser.beginning is not None
            WorkerUser.beginning.set(float(order["at"]))
        elif phase is not None:
            act = phase.open if order["do"] == "open" else phase.close
            act(float(order["at_s"]))

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
        _check_settled(recorded)
        return recorded


def _recorded() -> RawRun | None:
    return WorkerUser.recorded


def _check_settled(recorded: RawRun) -> None:
    due = recorded.scheduled_s
    counted = (due >= recorded.opened_s) & (due < recorded.closed_s)
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
        "opened_s": recorded.opened_s,
        "closed_s": recorded.closed_s,
        "generator_cpu": recorded.generator_cpu,
        "max_in_flight": recorded.max_in_flight,
        "cap_hit": recorded.cap_hit,
        "texts": [[int(code), text] for code, text in recorded.texts.items()],
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
        if "do" in order:
            service.control(order)
        else:
            gevent.spawn(service.run, Command(**order))
    os._exit(0)  # the driver closed the input: nothing that still runs is wanted any more


if __name__ == "__main__":
    main()
