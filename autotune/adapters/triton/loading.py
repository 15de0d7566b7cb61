"""Loads of a pipeline's models: only those whose configuration changes.

What Triton 2.51 was found to do, with an ensemble and its steps loaded:

- A step that is loaded with an override is loaded anew alone: the processes and the statistics of
  the other steps stay. Every ensemble above it is loaded again by itself, with the configuration
  that it had; its own statistics begin anew. Requests go on being answered meanwhile (574 of 574,
  the slowest in 0.44 s).
- Where an override follows upon an override and only the number of instances differs, the model is
  not loaded anew: instances are added or taken away, and its statistics go on. The same override
  again does nothing.
- A step that is loaded with a ``max_batch_size`` below the ensemble's loads, and the ensemble is
  unloaded without an error, until it is itself loaded with a lower one.
- A step that fails to load goes on as it was.
- Loading an ensemble, with or without an override, leaves the overrides of its steps as they are;
  and so does loading a step without one. (The source says the contrary, and releases before
  ``ModelTimestamp`` did put them back.) But it loads those anew, from their files, whose files have
  changed since: as those of a Python model do when its first load writes ``__pycache__``.

So steps are loaded before the ensembles that need them, and what is then loaded is looked at once
more, and loaded again where it is not what it was.
"""

from __future__ import annotations

from collections.abc import Mapping

from autotune.adapters.triton.config import ModelConfig, override_json
from autotune.adapters.triton.control import Control
from autotune.adapters.triton.pipeline import (
    instances_of,
    is_pipeline,
    largest_batches_of,
    parts,
    steps,
)
from autotune.adapters.triton.repository import ServedModel
from autotune.adapters.triton.statistics import began_anew
from autotune.core.errors import ServerFailed
from autotune.ports import Applied

_ROUNDS = 3
"""One that loads, one for what that undid, one that finds all as it should be."""


class Loading:
    """Remembers with which configuration each model of a server was last loaded, and what the
    server made of it."""

    def __init__(self, model: ServedModel) -> None:
        self._model = model
        self._steps = tuple(steps(model))
        self._empty = False
        self._asked: dict[str, ModelConfig] = {}
        self._given: dict[str, ModelConfig] = {}

    def restarted(self) -> None:
        """The server has no model loaded: a pipeline is then loaded as its files say, all at once,
        before anything of it is changed."""
        self._forget()
        self._empty = True

    def bring(
        self, control: Control, wanted: Mapping[str, ModelConfig], timeout_s: float
    ) -> tuple[str, ...]:
        """Load what differs from ``wanted`` (as `pipeline.configs` gives it); the names of the
        models that were loaded anew, in ``wanted``'s order. A model that is tuned alone always is.

        Raises what `Control.load` does; what is loaded is then unknown, and all is loaded again.
        """
        if not is_pipeline(self._model):
            control.load(override_json(wanted[self._model.name]), timeout_s)
            return (self._model.name,)
        try:
            anew = self._begin(control, timeout_s) if self._empty else set()
            anew |= self._settled(control, wanted, timeout_s)
        except BaseException:
            self._forget()
            raise
        return tuple(name for name in wanted if name in anew)

    def as_files_say(self, control: Control, timeout_s: float) -> tuple[str, ...]:
        """Load the tuned model, and with it all that it needs, without any override."""
        control.load(None, timeout_s)
        return (*self._model.composing, self._model.name)

    def _begin(self, control: Control, timeout_s: float) -> set[str]:
        names = self.as_files_say(control, timeout_s)
        self._empty = False
        for name, model in {**self._model.composing, self._model.name: self._model}.items():
            self._asked[name], self._given[name] = model.config, control.config(name)
        return set(names)

    def _settled(
        self, control: Control, wanted: Mapping[str, ModelConfig], timeout_s: float
    ) -> set[str]:
        anew: set[str] = set()
        for _ in range(_ROUNDS):
            before = control.statistics(self._steps)
            now = {name for name in wanted if self._load(control, name, wanted[name], timeout_s)}
            if not now:
                return anew
            anew |= now | began_anew(before, control.statistics(self._steps))
        raise ServerFailed(
            "the server does not keep the configurations that its models are loaded with",
            next_step="tune a server that nothing else controls",
        )

    def _load(self, control: Control, name: str, wanted: ModelConfig, timeout_s: float) -> bool:
        """Load the model unless it is as it should be; whether it was loaded."""
        as_asked = self._asked.get(name) == wanted and control.loaded(name)
        if as_asked and control.config(name) == self._given[name]:
            return False
        control.load(override_json(wanted), timeout_s, model=name)
        self._asked[name], self._given[name] = wanted, control.config(name)
        return True

    def _forget(self) -> None:
        self._asked.clear()
        self._given.clear()


def loaded_configs(control: Control, model: ServedModel) -> dict[str, ModelConfig]:
    """What a server has loaded of the model, or of each of its steps, by the step's name (the empty
    one for a model that is tuned alone)."""
    return {step: control.config(part.name) for step, part in parts(model).items()}


def applied(
    loaded: Mapping[str, ModelConfig],
    *,
    seconds: float,
    restarted: bool,
    reloaded: tuple[str, ...],
) -> Applied:
    counts = instances_of(loaded)
    return Applied(
        seconds=seconds,
        restarted=restarted,
        instances=sum(counts.values()),
        by_step={step: count for step, count in counts.items() if step},
        reloaded=reloaded,
        largest_batches=largest_batches_of(loaded),
    )
