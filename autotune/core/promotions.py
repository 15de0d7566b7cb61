"""Promotions: a challenger put into service in the champion's place, and the trail it leaves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from autotune.core.errors import InputRefused
from search_spaces.candidate import Candidate


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where a configuration is put into service.

    ``repository``: a Triton model repository directory. ``grpc`` and ``http`` (host:port): a live
    Triton in explicit mode, which is told to load; with a repository too, that is where it loads
    from, else the configuration is sent as an override, which lasts until that server restarts.
    ``shadow_s`` is how long its SLA is checked after the load, in seconds (0: not at all).
    """

    repository: Path | None = None
    grpc: str | None = None
    http: str | None = None
    shadow_s: float = 20.0

    def __post_init__(self) -> None:
        if self.repository is None and self.grpc is None:
            raise InputRefused("a target is a model repository, a live server (grpc), or both")
        if not 0 <= self.shadow_s <= 3600:
            raise InputRefused("target.shadow_s is 0 to 3600 seconds", value=self.shadow_s)

    @property
    def live(self) -> bool:
        return self.grpc is not None

    def meets(self, other: Target) -> bool:
        """Whether the two change the same repository, or what the same server serves."""
        return (self.repository is not None and self.repository == other.repository) or (
            self.grpc is not None and self.grpc == other.grpc
        )

    def __str__(self) -> str:
        return " and ".join(str(each) for each in (self.repository, self.grpc) if each is not None)


class PromotionState(StrEnum):
    PROPOSED = "proposed"
    APPROVED = "approved"
    """Waits for the worker."""
    APPLYING = "applying"
    DONE = "done"
    """In service; the latest one of a model and a target is its champion."""
    REJECTED = "rejected"
    FAILED = "failed"
    """It could not be put into service, or did not hold there; what was in service before is."""
    SUPERSEDED = "superseded"
    """A later one has taken its place, as proposal or in service."""
    ROLLED_BACK = "rolled_back"


@dataclass(frozen=True, slots=True, kw_only=True)
class Promotion:
    """``trial`` of study ``study_id`` for ``model``. ``diff`` is the unified diff of the
    configurations, ``why`` the words for it, ``kept`` where the files that it replaced were put
    (empty: nowhere yet). ``detail`` is plain data: comparisons, shadow check, steps."""

    id: int
    model: str
    target: Target
    study_id: int
    trial: int
    candidate: Mapping[str, Any]
    state: PromotionState
    why: str = ""
    diff: str = ""
    kept: str = ""
    schedule_id: int | None = None
    created_at: float = 0.0
    created_by: str = ""
    decided_at: float | None = None
    decided_by: str = ""
    applied_at: float | None = None
    reason: str = ""
    detail: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Edited:
    """What is in service at ``target`` is not what ``promotion`` (its number) left there, or, where
    there is none, another than it is held against, which ``instead`` names: ``words`` in a line,
    and the ``diff`` from that. ``candidate`` is what is there in the words of a study's space; None
    where these cannot say it. ``lasting``: what was promoted outlasts a restart of the server, so
    that somebody has changed it."""

    promotion: int | None
    target: str
    words: str
    diff: str
    instead: str = "what was promoted"
    lasting: bool = True
    candidate: Candidate | None = None

    @property
    def told(self) -> str:
        """In a sentence."""
        return f"what is in service at {self.target} is not {self.instead}: {self.words}"

    def to_json(self) -> dict[str, Any]:
        return {
            "promotion": self.promotion,
            "target": self.target,
            "words": self.words,
            "told": self.told,
            "diff": self.diff,
            "candidate": None if self.candidate is None else self.candidate.to_json(),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """Who did what to which ``subject`` (``promotion 3``, ``model ocr``, ``schedule nightly``,
    ``token ci``), when, and why. ``diff`` of configurations where there is one. No secret ever."""

    id: int
    at: float
    who: str
    action: str
    subject: str
    why: str = ""
    diff: str = ""
    detail: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What somebody did to a promotion, to be noted in the audit trail together with the change."""

    who: str
    action: str
    why: str = ""
    diff: str = ""
