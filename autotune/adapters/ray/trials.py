"""A study's search as Ray Tune's: Tune keeps the devices busy, and the study decides on what."""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from ray import cloudpickle as pickle
from ray import tune
from ray.tune.search import Searcher
from ray.tune.stopper import Stopper

from autotune.adapters.ray.cluster import PROBE_S, At, Devices, Patience, at, interruptible
from autotune.core.canary import changed
from autotune.core.errors import AutotuneError
from autotune.core.kinds import typical
from autotune.core.measurement import Measurement
from autotune.core.trial import Trial, TrialState
from autotune.core.variants import VariantRecord
from autotune.ports import TrialSource

LOSSES = 2
"""How often a trial is begun again on another device when its own is lost."""
IDLE_S = 1.0
"""How often a device that waits for the search's end looks whether it has come."""
READY_S = 600.0
"""So long what ended waits for a device that comes up and has not measured the configuration in
service yet; for a trial that no node has given a slot, `PROBE_S`."""
_ASKED = "asked"
_AT, _CANARY, _IDLE, _OUTCOME = "at", "canary", "idle", "outcome"
"""What a device reports of a trial, in this order: where it is begun; before a device's first one
what the configuration in service measures there; that the trial is not measured there; what came of
it."""
_LOOK_S = 5.0


