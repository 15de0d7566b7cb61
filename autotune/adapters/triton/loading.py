"""Loads of a pipeline's models: only those whose configuration changes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from autotune.adapters.triton.config import ModelConfig, override_json
from autotune.adapters.triton.control import Control
from autotune.adapters.triton.pipeline import instances_of, largest_batches_of, parts
from autotune.adapters.triton.repository import ServedModel
from autotune.ports import Applied


class Loading:
    """Remembers with which configuration each model of a server was last loaded.

    `forget` when the server has been restarted: then everything is loaded.
    """

    def __init__(self, model: ServedModel) -> None:
        self._model = model
        self._loaded: dict[str, ModelConfig] = {}
        self._overridden: set[str] = set()

    def forget(self) -> None:
        self._loaded.clear()
        self._overridden.clear()

    def bring(
        self, control: Control, wanted: Mapping[str, ModelConfig], timeout_s: float
    ) -> tuple[str, ...]:
        """Load what differs from ``wanted`` (as `pipeline.configs` gives it); the names of the
        models that were loaded anew, in ``wanted``'s order. A model that is tuned alone always is.

        Raises what `Control.load` does; what is loaded is then unknown, and forgotten.
        """
        anew: set[str] = set()
        if not self._model.composing:
            self.forget()
        try:
            # An ensemble before its steps: its load puts them back to what their files say.
            for name in reversed(list(wanted)):
                if self._loaded.get(name) != wanted[name]:
                    control.load(override_json(wanted[name]), timeout_s, model=name)
                    anew |= {name, *self._put_back(name)}
                    self._loaded[name] = wanted[name]
                    self._overridden.add(name)
            control.wait_until_ready(timeout_s)
        except BaseException:
            self.forget()
            raise
        return tuple(name for name in wanted if name in anew)

    def as_files_say(self, control: Control, timeout_s: float) -> tuple[str, ...]:
        """Load the tuned model, and with it all that it needs, without any override."""
        self.forget()
        control.load(None, timeout_s)
        return (*self._model.composing, self._model.name)

    def _put_back(self, ensemble: str) -> Iterator[str]:
        """The models that loading an ensemble loads as well: all below it that are not loaded yet
        or were loaded with an override."""
        for name in self._below(ensemble):
            if name in self._overridden or name not in self._loaded:
                self._loaded[name] = self._model.composing[name].config
                self._overridden.discard(name)
                yield name

    def _below(self, name: str) -> list[str]:
        models = {**self._model.composing, self._model.name: self._model}
        found: list[str] = []
        waiting = [step.model_name for step in models[name].config.ensemble_scheduling.step]
        while waiting:
            each = waiting.pop()
            if each not in found:
                found.append(each)
                inner = models[each].config.ensemble_scheduling
                waiting += [step.model_name for step in inner.step]
        return found


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
