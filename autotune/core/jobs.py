"""Work that the service has been given: queued, leased to one worker, ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

ATTEMPTS = 3
"""How often a job is begun: one whose worker died is taken over, but not for ever."""
HERE = "here/"
"""Begins what a job calls a device of the machine that does it, whichever that will be."""
CPU = f"{HERE}cpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a worker measures: a machine, or a ``slot`` of it (empty: all of it)."""

    machine: str
    slot: str = ""

    def lease_of(self, device: str) -> str:
        """What a device that a job needs is called while it is held from here. A slot has cores of
        its own; what is no machine's own (a remote server) has one name everywhere."""
        if not device.startswith(HERE):
            return device
        named = f"{self.machine}/{device.removeprefix(HERE)}"
        return f"{named}.{self.slot}" if self.slot and device == CPU else named


SOMEWHERE = Place(machine="here")
"""The place of all workers that tell none: devices keep the names that jobs give them."""


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
    """``devices`` names what it needs for itself (``here/cpu``, ``here/GPU-…``, ``gpu1:8001``): one
    job holds a device at a time (see `Place`); empty for a job that measures nothing. ``owner`` is
    the worker that has it, ``attempt`` counts from 1 when it is first begun, ``cancel`` asks the
    worker to end it. ``progress`` is the last step that it told (see `autotune.ports.Progress`), as
    plain data. ``study_id`` is the study that it made. Times are UTC seconds since the epoch.
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
