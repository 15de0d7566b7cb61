"""Drives the load processes: one, or as many as the rate takes, kept for all phases, replaced when
one dies."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from autotune.core.errors import LoadFailed
from autotune.core.measurement import LoadResult
from autotune.core.model_interface import Endpoint, ModelInterface, Sample
from autotune.ports import LoadPlan, OpenLoop, WindowObserver
from loadgen.arrivals import looks_s, schedule_at_rate, warm_up
from loadgen.bodies import build_bodies, save_bodies
from loadgen.conduct import Conduct, Course
from loadgen.process import LoadFleet, LoadProcess, unwritable
from loadgen.results import summarise
from loadgen.scratch import ScratchFolder

if TYPE_CHECKING:
    from numpy.typing import NDArray

Processes: TypeAlias = Callable[[ModelInterface, Sequence[Sample], float], int]


def one(_model: ModelInterface, _samples: Sequence[Sample], _qps: float) -> int:
    """One process, whatever the rate."""
    return 1


class LocustDriver:
    """A `LoadDriver` on Locust.

    ``start_timeout_s``: how long the load process may take to come up; ``grace_s``: by how much a
    phase may overrun its longest course before the process is killed. ``keep_samples`` leaves the
    raw times in the results. ``processes`` says how many share the load of a model's samples at a
    rate in requests per second (see `loadgen.sizing`).
    """

    def __init__(
        self,
        *,
        start_timeout_s: float = 60.0,
        grace_s: float = 15.0,
        keep_samples: bool = True,
        processes: Processes = one,
    ) -> None:
        self._start_timeout_s = start_timeout_s
        self._grace_s = grace_s
        self._keep_samples = keep_samples
        self._folder: ScratchFolder | None = None
        self._workers: list[LoadProcess] = []
        self._processes = processes
        self._prepared = 0
        self._samples: Sequence[Sample] = ()

    def prepare(self, model: ModelInterface, samples: Sequence[Sample]) -> None:
        """Build the bodies and bring the load process up. InputRefused for a bad sample."""
        bodies = build_bodies(model, samples)
        self._bodies_path.unlink(missing_ok=True)
        self._prepared += 1
        try:
            save_bodies(bodies, self._bodies_path)
        except OSError as exc:
            raise unwritable(str(exc)) from exc
        self._model, self._samples = model, samples
        self._living(1)

    def run(self, endpoint: Endpoint, plan: LoadPlan, window: WindowObserver) -> LoadResult:
        """Run one phase; whatever goes wrong or is raised meanwhile, the load ends at once."""
        if not self._prepared:
            raise LoadFailed("the load driver was not prepared", next_step="call prepare() first")
        try:
            fleet = self._living(self._needed(plan))
            course = self._phase(fleet, endpoint, plan, window)
        except BaseException:
            self._discard()
            raise
        result = summarise(
            course.recorded,
            timeout_s=plan.timeout_s,
            keep_samples=self._keep_samples,
            completions=not isinstance(plan.mode, OpenLoop),
        )
        return replace(result, steady=course.steady, ended=course.ended)

    def close(self) -> None:
        """End the load processes and remove their files. Safe to call twice."""
        self._discard()
        if self._folder is not None:
            self._folder.remove()
            self._folder = None
            self._prepared = 0

    # ------------------------------------------------------------------------------ a phase
    def _phase(
        self, fleet: LoadFleet, endpoint: Endpoint, plan: LoadPlan, window: WindowObserver
    ) -> Course:
        of = len(fleet.members)
        commands = self._commands(endpoint, plan, of)
        for member, command in zip(fleet.members, commands, strict=True):
            member.send(command)
        fleet.expect("armed", time.monotonic() + self._start_timeout_s)
        start = time.monotonic() + fleet.lead_s
        fleet.send({"do": "start", "at": start})
        return Conduct(
            fleet=fleet,
            plan=plan,
            window=window,
            start=start,
            grace_s=self._grace_s,
            streams=[self._file("stream", index, "f8") for index in range(of)],
            results=[self._file("result", index, "npz") for index in range(of)],
        ).run()

    def _commands(self, endpoint: Endpoint, plan: LoadPlan, of: int) -> list[dict[str, Any]]:
        """Each process's share of the phase."""
        before, arrivals = self._schedules(plan)
        in_flight = 0 if isinstance(plan.mode, OpenLoop) else plan.mode.in_flight
        return [
            {
                "host": endpoint.http,
                "model": self._model.name,
                "bodies": str(self._bodies_path),
                "warm_up": self._save("warm_up", index, before, of),
                "arrivals": self._save("arrivals", index, arrivals, of),
                "in_flight": _share(in_flight, index, of),
                "warmup_s": plan.warmup_s,
                "measure_s": plan.measure_s,
                "timeout_s": plan.timeout_s,
                "tail_s": plan.tail_s,
                "cap": _share(plan.max_in_flight, index, of),
                "result": str(self._file("result", index, "npz")),
                "stream": self._stream(plan, index),
                "index": index,
                "of": of,
            }
            for index in range(of)
        ]

    def _schedules(
        self, plan: LoadPlan
    ) -> tuple[NDArray[np.float64] | None, NDArray[np.float64] | None]:
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
        return before, arrivals

    def _save(
        self, name: str, index: int, offsets: NDArray[np.float64] | None, of: int
    ) -> str | None:
        """Every ``of``-th arrival: together they are the schedule, request by request."""
        if offsets is None:
            return None
        path = self._file(name, index, "npy")
        try:
            np.save(path, offsets[index::of])
        except OSError as exc:
            raise unwritable(str(exc)) from exc
        return str(path)

    def _stream(self, plan: LoadPlan, index: int) -> str | None:
        """An empty stream file, where the plan wants to know how the phase goes."""
        if not plan.until_steady and plan.first_look_s is None:
            return None
        path = self._file("stream", index, "f8")
        try:
            path.write_bytes(b"")
        except OSError as exc:
            raise unwritable(str(exc)) from exc
        return str(path)

    # ----------------------------------------------------------------------- files, processes
    @property
    def _path(self) -> Path:
        if self._folder is None:
            try:
                self._folder = ScratchFolder()
            except OSError as exc:
                raise unwritable(str(exc)) from exc
        return self._folder.path

    def _file(self, name: str, index: int, suffix: str) -> Path:
        """Of one of the processes."""
        return self._path / (f"{name}-{index}.{suffix}" if index else f"{name}.{suffix}")

    @property
    def _bodies_path(self) -> Path:
        return self._path / f"bodies-{self._prepared}.npz"

    def _needed(self, plan: LoadPlan) -> int:
        """How many processes the phase takes: a burst as many as there are already."""
        if isinstance(plan.mode, OpenLoop):
            return self._processes(self._model, self._samples, plan.mode.qps)
        return max(1, len(self._workers))

    def _living(self, of: int) -> LoadFleet:
        """So many processes that are ready; those that are there already are taken again."""
        if not all(worker.alive() for worker in self._workers):
            self._discard()
        new = [
            LoadProcess(self._file("worker", index, "log"))
            for index in range(len(self._workers), of)
        ]
        self._workers.extend(new)
        try:
            for worker in new:
                worker.expect("ready", time.monotonic() + self._start_timeout_s)
        except BaseException:
            self._discard()
            raise
        return LoadFleet(self._workers[:of])

    def _discard(self) -> None:
        workers, self._workers = self._workers, []
        for worker in workers:
            worker.kill()


def _share(whole: int, index: int, of: int) -> int:
    """Shares of a number, which add up to it."""
    return whole // of + (index < whole % of)
