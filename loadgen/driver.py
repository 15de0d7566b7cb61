"""Drives the load process: one, kept for all phases, replaced when it dies."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from autotune.core.errors import LoadFailed
from autotune.core.measurement import LoadResult
from autotune.core.model_interface import Endpoint, ModelInterface, Sample
from autotune.ports import LoadPlan, OpenLoop, WindowObserver
from loadgen.arrivals import looks_s, schedule_at_rate, warm_up
from loadgen.bodies import build_bodies, save_bodies
from loadgen.conduct import Conduct, Course
from loadgen.process import LoadProcess, unwritable
from loadgen.results import summarise
from loadgen.scratch import ScratchFolder

if TYPE_CHECKING:
    from numpy.typing import NDArray

_STREAM = "stream.f8"
_RESULT = "result.npz"


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
        self._folder: ScratchFolder | None = None
        self._worker: LoadProcess | None = None
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
            raise unwritable(str(exc)) from exc
        self._model = model.name
        self._living_worker()

    def run(self, endpoint: Endpoint, plan: LoadPlan, window: WindowObserver) -> LoadResult:
        """Run one phase; whatever goes wrong or is raised meanwhile, the load ends at once."""
        if not self._prepared:
            raise LoadFailed("the load driver was not prepared", next_step="call prepare() first")
        command = self._command(endpoint, plan)
        worker = self._living_worker()
        try:
            course = self._phase(worker, command, plan, window)
        except BaseException:
            self._discard_worker()
            raise
        result = summarise(
            course.recorded,
            timeout_s=plan.timeout_s,
            keep_samples=self._keep_samples,
            completions=not isinstance(plan.mode, OpenLoop),
        )
        return replace(result, steady=course.steady, ended=course.ended)

    def close(self) -> None:
        """End the load process and remove its files. Safe to call twice."""
        self._discard_worker()
        if self._folder is not None:
            self._folder.remove()
            self._folder = None
            self._prepared = 0

    # ------------------------------------------------------------------------------ a phase
    def _phase(
        self,
        worker: LoadProcess,
        command: dict[str, Any],
        plan: LoadPlan,
        window: WindowObserver,
    ) -> Course:
        worker.send(command)
        started = worker.expect("started", time.monotonic() + self._start_timeout_s)
        return Conduct(
            process=worker,
            plan=plan,
            window=window,
            start=float(started["at"]),
            grace_s=self._grace_s,
            stream=self._path / _STREAM,
            result=self._path / _RESULT,
        ).run()

    def _command(self, endpoint: Endpoint, plan: LoadPlan) -> dict[str, Any]:
        before, arrivals = self._schedules(plan)
        return {
            "host": endpoint.http,
            "model": self._model,
            "bodies": str(self._bodies_path),
            "warm_up": before,
            "arrivals": arrivals,
            "in_flight": 0 if isinstance(plan.mode, OpenLoop) else plan.mode.in_flight,
            "warmup_s": plan.warmup_s,
            "measure_s": plan.measure_s,
            "timeout_s": plan.timeout_s,
            "tail_s": plan.tail_s,
            "cap": plan.max_in_flight,
            "result": str(self._path / _RESULT),
            "stream": self._stream(plan),
        }

    def _schedules(self, plan: LoadPlan) -> tuple[str | None, str | None]:
        """The arrivals of the warm-up, and those of the window with enough of them after it to
        load it to its end."""
        if not isinstance(plan.mode, OpenLoop):
            return None, None
        arrival, qps, seed = plan.mode.arrival, plan.mode.qps, plan.mode.seed
        before = warm_up(arrival, qps=qps, seed=seed, duration_s=plan.warmup_s)
        arrivals = schedule_at_rate(
            arrival,
            qps=qps,
            seed=seed,
            duration_s=plan.measure_s + plan.tail_s,
            looks=looks_s(plan.first_look_s, plan.measure_s),
        )
        return self._save("warm_up.npy", before), self._save("arrivals.npy", arrivals)

    def _save(self, name: str, offsets: NDArray[np.float64]) -> str:
        path = self._path / name
        try:
            np.save(path, offsets)
        except OSError as exc:
            raise unwritable(str(exc)) from exc
        return str(path)

    def _stream(self, plan: LoadPlan) -> str | None:
        """An empty stream file, where the plan wants to know how the phase goes."""
        if not plan.until_steady and plan.first_look_s is None:
            return None
        path = self._path / _STREAM
        try:
            path.write_bytes(b"")
        except OSError as exc:
            raise unwritable(str(exc)) from exc
        return str(path)

    # ----------------------------------------------------------------------- files, process
    @property
    def _path(self) -> Path:
        if self._folder is None:
            try:
                self._folder = ScratchFolder()
            except OSError as exc:
                raise unwritable(str(exc)) from exc
        return self._folder.path

    @property
    def _bodies_path(self) -> Path:
        return self._path / f"bodies-{self._prepared}.npz"

    def _living_worker(self) -> LoadProcess:
        if self._worker is not None and not self._worker.alive():
            self._discard_worker()
        if self._worker is None:
            self._worker = LoadProcess(self._path / "worker.log")
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
