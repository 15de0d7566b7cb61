"""A cluster in this process: Ray Tune and an errand's actor, as far as autotune knows them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from ray import cloudpickle as pickle
from ray.exceptions import RayActorError
from ray.tune.search import Searcher

from autotune.adapters.ray.cluster import At
from autotune.adapters.ray.relay import Call, Relay, Reply
from autotune.adapters.ray.trials import (
    Asked,
    Bench,
    Canary,
    Outcome,
    Stopping,
    Suggesting,
    Worker,
)
from autotune.core.measurement import Measurement, Purpose
from autotune.core.trial import TrialState
from tests.unit.made_trials import made_measurement


def at(name: str, device: str = "") -> At:
    return At(node=name, address="10.0.0.1", place=f"{name}, process 1", device=device)


def canary_of(rate: float) -> Measurement:
    """Of a device that takes so many requests a second."""
    within = {"saturation_qps": (0.99 * rate, 1.01 * rate)}
    return made_measurement(saturation=rate, within=within, purpose=Purpose.CANARY)


@dataclass
class FakeBench:
    """A device, and its order: ``rates`` are what its canaries measure one after another, the last
    one again and again (None: it cannot be told). No model loads whose trial is ``broken``."""

    name: str
    rates: list[float | None]
    canaries: int = 0
    measured: list[int] = field(default_factory=list)
    fails: Canary | None = None
    broken: tuple[int, ...] = ()

    def open(self) -> Bench:
        return self

    def canary(self) -> Canary:
        rate = self.rates[min(self.canaries, len(self.rates) - 1)]
        self.canaries += 1
        place = f"{self.name}, process 1, core 0"
        measured = None if rate is None else canary_of(rate)
        return self.fails or Canary(place=place, device="core 0", measured=measured)

    def measure(self, asked: Asked) -> Outcome:
        self.measured.append(asked.trial.number)
        if asked.trial.number in self.broken:
            return Outcome(state=TrialState.FAILED, reason="it does not load")
        return Outcome(measurements=[made_measurement()], state=TrialState.OK, took_s=1.0)

    def close(self) -> None: ...


@dataclass
class FakeTune:
    """Gives each free device a trial, and takes a report of each in turn; of all but the first
    only after ``late`` turns, since they come up later. ``before`` is called with the count of the
    reports so far, and may raise, as Ray does while it waits."""

    suggesting: Suggesting
    stopping: Stopping
    workers: list[Worker]
    before: Callable[[int], None] = lambda _: None
    late: int = 0

    def fit(self) -> None:
        running: dict[int, tuple[str, Iterator[dict[str, Any]]]] = {}
        names = iter(range(1000))
        reports = 0
        finished = False
        turns = 0
        while not self.stopping.stop_all():
            for index, worker in enumerate(self.workers):
                if index in running or finished:
                    continue
                name = f"tune-{next(names)}"
                told = self.suggesting.suggest(name)
                finished = told == Searcher.FINISHED
                if isinstance(told, dict):
                    running[index] = name, worker.reports(pickle.loads(told["asked"]))
            turns += 1
            for index, (name, coming) in list(running.items()):
                if index and turns <= self.late:
                    continue
                self.before(reports)
                reports += 1
                report = next(coming)
                if report.get("done"):
                    del running[index]
                    self.suggesting.on_trial_complete(name, report)
                else:
                    self.suggesting.on_trial_result(name, report)


@dataclass
class FakeHand:
    """An errand's actor in this process; ``lost_at`` says of which of its calls the driver hears
    nothing more, since its node is lost, or what comes instead of it (``raises``)."""

    name: str = "a"
    device: str = ""
    lost_at: Callable[[Call], bool] = lambda _: False
    raises: Callable[[], BaseException] = RayActorError
    began: bool = False
    ended: bool = False
    _relay: Relay = field(default_factory=Relay)
    _open: bool = False

    def seen(self) -> At:
        return at(self.name, self.device)

    def begin(self, work: Callable[[Relay], Any]) -> At:
        self.began = True
        self._relay.begin(work)
        return at(self.name)

    def exchange(self, reply: Reply | None) -> Call | Reply:
        message = self._relay.exchange(reply)
        self._open = isinstance(message, Call)
        if isinstance(message, Call) and self.lost_at(message):
            raise self.raises()
        return message

    def end(self) -> None:
        """The work's thread ends with it."""
        self.ended = True
        while self._open:
            gone = Reply(error=SystemError("the process is gone"))
            self._open = isinstance(self._relay.exchange(gone), Call)
