"""Work that the service has been given: queued, leased to one worker, ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

ATTEMPTS = 3
"""How often a job is begun: one whose worker died is taken over, but not for ever."""


class JobKind(StrEnum):
    STUDY = "study"
    """``payload``: ``definition``, as a study stores it."""
    NIGHTLY = "nightly"
    """``payload``: ``schedule`` (its name) and ``run`` (the run's id)."""
    PROMOTE = "promote"
    """``payload``: ``promotion`` (its id)."""
    ROLLBACK = "rollback"
    """``payload``: ``promotion`` (the one to be undone), ``why``."""


class JobState(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def ended(self) -> bool:
        return self not in (JobState.QUEUED, JobState.RUNNING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """``devices`` names what it needs for itself (``host/cpu``, ``host/GPU-…``): one job holds a
    device at a time; empty for a job that measures nothing. ``owner`` is the worker that has it,
    ``attempt`` counts from 1 when it is first begun, ``cancel`` asks the worker to end it.
    ``progress`` is the last step that it told (see `autotune.ports.Progress`), as plain data.
    ``study_id`` is the study that it made. Times are UTC seconds since the epoch.
    """

    id: int
    kind: JobKind
    state: JobState
    title: str
    payload: Mapping[str, Any]
    devices: tuple[str, ...] = ()
    created_at: float
    created_by: str
    started_at: float | None = None
    ended_at: float | None = None
    owner: str | None = None
    attempt: int = 0
    cancel: bool = False
    reason: str = ""
    exit_code: int | None = None
    study_id: int | None = None
    progress: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """What a heartbeat learns: whether the job is still this worker's, and whether to end it."""

    held: bool
    cancel: bool
