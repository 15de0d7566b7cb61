"""What is recorded with a study of where and on what it measures."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from autotune.adapters import machine
from autotune.adapters.tonight import changing
from autotune.adapters.triton.basis import basis_of
from autotune.adapters.triton.packages import packages_of
from autotune.adapters.triton.repository import ServedModel
from autotune.adapters.triton.servers import Servers
from autotune.core.study import Launch, Study

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
        found: dict[str, Any] = {MODEL_BASIS: basis_of(model, study.space)}
        if study.server.launch is Launch.EMBEDDED:
            found["packages"] = packages_of(servers.python(study.server))
        return found

    return lambda: {**machine_here(), **fixed()}
