"""An ensemble's steps, walked one by one: what goes into each, and what comes out of it.

Tensors are as they travel over the wire: with the batch dimension where the ensemble has one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from numpy.typing import NDArray

from autotune.adapters.triton.config import ModelConfig
from autotune.core.errors import InputRefused

Wire: TypeAlias = Mapping[str, NDArray[Any]]
"""One request's tensors by name, inputs or outputs of one model."""


Run: TypeAlias = Callable[[str, Sequence[Wire]], Sequence[Wire]]
"""Asks a model, by its name, for its answers to some requests, in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """``inputs`` and ``outputs``: the ensemble's tensor for each of the model's own."""

    model: str
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """What one step was given and what it answered, request by request."""

    step: Step
    inputs: Sequence[Wire]
    answers: Sequence[Wire]


@dataclass(frozen=True, slots=True, kw_only=True)
class Walk:
    """``sent`` are the requests, ``outputs`` the whole ensemble's; ``calls`` in the order they were
    made."""

    sent: Sequence[Wire]
    calls: Sequence[Call]
    outputs: Sequence[Wire]

    def of(self, model: str) -> tuple[Call, ...]:
        return tuple(call for call in self.calls if call.step.model == model)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dag:
    """The steps of an ensemble, those of ensembles within it in their place, in an order in which
    they can be taken; a model that is tuned alone is one of a single step."""

    steps: Sequence[Step]
    outputs: Sequence[str] = field(default=())

    @classmethod
    def of(cls, name: str, configs: Mapping[str, ModelConfig]) -> Dag:
        """``configs``: of the ensemble and of all models that it needs, by name. InputRefused for
        steps that wait for a tensor that none of them gives."""
        config = configs[name]
        waiting = _flattened(name, configs)
        known = {tensor.name for tensor in config.input}
        ordered: list[Step] = []
        while waiting:
            ready = next((s for s in waiting if known.issuperset(s.inputs.values())), None)
            if ready is None:
                missing = sorted({t for s in waiting for t in s.inputs.values()} - known)
                raise InputRefused(
                    f"the ensemble {name} has steps that wait for a tensor that no step gives",
                    value=", ".join(missing),
                )
            waiting.remove(ready)
            ordered.append(ready)
            known.update(ready.outputs.values())
        return cls(steps=ordered, outputs=[tensor.name for tensor in config.output])

    def walk(
        self,
        requests: Sequence[Wire],
        run: Run,
        *,
        before: Walk | None = None,
        replaced: Mapping[str, Sequence[Wire]] | None = None,
    ) -> Walk:
        """Take the requests through all steps. ``replaced``: answers that stand for a model's own,
        one for each request of each of its calls, in order. With an earlier walk of the same
        requests, a step that is given what it was given ``before`` is not asked again."""
        given = {model: list(answers) for model, answers in (replaced or {}).items()}
        pools: list[dict[str, NDArray[Any]]] = [dict(request) for request in requests]
        calls: list[Call] = []
        for index, step in enumerate(self.steps):
            inputs = [{own: pool[t] for own, t in step.inputs.items()} for pool in pools]
            if step.model in given:
                answers: Sequence[Wire] = given[step.model][: len(requests)]
                del given[step.model][: len(requests)]
            elif before is not None and _same(inputs, before.calls[index].inputs):
                answers = before.calls[index].answers
            else:
                answers = run(step.model, inputs)
            for pool, answer in zip(pools, answers, strict=True):
                pool.update({tensor: answer[own] for own, tensor in step.outputs.items()})
            calls.append(Call(step=step, inputs=inputs, answers=answers))
        outputs = [{name: pool[name] for name in self.outputs} for pool in pools]
        return Walk(sent=requests, calls=calls, outputs=outputs)


def _flattened(name: str, configs: Mapping[str, ModelConfig]) -> list[Step]:
    config = configs[name]
    if not config.HasField("ensemble_scheduling"):
        inputs = {tensor.name: tensor.name for tensor in config.input}
        outputs = {tensor.name: tensor.name for tensor in config.output}
        return [Step(model=name, inputs=inputs, outputs=outputs)]
    found: list[Step] = []
    for index, step in enumerate(config.ensemble_scheduling.step):
        taken, given = dict(step.input_map), dict(step.output_map)
        if configs[step.model_name].HasField("ensemble_scheduling"):
            outer, prefix = {**taken, **given}, f"{name}.{index}."
            inner = _flattened(step.model_name, configs)
            found += [_renamed(each, outer, prefix) for each in inner]
        else:
            found.append(Step(model=step.model_name, inputs=taken, outputs=given))
    return found


def _renamed(step: Step, outer: Mapping[str, str], prefix: str) -> Step:
    """A step of an ensemble within another, in the words of the outer one; a tensor that does not
    leave the inner one has a name that no other has."""

    def renamed(tensors: Mapping[str, str]) -> dict[str, str]:
        return {own: outer.get(tensor, prefix + tensor) for own, tensor in tensors.items()}

    return Step(model=step.model, inputs=renamed(step.inputs), outputs=renamed(step.outputs))


def _same(now: Sequence[Wire], before: Sequence[Wire]) -> bool:
    """The very same arrays, not equal ones: those that no step made anew."""
    return all(
        one.keys() == other.keys() and all(one[name] is other[name] for name in one)
        for one, other in zip(now, before, strict=True)
    )
