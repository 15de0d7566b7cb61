"""What is stored about a study beside its trials."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

PLANNED = "planned"
"""The key of a study's environment that tells how many candidates there were to try."""
HELD = "held"
"""… why a night's study ended with the champion's trial: it still wins."""
EXECUTOR = "executor"
"""… where its trials ran, where that was not one after another on one machine; in it
``side_by_side``, how many at once."""
CUT = "cut_to_minutes"
"""… how many minutes there were, where a maintenance window left fewer than the budget has."""
FOUND = "found_in_service"
"""… the configuration that the model was found with, where trial 0 is another, the champion."""


class StudyState(StrEnum):
    RUNNING = "running"
    INTERRUPTED = "interrupted"
    FAILED = "failed"
    DONE = "done"
    """It came to an answer, be it that no candidate meets the SLA."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyRecord:
    """``id`` is the database's; ``name`` is not unique: each run of a study file is a study.

    ``definition`` is the study file's content; ``environment`` describes the machine and the
    server (host, cores, Triton version, model hash, …). Times are UTC seconds since the epoch.
    """

    id: int
    name: str
    state: StudyState
    definition: Mapping[str, Any]
    digest: str
    created_at: float
    ended_at: float | None = None
    reason: str = ""
    environment: Mapping[str, Any] | None = None
    trials: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionRecord:
    """A decision as it was taken: the pick's trial number (None: no candidate meets the SLA), the
    rule, the whole explanation as plain data, and where the pick was exported to."""

    study_id: int
    taken_at: float
    rule: str
    pick: int | None
    detail: Mapping[str, Any]
    exported_to: str | None = None
