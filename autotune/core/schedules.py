"""Schedules: a study asked again and again, and what is done with its answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from autotune.core.errors import InputRefused
from autotune.core.promotions import Target


class Policy(StrEnum):
    """What is done with a challenger that has won."""

    REPORT = "report"
    """It is told."""
    PROPOSE = "propose"
    """It waits for someone's approval."""
    AUTO = "auto"
    """It is promoted."""


class ScheduleState(StrEnum):
    ACTIVE = "active"
    PAUSED = "paused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """``definition`` is the study's; ``cron`` has five fields, read in the IANA zone ``timezone``.
    ``window_minutes`` is how long after it was due a run may go on (None: as long as its study's
    budget). ``margin`` is by which share a challenger must be better. ``target`` is where a
    promotion goes; None: nowhere, which suits the policy ``report`` alone. ``active_since`` is when
    it was made, or resumed last: what was due before that is not begun.
    """

    id: int
    name: str
    definition: Mapping[str, Any]
    cron: str
    timezone: str = "UTC"
    window_minutes: float | None = None
    policy: Policy = Policy.REPORT
    margin: float = 0.05
    target: Target | None = None
    state: ScheduleState = ScheduleState.ACTIVE
    created_at: float = 0.0
    created_by: str = ""
    active_since: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.margin < 1:
            raise InputRefused("margin is a share from 0 up to 1", value=self.margin)
        if self.window_minutes is not None and not 0 < self.window_minutes <= 14_400:
            raise InputRefused(
                "a maintenance window is above 0 and at most 14400 minutes",
                value=self.window_minutes,
            )
        if self.policy is not Policy.REPORT and self.target is None:
            raise InputRefused(
                f"the policy {self.policy} needs a target to promote to",
                next_step="name a model repository or a live server, or use the policy report",
            )


class RunState(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    STOPPED = "stopped"
    """Its window was over, or it was cancelled; what it had measured is kept."""
    MISSED = "missed"
    """Its window was over before it could begin."""


class Outcome(StrEnum):
    """What a night came to."""

    HOLDS = "holds"
    """The champion was measured and still wins."""
    BETTER = "better"
    """A challenger won, and is told of (policy ``report``)."""
    PROPOSED = "proposed"
    PROMOTED = "promoted"
    ROLLED_BACK = "rolled_back"
    """A challenger won, was promoted, and did not hold in service."""
    NO_PICK = "no_pick"
    """No candidate meets the SLA any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NightRun:
    """One run of a schedule. ``scheduled_for`` is when it was due: no two runs of a schedule are
    due at the same moment, however many schedulers are at work. ``summary`` tells the night as
    plain data: ``champion`` (candidate and figures with intervals), ``drift`` (see
    `autotune.core.drift`), ``challenger``, ``comparisons``, ``verdict``."""

    id: int
    schedule_id: int
    schedule: str
    scheduled_for: float
    state: RunState
    outcome: Outcome | None = None
    job_id: int | None = None
    study_id: int | None = None
    promotion_id: int | None = None
    started_at: float | None = None
    ended_at: float | None = None
    reason: str = ""
    summary: Mapping[str, Any] = field(default_factory=dict)


DAY_S = 86_400.0


def news(missed: NightRun, runs: Sequence[NightRun]) -> bool:
    """Whether someone should hear of a run that was missed, ``runs`` being the schedule's latest,
    newest first: of several in a row the first is told, and one a day where they are due often."""
    before = [run for run in runs if run.scheduled_for < missed.scheduled_for]
    lately = [run for run in before if run.scheduled_for > missed.scheduled_for - DAY_S]
    return not any(run.state is RunState.MISSED for run in (*before[:1], *lately))
