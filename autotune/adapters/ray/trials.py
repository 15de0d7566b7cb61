"""A study's search as Ray Tune's: Tune keeps the devices busy, and the study decides on what."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from ray import cloudpickle as pickle
from ray import tune
from ray.tune.search import Searcher
from ray.tune.stopper import Stopper

from autotune.adapters.ray.cluster import Devices, Patience, interruptible
from autotune.core.errors import AutotuneError
from autotune.core.measurement import Measurement
from autotune.core.trial import Trial, TrialState
from autotune.core.variants import VariantRecord
from autotune.ports import TrialSource

LOSSES = 2
"""How often a trial is begun again on another device when its own is lost."""
_ASKED = "asked"
_OUTCOME = "outcome"
_LOOK_S = 5.0


# Candidates are read-only mappings, which the standard library's pickle refuses.
_pickled: Callable[[object], bytes] = pickle.dumps


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A trial to measure, and those that have ended ``so_far``."""

    trial: Trial
    so_far: Sequence[Trial]


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

    def measure(self, asked: Asked) -> Outcome: ...

    def close(self) -> None: ...


class Order(Protocol):
    """Shipped to each node: all that is needed there."""

    def open(self) -> Bench: ...


class Measuring(tune.Trainable):
    """One device: its server stays up from one trial to the next."""

    def setup(self, config: dict[str, Any], order: Order | None = None) -> None:
        assert order is not None, "given by tune.with_parameters"
        self._order = order
        self._bench: Bench | None = None
        self._asked: bytes = config[_ASKED]

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self._asked = new_config[_ASKED]
        return True

    def step(self) -> dict[str, Any]:
        """All of a trial. Tune ends this actor where anything is raised, as where it is lost."""
        if self._bench is None:
            self._bench = self._order.open()
        outcome = self._bench.measure(pickle.loads(self._asked))
        return {_OUTCOME: _pickled(outcome), "done": True}

    def cleanup(self) -> None:
        if self._bench is not None:
            self._bench.close()
            self._bench = None


@dataclass(slots=True)
class Bridge:
    """The study's side: what is suggested and what comes of it."""

    source: TrialSource
    keep_variants: Callable[[Sequence[VariantRecord]], None] = lambda _: None
    error: Exception | None = None
    under_way: dict[str, Trial] = field(default_factory=dict)
    _to_begin: list[Trial] = field(default_factory=list)
    _losses: Counter[int] = field(default_factory=Counter)

    def more(self) -> bool:
        """Whether there is anything to measure, before the first trial is suggested."""
        first = self.source.next()
        if first is not None:
            self._to_begin.append(first)
        return first is not None

    def suggest(self, name: str) -> Asked | None:
        """What was lost comes before what is new."""
        trial = self._to_begin.pop(0) if self._to_begin else self.source.next()
        if trial is None:
            return None
        self.under_way[name] = trial
        return Asked(trial=trial, so_far=self.source.so_far())

    def lost(self, name: str) -> None:
        """The trial's device was lost: it is begun again, under another of Tune's names, unless
        that has happened too often."""
        trial = self.under_way.pop(name, None)
        if trial is None or self.error is not None:
            return
        self._losses[trial.number] += 1
        if self._losses[trial.number] > LOSSES:
            why = f"its device was lost {LOSSES + 1} times"
            self.source.ended(trial.number, TrialState.INVALID, why)
            return
        self._to_begin.append(trial)
        self.source.again(trial.number, "its device was lost")

    def ended(self, name: str, outcome: Outcome) -> None:
        trial = self.under_way.pop(name, None)
        if trial is None:
            return
        self.keep_variants(outcome.variants)
        for measurement in outcome.measurements:
            self.source.measured(trial.number, measurement)
        for reason in outcome.again:
            self.source.again(trial.number, reason)
        if outcome.error is not None:
            self.error = outcome.error
            return
        self.source.ended(trial.number, outcome.state, outcome.reason, outcome.took_s)


class _NotKept:
    """Tune keeps copies of it for a resumption of its own; a study is resumed from its store."""

    def __getstate__(self) -> dict[str, Any]:
        return {}


class _Suggesting(_NotKept, Searcher):
    """Asks the bridge. What goes wrong there is kept and ends the run: Tune blames the trial."""

    def __init__(self, bridge: Bridge) -> None:
        super().__init__()
        self._bridge = bridge

    def suggest(self, trial_id: str) -> Any:
        if self._bridge.error is not None:
            return None
        try:
            asked = self._bridge.suggest(trial_id)
        except Exception as exc:  # noqa: BLE001 - raised again where the run ends
            self._bridge.error = exc
            return None
        if asked is not None:
            return {_ASKED: _pickled(asked)}
        return None if self._bridge.under_way else Searcher.FINISHED

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        told = None if error or result is None else result.get(_OUTCOME)
        try:
            if told is None:
                self._bridge.lost(trial_id)
            else:
                self._bridge.ended(trial_id, pickle.loads(told))
        except Exception as exc:  # noqa: BLE001 - raised again where the run ends
            self._bridge.error = exc

    def save(self, checkpoint_path: str) -> None: ...

    def restore(self, checkpoint_path: str) -> None: ...


class _Stopping(_NotKept, Stopper):
    """Ends the run when something went wrong, or when no device is left."""

    def __init__(self, bridge: Bridge, devices: Devices) -> None:
        self._bridge = bridge
        self._devices = devices
        self._next_look = time.monotonic() + _LOOK_S

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:  # noqa: ARG002
        return False

    def stop_all(self) -> bool:
        if self._bridge.error is None and time.monotonic() > self._next_look:
            self._next_look = time.monotonic() + _LOOK_S
            try:
                self._devices.refuse_gone()
            except AutotuneError as exc:
                self._bridge.error = exc
        return self._bridge.error is not None


class _Waiting(_NotKept, tune.Callback):
    """Says that no trial has a slot."""

    def __init__(self, patience: Patience) -> None:
        self._patience = patience

    def on_step_begin(
        self,
        iteration: int,  # noqa: ARG002
        trials: list[Any],
        **info: Any,  # noqa: ARG002
    ) -> None:
        if any(trial.status == trial.RUNNING for trial in trials):
            self._patience.begun()
        else:
            self._patience.waits()


def run(bridge: Bridge, order: Order, devices: Devices, folder: Path) -> None:
    """Measure until the source has no more. Tune's own files go to ``folder``. What went wrong on
    this side, or ends the study, is raised."""
    if not bridge.more():
        return  # nothing is left to measure: no actor need come up
    os.environ["TUNE_MAX_PENDING_TRIALS_PG"] = str(devices.many)
    try:
        with interruptible():
            _tuner(bridge, order, devices, folder).fit()
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
            search_alg=_Suggesting(bridge),
            num_samples=-1,
            max_concurrent_trials=devices.many,
            reuse_actors=True,
            trial_name_creator=lambda trial: str(trial.trial_id),
            trial_dirname_creator=lambda trial: str(trial.trial_id),
        ),
        run_config=tune.RunConfig(
            name="tune",
            storage_path=str(folder),
            verbose=0,
            callbacks=[_Waiting(Patience(say=devices.say))],
            stop=_Stopping(bridge, devices),
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
