"""What is recorded with a study of where and on what it measures."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from autotune.adapters import machine
from autotune.adapters.tonight import changing
from autotune.adapters.triton.basis import basis_of
from autotune.adapters.triton.packages import packages_of
from autotune.adapters.triton.repository import ServedModel
from autotune.adapters.triton.servers import Servers
from autotune.core.drift import TRAFFIC_FILES
from autotune.core.study import Launch, Study
from autotune.core.workload import Workload

MODEL_BASIS = "model_basis"


def machine_here() -> Mapping[str, Any]:
    """The machine, with what of it may be another one tomorrow."""
    return {**machine.describe(), **changing()}


def environment_of(
    study: Study, model: ServedModel, servers: Servers
) -> Callable[[], Mapping[str, Any]]:
    """Reads it anew each time; what only changes with the study's own files, once."""

    @cache
    def fixed() -> Mapping[str, Any]:
        found: dict[str, Any] = {
            MODEL_BASIS: basis_of(model, study.space),
            TRAFFIC_FILES: traffic_files(study.workload),
        }
        if study.server.launch is Launch.EMBEDDED:
            found["packages"] = packages_of(servers.python(study.server))
        return found

    return lambda: {**machine_here(), **fixed()}


def traffic_files(work: Workload) -> Mapping[str, str]:
    """The hashes of what its requests and its arrivals are read from, where that can be read."""
    files = {"inputs": work.inputs.path, "trace": work.arrival.trace}
    found: dict[str, str] = {}
    for name, path in files.items():
        with suppress(OSError):
            if path is not None:
                found[name] = _hash(path)
    return found


def _hash(path: Path) -> str:
    """Of a file, or of all in a folder, by name and content."""
    if not path.is_dir():
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    whole = hashlib.sha256()
    for each in sorted(each for each in path.rglob("*") if each.is_file()):
        whole.update(f"{each.relative_to(path)}\n{_hash(each)}\n".encode())
    return whole.hexdigest()
