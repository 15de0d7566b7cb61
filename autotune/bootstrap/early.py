"""What is wrong with a study however free the machine is: told instead of "wait"."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from autotune.adapters.triton.config import ModelConfig, read
from autotune.adapters.triton.evaluation import interface_of
from autotune.adapters.triton.pipeline import check_model_targets, is_pipeline, steps
from autotune.adapters.triton.repository import CONFIG_FILE, ServedModel, from_configuration
from autotune.bootstrap.accuracy import asked
from autotune.bootstrap.variants import variants_asked
from autotune.core.errors import InputRefused
from autotune.core.study import Study
from search_spaces.candidate import SERVER_PREFIX, split_target


def refuse_anyway(study: Study) -> None:
    """InputRefused for what the study and its repository's configurations alone show to be wrong:
    steps and parameters that a pipeline does not have, a metric, right answers or evaluation data
    that cannot be used. Starts, builds and fetches nothing; what it cannot tell it passes over."""
    repository, name = study.model.repository, study.model.name
    if repository is None:
        return
    with tempfile.TemporaryDirectory(prefix="autotune-early-") as scratch:
        model = _configured(repository, name, Path(scratch))
    if model is None:
        return
    check_model_targets(model, _misplaced(study, model))
    declared = model.config.input and model.config.output
    if declared and any(variants_asked(study.space)):
        asked(study, interface_of(model.config))


def _misplaced(study: Study, model: ServedModel) -> Iterator[str]:
    """Parameters that name none of a pipeline's steps, or a step where there is no pipeline.
    Whether the model named has the parameter may depend on how its configuration is completed."""
    known = set(steps(model)) if is_pipeline(model) else {""}
    for target in study.space.targets:
        if split_target(target)[0] not in known and not target.startswith(SERVER_PREFIX):
            yield target


def _configured(repository: Path, name: str, scratch: Path) -> ServedModel | None:
    """The model by its configurations; None where they do not tell all of it."""
    try:
        configs = _configurations(repository, name)
        return from_configuration(configs.pop(name), name, scratch, configs)
    except (InputRefused, OSError, KeyError):  # told, with more advice, when it is its turn
        return None


def _configurations(repository: Path, name: str) -> dict[str, ModelConfig]:
    """Of a model and of those that it needs, each after those that it needs itself."""
    found: dict[str, ModelConfig] = {}
    seen: set[str] = set()

    def visit(each: str) -> None:
        if each in seen:
            return
        seen.add(each)
        config = read(repository / each / CONFIG_FILE)
        for step in config.ensemble_scheduling.step:
            visit(step.model_name)
        found[each] = config

    visit(name)
    return found
