"""Repositories and releases for tests of promotions: tiny, and looked at byte by byte."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from autotune.service_ports import Release

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
    """Everything below a directory by its path: contents, targets of links, and directories."""
    found: dict[str, str] = {}
    for directory, names, files in os.walk(root):
        here = Path(directory)
        for name in (*names, *files):
            path = here / name
            what = "directory" if path.is_dir() else path.read_text()
            found[path.relative_to(root).as_posix()] = (
                f"-> {path.readlink()}" if path.is_symlink() else what
            )
    return found
