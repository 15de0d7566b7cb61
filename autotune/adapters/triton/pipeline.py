"""What a candidate means for every model that a study tunes: one alone, or an ensemble's steps.

A pipeline is a Triton ensemble. Its space names ``<step>.<field>``, a step being one of its
composing models (those of ensembles within it included), and each field means in that model's
configuration what it means of a model that is tuned alone (see `autotune.adapters.triton.config`).
The ensemble itself has neither batcher nor instances. It has a ``max_batch_size``, which Triton
refuses where a step's is smaller (``ValidateEnsembleConfig`` in triton core's
``ensemble_utils.cc``): so a candidate that lowers a step below it lowers the ensemble's too, and
clients that send larger requests would be refused. A candidate never raises it.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping

from autotune.adapters.triton import artefacts
from autotune.adapters.triton.config import (
    ModelConfig,
    check_targets,
    instance_count,
    largest_batch,
    objection,
    present,
    with_candidate,
)
from autotune.adapters.triton.repository import ServedModel
from autotune.core.errors import CandidateFailed, InputRefused
from search_spaces.candidate import (
    INSTANCES,
    SERVER_PREFIX,
    VARIANT,
    WORKERS,
    Candidate,
    Value,
    split_target,
)
from search_spaces.targets import named_twice


# --------------------------------------------------------------------------------------- the parts
def is_pipeline(model: ServedModel) -> bool:
    return _is_ensemble(model.config)


def steps(model: ServedModel) -> dict[str, ServedModel]:
    """The steps of a pipeline by name, in loadable order; empty for a model that is tuned alone."""
    return {name: each for name, each in model.composing.items() if not _is_ensemble(each.config)}


def parts(model: ServedModel) -> dict[str, ServedModel]:
    """Every model that has parameters, by the step's name: a model that is tuned alone stands
    under the empty one."""
    return steps(model) if is_pipeline(model) else {"": model}


def calls(model: ServedModel) -> dict[str, int]:
    """How often one request of the pipeline is executed by each of its steps."""
    found = dict.fromkeys(steps(model), 0)
    waiting = [step.model_name for step in model.config.ensemble_scheduling.step]
    while waiting:
        name = waiting.pop()
        if name in found:
            found[name] += 1
        else:
            inner = model.composing[name].config.ensemble_scheduling
            waiting += [step.model_name for step in inner.step]
    return found


def _is_ensemble(config: ModelConfig) -> bool:
    return bool(config.HasField("ensemble_scheduling"))


# ------------------------------------------------------------------------------------------ loaded
def instances_of(loaded: Mapping[str, ModelConfig]) -> dict[str, int]:
    """Model instances by step (or by the empty name), of the configurations that a server has
    loaded."""
    return {step: instance_count(config) for step, config in loaded.items()}


def processes_of(loaded: Mapping[str, ModelConfig]) -> int:
    """How many of them are processes of their own: those of the Python backend."""
    return sum(instance_count(each) for each in loaded.values() if each.backend == "python")


def largest_batches_of(loaded: Mapping[str, ModelConfig]) -> dict[str, int]:
    return {step: largest_batch(config) for step, config in loaded.items()}


# -------------------------------------------------------------------------------------- to configs
def configs(model: ServedModel, candidate: Candidate) -> dict[str, ModelConfig]:
    """Every model's configuration as the candidate says, by name, in loadable order, the tuned
    model last. CandidateFailed, with the step, as `with_candidate` says and for a target that this
    model does not have."""
    for target in candidate:
        rule, next_step = _objection(model, target) or ("", "")
        if rule:
            raise CandidateFailed(rule, value=target, next_step=next_step)
    made: dict[str, ModelConfig] = {}
    for each in (*model.composing.values(), model):
        step = "" if each is model else each.name
        if _is_ensemble(each.config):
            made[each.name] = _as_its_steps_allow(each.config, made)
        else:
            made[each.name] = _with_part(each, candidate.of(step), step)
    return made


def without_variant(candidate: Candidate) -> Candidate:
    return Candidate({name: value for name, value in candidate.values.items() if name != VARIANT})


def _with_part(model: ServedModel, part: Candidate, step: str) -> ModelConfig:
    try:
        config = with_candidate(model.config, without_variant(part))
        variant = part.get(VARIANT)
        return config if variant is None else artefacts.with_variant(model, str(variant), config)
    except CandidateFailed as error:
        if not step:
            raise
        raise CandidateFailed(
            f"{step}: {error.rule}", value=error.value, next_step=error.next_step
        ) from error


def _as_its_steps_allow(ensemble: ModelConfig, made: Mapping[str, ModelConfig]) -> ModelConfig:
    lowered = ModelConfig()
    lowered.CopyFrom(ensemble)
    allowed = [made[step.model_name].max_batch_size for step in ensemble.ensemble_scheduling.step]
    # A step with a maximum of 0, without a batch dimension of its own, takes any.
    lowered.max_batch_size = min([ensemble.max_batch_size, *(most for most in allowed if most)])
    return lowered


# ------------------------------------------------------------------------------------- in service
def present_model(model: ServedModel, targets: Iterable[str], *, gpus: int = 0) -> Candidate:
    """The values in service of the given targets, each of its step; see `config.present`."""
    values: dict[str, Value] = {}
    for step, named in _by_step(targets).items():
        part = _part(model, step)
        found = present(part.config, set(named) - {VARIANT}, gpus=gpus).values
        values |= {target: found[name] for name, target in named.items() if name in found}
        if VARIANT in named:
            values[named[VARIANT]] = artefacts.variant_in_service(part, gpus=gpus)
    return Candidate(values)


def check_model_targets(model: ServedModel, targets: Iterable[str]) -> None:
    """InputRefused if the space sweeps what cannot be set, or has no effect, on this model or on
    the step that it names."""
    wanted = list(targets)
    if (twice := named_twice(wanted)) is not None:
        raise InputRefused(
            f"{twice[0]} and {twice[1]} are the same thing: a step's workers are its instances",
            next_step="Keep one of them.",
        )
    for target in sorted(wanted):
        rule, next_step = _objection(model, target) or ("", "")
        if rule:
            raise InputRefused(rule, value=target, next_step=next_step)
    for step, named in _by_step(wanted).items():
        names = {name for name in named if name != VARIANT and not name.startswith(SERVER_PREFIX)}
        if names:
            check_targets(_part(model, step).config, names, step=step)


def _by_step(targets: Iterable[str]) -> dict[str, dict[str, str]]:
    """For each step, its targets in the words of a model that is tuned alone, with how they were
    given."""
    found: dict[str, dict[str, str]] = {}
    for target in targets:
        step, name = split_target(target)
        found.setdefault(step, {})[name] = target
    return found


def _part(model: ServedModel, step: str) -> ServedModel:
    return model.composing[step] if step else model


# ---------------------------------------------------------------------------------- what is refused
def _objection(model: ServedModel, target: str) -> tuple[str, str] | None:
    """Why ``target`` cannot be set on this model, and what to do instead; None if it can."""
    step, name = split_target(target)
    if name.startswith(SERVER_PREFIX):
        return None
    if not is_pipeline(model):
        if step:
            return f"{model.name} is no ensemble: it has no steps", f"Say {name}."
        return None if name == VARIANT else objection(model.config, name)
    if not step:
        return (
            f"{model.name} is an ensemble: it has no batcher, no instances and no backend of its"
            " own",
            _named_steps(model, name),
        )
    known = steps(model)
    if step not in known:
        return _unknown_step(model, step, target.removeprefix(step + "."))
    return None if name == VARIANT else objection(known[step].config, name)


def _named_steps(model: ServedModel, field: str) -> str:
    able = [step for step, part in steps(model).items() if _settable(part, field)]
    named = _listed([f"{step}.{field}" for step in able])
    return f"Name the step: {named}." if named else "None of its steps has it either."


def _settable(part: ServedModel, field: str) -> bool:
    name = INSTANCES if field == WORKERS else field
    return name == VARIANT or objection(part.config, name) is None


def _unknown_step(model: ServedModel, step: str, field: str) -> tuple[str, str]:
    known = list(steps(model))
    if step == model.name:
        return f"{step} is the ensemble itself, not a step of it", _named_steps(model, field)
    if step in model.composing:
        inner = model.composing[step].config.ensemble_scheduling.step
        named = _listed(f"{each.model_name}.{field}" for each in inner)
        return f"{step} is an ensemble itself", f"Name one of its steps: {named}."
    near = difflib.get_close_matches(step, known, n=1)
    advice = f"Did you mean {near[0]}.{field}? " if near else ""
    return f"{model.name} has no step {step}", f"{advice}Its steps: {', '.join(known)}."


def _listed(names: Iterable[str]) -> str:
    *first, last = [*names] or [""]
    return f"{', '.join(first)} or {last}" if first else last