# Candidates are read-only mappings, which the standard library's pickle refuses.
_pickled: Callable[[object], bytes] = pickle.dumps


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A trial to measure, and those that have ended ``so_far``. ``reference``: what the
    configuration in service measures on the study's other devices (None: it is not known yet)."""

    trial: Trial
    so_far: Sequence[Trial]
    reference: Measurement | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Canary:
    """What the configuration in service measures on a device; None where that cannot be told, or
    nobody asks. ``place`` and ``device`` as in `At`. ``error`` ends the study: the device cannot be
    made ready."""

    place: str = ""
    device: str = ""
    measured: Measurement | None = None
    error: AutotuneError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of a trial on its node: each try, and why it was measured ``again``; what was found
    of ``variants`` on the way; how long it ``took_s`` on a device that was ready. ``error`` ends
    the study."""

    measurements: Sequence[Measurement] = ()
    again: Sequence[str] = ()
    state: TrialState = TrialState.INVALID
    reason: str = ""
    variants: Sequence[VariantRecord] = ()
    took_s: float | None = None
    error: AutotuneError | None = None


class Bench(Protocol):
    """What measures on a node; kept from trial to trial."""

    def canary(self) -> Canary:
        """Make the device ready, and measure the configuration in service on it."""

    def measure(self, asked: Asked) -> Outcome: ...

    def close(self) -> None: ...


class Order(Protocol):
    """Shipped to each node: all that is needed there."""

    def open(self) -> Bench: ...


@dataclass(slots=True)
class Worker:
    """One process on one device: its server stays up from one trial to the next. A device whose
    canary is not what the others' is, twice over, keeps its slot and measures nothing: else it
    would be given to the next trial."""

    order: Order
    where: At
    pause: Callable[[float], None] = time.sleep
    _bench: Bench | None = field(default=None, init=False)
    _canary: Canary = field(default_factory=Canary, init=False)

    def reports(self, asked: Asked) -> Iterator[dict[str, Any]]:
        """Of one trial; the last one is ``done``."""
        yield {_AT: _pickled(self.where)}
        bench = self._bench
        if bench is None:
            bench = self._bench = self.order.open()
            yield self._looked(bench)
        if self._canary.error is not None:
            yield {_OUTCOME: _pickled(Outcome(error=self._canary.error)), "done": True}
            return
        if self._differs(asked):
            yield self._looked(bench)  # once more: a neighbour may have come by for a moment
        while self._differs(asked):
            yield {_IDLE: True}
            self.pause(IDLE_S)
        yield {_OUTCOME: _pickled(bench.measure(asked)), "done": True}

    def _looked(self, bench: Bench) -> dict[str, Any]:
        self._canary = bench.canary()
        if self._canary.place:
            own = {"place": self._canary.place, "device": self._canary.device}
            self.where = replace(self.where, **own)
        return {_AT: _pickled(self.where), _CANARY: _pickled(self._canary)}

    def _differs(self, asked: Asked) -> bool:
        measured = self._canary.measured
        if asked.reference is None or measured is None:
            return False
        return changed(asked.reference, measured) is not None

    def close(self) -> None:
        if self._bench is not None:
            self._bench.close()
            self._bench = None


class Measuring(tune.Trainable):
    """A worker as Tune's actor. Tune ends it where anything is raised, as where it is lost."""

    def setup(self, config: dict[str, Any], order: Order | None = None) -> None:
        assert order is not None, "given by tune.with_parameters"
        self._worker = Worker(order, at())
        self.reset_config(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self._reports = self._worker.reports(pickle.loads(new_config[_ASKED]))
        return True

    def step(self) -> dict[str, Any]:
        return next(self._reports)

    def cleanup(self) -> None:
        self._worker.close()


@dataclass(slots=True)
class Bridge:
    """The study's side: what is suggested and what comes of it. No more than ``many`` trials are
    under way at once on the slots that are ``there``.

    Each device measures the configuration in service before its first trial. When all those under
    way have (or are waited for no more: `READY_S`, `PROBE_S`) it is settled which of them measure
    alike (see `autotune.core.kinds.typical`); what ended before is held until then. What the others
    measure is not taken, and measured again on one of those."""

    source: TrialSource
    keep_variants: Callable[[Sequence[VariantRecord]], None] = lambda _: None
    many: int = sys.maxsize
    there: int = sys.maxsize
    clock: Callable[[], float] = time.monotonic
    error: Exception | None = None
    over: bool = False
    under_way: dict[str, Trial] = field(default_factory=dict)
    idle: dict[str, At] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    _at: dict[str, At] = field(default_factory=dict)
    _canaries: dict[str, Measurement] = field(default_factory=dict)
    _looked: set[str] = field(default_factory=set)
    _reference: Measurement | None = None
    _settled: bool = False
    _held: list[tuple[Trial, At | None, Outcome]] = field(default_factory=list)
    _held_since: float = 0.0
    _to_begin: list[Trial] = field(default_factory=list)
    _losses: Counter[int] = field(default_factory=Counter)

    @property
    def full(self) -> bool:
        return len(self.under_way) >= min(self.many, self.there - len(self.idle))

    @property
    def unlike(self) -> Counter[str]:
        """How many slots of which node measure nothing."""
        return Counter(where.node for where in self.idle.values())

    @property
    def alike(self) -> set[str]:
        """The places that were found to measure alike."""
        return {place for place in self._canaries if self._differs(place) is None}

    def more(self) -> bool:
        """Whether there is anything to measure, before the first trial is suggested."""
        first = self.source.next()
        if first is not None:
            self._to_begin.append(first)
        return first is not None

    def suggest(self, name: str) -> Asked | None:
        """What was lost comes before what is new. Without anything under way None is the end."""
        trial = self._to_begin.pop(0) if self._to_begin else self.source.next()
        if trial is None:
            self.over = not self.under_way
            return None
        self.under_way[name] = trial
        return Asked(trial=trial, so_far=self.source.so_far(), reference=self._reference)

    def begun(self, name: str, where: At) -> None:
        self._at[name] = where
        self.settle()

    def looked(self, name: str, canary: Canary) -> None:
        """At a device that was given the trial: its latest canary counts."""
        place = self._at[name].place
        self._looked.add(place)
        if canary.measured is not None and canary.measured.intervals:
            self._canaries[place] = canary.measured
        self.settle()

    def idles(self, name: str) -> None:
        """The trial's device measures nothing any more."""
        trial = self.under_way.pop(name, None)
        if trial is None:
            return
        where = self.idle[name] = self._at[name]
        told = self._otherwise(where)
        self.warnings.append(f"{told}: none of its measurements was taken")
        self._begin_again(trial, told)

    def lost(self, name: str) -> None:
        """The trial's device was lost: it is begun again, under another of Tune's names, unless
        that has happened too often."""
        self.idle.pop(name, None)
        where = self._at.pop(name, None)
        trial = self.under_way.pop(name, None)
        if trial is None or self.error is not None:
            return
        told = "its device was lost" + (f": {where}" if where else ", before it was ready")
        self.warnings.append(f"trial {trial.number}: {told}")
        self._losses[trial.number] += 1
        if self._losses[trial.number] > LOSSES:
            why = f"its device was lost {LOSSES + 1} times"
            self.source.ended(trial.number, TrialState.INVALID, why)
        else:
            self._begin_again(trial, told)
        self.settle()

    def ended(self, name: str, outcome: Outcome) -> None:
        trial = self.under_way.pop(name, None)
        where = self._at.pop(name, None)
        if trial is None:
            return
        if outcome.error is not None:
            self._store(trial, outcome)
            self.error = outcome.error
            return
        if not self._held:
            self._held_since = self.clock()
        self._held.append((trial, where, outcome))
        self.settle()

    def settle(self) -> None:
        """Take what has ended, once it can be told whether its device measures as the others do."""
        if not self._held or self._awaits_canaries():
            return
        self._settled = True
        if self._reference is None:
            chosen = typical(list(self._canaries.values()))
            self._reference = chosen and _light(chosen)
        held, self._held = self._held, []
        for trial, where, outcome in held:
            if where is not None and self._differs(where.place) is not None:
                self._begin_again(trial, self._otherwise(where))
                continue
            self._store(trial, outcome)
            self.source.ended(trial.number, outcome.state, outcome.reason, outcome.took_s)

    @contextmanager
    def keeping(self) -> Iterator[None]:
        """What is raised is kept as what ends the run."""
        try:
            yield
        except Exception as exc:  # noqa: BLE001 - raised again where the run ends
            self.error = exc

    def _awaits_canaries(self) -> bool:
        if self._settled:
            return False
        waited = self.clock() - self._held_since
        on = (self._at.get(name) for name in self.under_way)
        return any(
            waited < (PROBE_S if where is None else READY_S)
            for where in on
            if where is None or where.place not in self._looked
        )

    def _store(self, trial: Trial, outcome: Outcome) -> None:
        self.keep_variants(outcome.variants)
        for measurement in outcome.measurements:
            self.source.measured(trial.number, measurement)
        for reason in outcome.again:
            self.source.again(trial.number, reason)

    def _begin_again(self, trial: Trial, reason: str) -> None:
        self._to_begin.append(trial)
        self.source.again(trial.number, reason)

    def _differs(self, place: str) -> str | None:
        mine = self._canaries.get(place)
        if self._reference is None or mine is None:
            return None
        return changed(self._reference, mine)

    def _otherwise(self, where: At) -> str:
        return (
            f"{where} measures otherwise than the study's other devices: the configuration in"
            f" service goes from {self._differs(where.place)} there"
        )


def _light(measured: Measurement) -> Measurement:
    """Without its single requests, which nobody compares."""
    return replace(measured, load=replace(measured.load, samples=None, histogram=""))


class _NotKept:
    """Tune keeps copies of it for a resumption of its own; a study is resumed from its store."""

    def __getstate__(self) -> dict[str, Any]:
        return {}


class Suggesting(_NotKept, Searcher):
    """Asks the bridge. What goes wrong there is kept and ends the run: Tune blames the trial."""

    def __init__(self, bridge: Bridge) -> None:
        super().__init__()
        self._bridge = bridge

    def suggest(self, trial_id: str) -> Any:
        bridge = self._bridge
        if bridge.error is not None:
            return Searcher.FINISHED
        if bridge.full:
            return None
        with bridge.keeping():
            asked = bridge.suggest(trial_id)
            if asked is not None:
                return {_ASKED: _pickled(asked)}
        return Searcher.FINISHED if bridge.over or bridge.error is not None else None

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        with self._bridge.keeping():
            if _AT in result:
                self._bridge.begun(trial_id, pickle.loads(result[_AT]))
            if _CANARY in result:
                self._bridge.looked(trial_id, pickle.loads(result[_CANARY]))
            if _IDLE in result:
                self._bridge.idles(trial_id)

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        told = None if error or result is None else result.get(_OUTCOME)
        with self._bridge.keeping():
            if told is None:
                self._bridge.lost(trial_id)
            else:
                self._bridge.ended(trial_id, pickle.loads(told))

    def save(self, checkpoint_path: str) -> None: ...

    def restore(self, checkpoint_path: str) -> None: ...


class Stopping(_NotKept, Stopper):
    """Asked at each of Tune's steps. Ends the run when something went wrong, or no device is left;
    or when it is over, though a device that measures nothing still has its slot."""

    def __init__(self, bridge: Bridge, devices: Devices) -> None:
        self._bridge = bridge
        self._devices = devices
        self.look_again_at = time.monotonic() + _LOOK_S

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:  # noqa: ARG002
        return False

    def stop_all(self) -> bool:
        with self._bridge.keeping():
            self._bridge.settle()
        if self._bridge.error is None and time.monotonic() > self.look_again_at:
            self.look_again_at = time.monotonic() + _LOOK_S
            try:
                self._devices.refuse_gone(self._bridge.unlike)
            except AutotuneError as exc:
                self._bridge.error = exc
        return self._bridge.over or self._bridge.error is not None


class _Waiting(_NotKept, tune.Callback):
    """Says that no trial has a slot."""

    def __init__(self, bridge: Bridge, patience: Patience) -> None:
        self._bridge = bridge
        self._patience = patience

    def on_step_begin(
        self,
        iteration: int,  # noqa: ARG002
        trials: list[Any],
        **info: Any,  # noqa: ARG002
    ) -> None:
        idle = self._bridge.idle
        if any(trial.status == trial.RUNNING and trial.trial_id not in idle for trial in trials):
            self._patience.begun()
        else:
            self._patience.waits()


class Fitting(Protocol):
    """What is used of a `ray.tune.Tuner`."""

    def fit(self) -> object: ...


def run(
    bridge: Bridge,
    order: Order,
    devices: Devices,
    folder: Path,
    tuner: Callable[[Bridge, Order, Devices, Path], Fitting] | None = None,
) -> None:
    """Measure until the source has no more. Tune's own files go to ``folder``. What went wrong on
    this side, or ends the study, is raised."""
    if not bridge.more():
        return  # nothing is left to measure: no actor need come up
    os.environ["TUNE_MAX_PENDING_TRIALS_PG"] = str(devices.many)
    try:
        with interruptible():
            (tuner or _tuner)(bridge, order, devices, folder).fit()
    except Exception as exc:
        raise bridge.error or _failed(exc) from exc
    if bridge.error is not None:
        raise bridge.error


def _tuner(bridge: Bridge, order: Order, devices: Devices, folder: Path) -> tune.Tuner:
    place = tune.PlacementGroupFactory(
        [devices.slot.resources], bundle_label_selector=[devices.selector()]
    )
    trainable = tune.with_resources(tune.with_parameters(Measuring, order=order), place)
    return tune.Tuner(
        trainable,
        tune_config=tune.TuneConfig(
            search_alg=Suggesting(bridge),
            num_samples=-1,
            reuse_actors=True,
            trial_name_creator=lambda trial: str(trial.trial_id),
            trial_dirname_creator=lambda trial: str(trial.trial_id),
        ),
        run_config=tune.RunConfig(
            name="tune",
            storage_path=str(folder),
            verbose=0,
            callbacks=[_Waiting(bridge, Patience(say=devices.say))],
            stop=Stopping(bridge, devices),
            # Counted by the bridge: Tune gives up a kept actor's next trial when the actor has
            # died meanwhile, however often it may fail.
            failure_config=tune.FailureConfig(max_failures=0),
            checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
        ),
    )


def _failed(exc: Exception) -> AutotuneError:
    return AutotuneError(
        "Ray Tune could not go on",
        value=str(exc),
        next_step="what was measured is stored: the same command with --resume goes on",
    )
