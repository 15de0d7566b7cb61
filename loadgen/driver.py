"""Drives the load process: one, kept for all phases, replaced when it dies."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from autotune.core.errors import AutotuneError, LoadFailed
from autotune.core.measurement import LoadResult
from autotune.core.model_interface import Endpoint, ModelInterface, Sample
from autotune.ports import LoadPlan, OpenLoop, WindowObserver
from loadgen.arrivals import schedule_at_rate
from loadgen.bodies import build_bodies, save_bodies
from loadgen.results import RawRun, summarise

_ROOT = Path(__file__).resolve().parent.parent
_LOG_LINES = 15


class LocustDriver:
    """A `LoadDriver` on Locust.

    ``start_timeout_s``: how long the load process may take to come up; ``grace_s``: by how much a
    phase may overrun its longest course before the process is killed. ``keep_samples`` leaves the
    raw times in the results.
    """

    def __init__(
        self, *, start_timeout_s: float = 60.0, grace_s: float = 15.0, keep_samples: bool = True
    ) -> None:
        self._start_timeout_s = start_timeout_s
        self._grace_s = grace_s
        self._keep_samples = keep_samples
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._worker: _Worker | None = None
        self._prepared = 0
        self._model = ""

    def prepare(self, model: ModelInterface, samples: Sequence[Sample]) -> None:
        """Build the bodies and bring the load process up. InputRefused for a bad sample."""
        bodies = build_bodies(model, samples)
        self._bodies_path.unlink(missing_ok=True)
        self._prepared += 1
        try:
            save_bodies(bodies, self._bodies_path)
        except OSError as exc:
            raise _unwritable(str(exc)) from exc
        self._model = model.name
        self._living_worker()

    def run(self, endpoint: Endpoint, plan: LoadPlan, window: WindowObserver) -> LoadResult:
        """Run one phase; whatever goes wrong or is raised meanwhile, the load ends at once."""
        if not self._prepared:
            raise LoadFailed("the load driver was not prepared", next_step="call prepare() first")
        command = self._command(endpoint, plan)
        worker = self._living_worker()
        try:
            recorded = self._phase(worker, command, plan, window)
        except BaseException:
            self._discard_worker()
            raise
        return summarise(
            recorded,
            warmup_s=plan.warmup_s,
            measure_s=plan.measure_s,
            timeout_s=plan.timeout_s,
            keep_samples=self._keep_samples,
        )

    def close(self) -> None:
        """End the load process and remove its files. Safe to call twice."""
        self._discard_worker()
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None
            self._prepared = 0

    # ------------------------------------------------------------------------------ a phase
    def _phase(
        self, worker: _Worker, command: dict[str, Any], plan: LoadPlan, window: WindowObserver
    ) -> RawRun:
        worker.send(command)
        started = worker.expect("started", time.monotonic() + self._start_timeout_s)
        start = float(started["at"])
        for after_s, callback in (
            (plan.warmup_s, window.opened),
            (plan.warmup_s + plan.measure_s, window.closed),
        ):
            worker.wait_until(start + after_s)
            callback()
        longest_s = plan.warmup_s + plan.measure_s + plan.timeout_s
        done = worker.expect("done", start + longest_s + self._grace_s)
        result = Path(command["result"])
        recorded = _read(result, done)
        result.unlink()
        return recorded

    def _command(self, endpoint: Endpoint, plan: LoadPlan) -> dict[str, Any]:
        return {
            "host": endpoint.http,
            "model": self._model,
            "bodies": str(self._bodies_path),
            "schedule": self._schedule(plan),
            "in_flight": 0 if isinstance(plan.mode, OpenLoop) else plan.mode.in_flight,
            "warmup_s": plan.warmup_s,
            "measure_s": plan.measure_s,
            "timeout_s": plan.timeout_s,
            "cap": plan.max_in_flight,
            "result": str(self._path / "result.npz"),
        }

    def _schedule(self, plan: LoadPlan) -> str | None:
        """The arrivals of a phase, with enough of them after the window to load it to its end."""
        if not isinstance(plan.mode, OpenLoop):
            return None
        closes_s = plan.warmup_s + plan.measure_s
        offsets = schedule_at_rate(
            plan.mode.arrival,
            qps=plan.mode.qps,
            seed=plan.mode.seed,
            duration_s=closes_s + plan.tail_s,
            window_s=(plan.warmup_s, closes_s),
        )
        path = self._path / "schedule.npy"
        try:
            np.save(path, offsets)
        except OSError as exc:
            raise _unwritable(str(exc)) from exc
        return str(path)

    # ----------------------------------------------------------------------- files, process
    @property
    def _path(self) -> Path:
        if self._folder is None:
            try:
                self._folder = tempfile.TemporaryDirectory(prefix="autotune-load-")
            except OSError as exc:
                raise _unwritable(str(exc)) from exc
        return Path(self._folder.name)

    @property
    def _bodies_path(self) -> Path:
        return self._path / f"bodies-{self._prepared}.npz"

    def _living_worker(self) -> _Worker:
        if self._worker is not None and not self._worker.alive():
            self._discard_worker()
        if self._worker is None:
            self._worker = _Worker(self._path / "worker.log")
            try:
                self._worker.expect("ready", time.monotonic() + self._start_timeout_s)
            except BaseException:
                self._discard_worker()
                raise
        return self._worker

    def _discard_worker(self) -> None:
        if self._worker is not None:
            worker, self._worker = self._worker, None
            worker.kill()


def _unwritable(reason: str) -> AutotuneError:
    """Not `LoadFailed`: a full disk stays full, however often the load is run again."""
    return AutotuneError(
        "the load generator's files cannot be written",
        value=reason,
        next_step="Make room in the temporary directory, or set TMPDIR; then go on with --resume.",
    )


def _read(path: Path, done: dict[str, Any]) -> RawRun:
    with np.load(path, allow_pickle=False) as archive:
        return RawRun(
            scheduled_s=archive["scheduled_s"],
            sent_s=archive["sent_s"],
            done_s=archive["done_s"],
            code=archive["code"],
            generator_cpu=float(done["generator_cpu"]),
            max_in_flight=int(done["max_in_flight"]),
            cap_hit=bool(done["cap_hit"]),
        )


class _Worker:
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
        event = self._next_event(deadline)
        if event is None:
            raise LoadFailed(
                f"the load generator did not get to '{name}' by its deadline and was stopped",
                next_step=self._log_tail(),
            )
        if event.get("event") == "unsaved":
            raise _unwritable(event["reason"])
        if event.get("event") != name:
            raise LoadFailed("the load generator failed", next_step=str(event.get("reason", event)))
        return event

    def wait_until(self, when: float) -> None:
        """Wait for a time of `time.monotonic`. LoadFailed for a failure meanwhile; a result that is
        there already (this process may wake late) is kept for `expect`."""
        event = self._next_event(when)
        if event is not None and event.get("event") in {"done", "unsaved"}:
            self._buffer = json.dumps(event).encode() + b"\n" + self._buffer
        elif event is not None:
            raise LoadFailed("the load generator failed", next_step=str(event.get("reason", event)))

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

    def _next_event(self, until: float) -> dict[str, Any] | None:
        while b"\n" not in self._buffer:
            # What is there already is read even after the time: this process may wake late.
            if not self._selector.select(max(0.0, until - time.monotonic())):
                return None
            chunk = self._events.read(65536)
            if chunk == b"":
                raise self._died()
            self._buffer += chunk or b""
        line, _, self._buffer = self._buffer.partition(b"\n")
        event: dict[str, Any] = json.loads(line)
        return event

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
