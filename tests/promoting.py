"""Repositories and releases for tests of promotions: tiny, and looked at byte by byte."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from autotune.core.records import StudyState
from autotune.core.trial import TrialState
from autotune.service_ports import Release
from autotune.studyfile import study_from_options
from search_spaces.candidate import Candidate
from storage.service import ServiceStore
from tests.realistic import a_measurement

STEP = """name: "{name}"
backend: "python"
max_batch_size: {batch}
input {{ name: "x" data_type: TYPE_FP32 dims: 4 }}
output {{ name: "y" data_type: TYPE_FP32 dims: 3 }}
"""
ENSEMBLE = """name: "whole"
platform: "ensemble"
max_batch_size: 1
input { name: "x" data_type: TYPE_FP32 dims: 4 }
output { name: "y" data_type: TYPE_FP32 dims: 3 }
ensemble_scheduling {
  step { model_name: "first" model_version: -1 }
  step { model_name: "second" model_version: -1 }
}
"""


def config(name: str, batch: int = 1) -> str:
    return STEP.format(name=name, batch=batch)


def put(repository: Path, name: str, *, batch: int = 1, weights: str = "w1") -> Path:
    """A model with one version, whose file holds ``weights``."""
    version = repository / name / "1"
    version.mkdir(parents=True, exist_ok=True)
    (version / "model.py").write_text("# serves\n")
    (version / "weights.bin").write_text(weights)
    (repository / name / "config.pbtxt").write_text(config(name, batch))
    return repository / name


def pipeline(repository: Path, *, batch: int = 1) -> None:
    """An ensemble of two steps, its own version empty."""
    put(repository, "first", batch=batch)
    put(repository, "second", batch=batch)
    (repository / "whole" / "1").mkdir(parents=True)
    (repository / "whole" / "config.pbtxt").write_text(ENSEMBLE)


def release(folder: Path, *names: str) -> Release:
    return Release(repository=folder, names=names)


def tree(root: Path) -> Mapping[str, str]:
    """Everything below a directory by its path: contents, targets of links, and directories.
    Without what a server that loads Python code writes beside it."""
    found: dict[str, str] = {}
    for directory, names, files in os.walk(root):
        names[:] = [name for name in names if name != "__pycache__"]
        for name in (*names, *files):
            path = Path(directory) / name
            found[path.relative_to(root).as_posix()] = _what(path)
    return found


def _what(path: Path) -> str:
    if path.is_symlink():
        return f"-> {path.readlink()}"
    return "directory" if path.is_dir() else path.read_text()


def stored_study(
    store: ServiceStore, definition: Mapping[str, Any], candidates: Sequence[Candidate]
) -> int:
    """A study that is done, whose trials are these; the numbers that it measured are made up."""
    study = study_from_options(definition)
    study_id = store.trials.create_study(study.name, study.definition, study.digest)
    for number, candidate in enumerate(candidates):
        store.trials.begin_trial(study_id, number, candidate)
        store.trials.add_measurement(study_id, number, a_measurement(samples=False))
        store.trials.end_trial(study_id, number, TrialState.OK)
    store.trials.set_study_state(study_id, StudyState.DONE)
    return study_id
