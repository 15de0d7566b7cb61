"""What the API takes and gives, where that is not a record of `autotune.core`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from fastapi import Path as InPath
from fastapi import Query
from pydantic import BaseModel, ConfigDict, Field

from autotune import service_ports
from autotune.core.jobs import Job
from autotune.core.promotions import Target
from autotune.core.records import StudyState
from autotune.core.schedules import Policy, Schedule
from autotune.core.standing import Standing
from autotune.service_ports import StudySummary

LARGEST_ID = 2**63 - 1
LONGEST_WORDS = 2000

Id = Annotated[int, InPath(ge=1, le=LARGEST_ID)]
Number = Annotated[int, InPath(ge=0, le=LARGEST_ID, description="A trial's number in its study.")]
Limit = Annotated[int, Query(ge=1, le=1000)]
Words = Annotated[str, Field(max_length=LONGEST_WORDS, pattern=r"^[^\x00]*$")]
Address = Annotated[str, Field(max_length=300, pattern=r"^[^\x00\s]+:[0-9]+$")]
"""host:port"""
Name = Annotated[str, InPath(min_length=1, max_length=200, pattern=r"^[^\x00]*$")]


class _Given(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class StudyGiven(_Given):
    """A study in a study file's words (docs/study-file.md); paths are relative to the service's
    root."""

    definition: dict[str, Any]


class TargetGiven(_Given):
    repository: Annotated[str, Field(max_length=4000, pattern=r"^[^\x00]+$")] | None = None
    grpc: Address | None = None
    http: Address | None = None
    shadow_s: Annotated[float, Field(ge=0, le=3600, allow_inf_nan=False)] = 20.0

    def target(self) -> Target:
        repository = None if self.repository is None else Path(self.repository)
        return Target(repository=repository, grpc=self.grpc, http=self.http, shadow_s=self.shadow_s)


class ScheduleGiven(_Given):
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.\-]*$", max_length=100)]
    definition: dict[str, Any]
    cron: Annotated[str, Field(max_length=200)]
    timezone: Annotated[str, Field(max_length=100)] = "UTC"
    window_minutes: Annotated[float, Field(gt=0, le=14_400, allow_inf_nan=False)] | None = None
    policy: Policy = Policy.REPORT
    margin: Annotated[float, Field(ge=0, lt=1)] = 0.05
    target: TargetGiven | None = None

    def schedule(self, definition: dict[str, Any], target: Target | None) -> Schedule:
        """With the definition and the target as they were checked."""
        return Schedule(
            id=0,
            name=self.name,
            definition=definition,
            cron=self.cron,
            timezone=self.timezone,
            window_minutes=self.window_minutes,
            policy=self.policy,
            margin=self.margin,
            target=target,
        )


class PromotionGiven(_Given):
    """``trial`` is the study's pick where none is named."""

    study: Annotated[int, Field(ge=1, le=LARGEST_ID)]
    trial: Annotated[int, Field(ge=0, le=LARGEST_ID)] | None = None
    target: TargetGiven
    why: Words = ""


class Why(_Given):
    why: Words = ""


class StudyLine(BaseModel):
    """A study in a list."""

    id: int
    name: str
    state: StudyState
    reason: str
    model: str
    sla: str
    trials: int
    planned: int | None
    best: int | None
    best_metrics: dict[str, float | None]
    created_at: float
    ended_at: float | None
    job: int | None

    @classmethod
    def of(cls, summary: StudySummary) -> StudyLine:
        record = summary.record
        return cls(
            id=record.id,
            name=record.name,
            state=record.state,
            reason=record.reason,
            model=summary.model,
            sla=summary.sla,
            trials=record.trials,
            planned=summary.planned,
            best=summary.best,
            best_metrics=dict(summary.best_metrics),
            created_at=record.created_at,
            ended_at=record.ended_at,
            job=None if summary.job is None else summary.job.id,
        )


class TrialLine(BaseModel):
    """A trial in a list, with why it stands where it does; its figures and their 95% intervals
    (an open end is null) by the metrics' names."""

    number: int
    candidate: dict[str, Any]
    standing: Standing
    why: str
    metrics: dict[str, float]
    intervals: dict[str, tuple[float | None, float | None]]
    started_at: float
    ended_at: float | None

    @classmethod
    def of(cls, line: service_ports.TrialLine) -> TrialLine:
        return cls(
            number=line.number,
            candidate=dict(line.candidate.to_json()),
            standing=line.standing,
            why=line.why,
            metrics=dict(line.values),
            intervals={name: (each.low, each.high) for name, each in line.intervals.items()},
            started_at=line.started_at,
            ended_at=line.ended_at,
        )


class Trials(BaseModel):
    """Some of a study's trials, of so many in all."""

    total: int
    trials: list[TrialLine]


class Configuration(BaseModel):
    """By model: a pipeline has several."""

    config: dict[str, str]
    in_service: dict[str, str]
    diff: str


class Accepted(BaseModel):
    """The job that does what was asked for."""

    job: Job


class Asking(BaseModel):
    """Who is asking, as the service knows them."""

    name: str
    role: str
