"""The service's tables: what it was given to do, and what came of it.

States and kinds are the words of `autotune.core`. No column holds a secret: a token is known by
its digest, a channel by its name.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import ForeignKey, Index, String, UniqueConstraint, text
from sqlalchemy.orm import Mapped, mapped_column

from storage.schema import Base

_VALID = text("revoked_at IS NULL")


class JobRow(Base):
    __tablename__ = "jobs"
    __table_args__ = (Index(None, "state"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    kind: Mapped[str] = mapped_column(String(20))
    state: Mapped[str] = mapped_column(String(20))
    title: Mapped[str]
    payload: Mapped[dict[str, Any]]
    devices: Mapped[list[Any]]
    measuring: Mapped[bool]
    """Whether it needs devices."""
    created_at: Mapped[float]
    created_by: Mapped[str]
    started_at: Mapped[float | None]
    ended_at: Mapped[float | None]
    owner: Mapped[str | None]
    attempt: Mapped[int]
    cancel: Mapped[bool]
    reason: Mapped[str]
    exit_code: Mapped[int | None]
    study_id: Mapped[int | None] = mapped_column(ForeignKey("studies.id", ondelete="SET NULL"))
    progress: Mapped[dict[str, Any]]


class LeaseRow(Base):
    """Who has a device: its primary key gives it to one. ``job:<id>`` stands for a job that needs
    none."""

    __tablename__ = "leases"
    __table_args__ = (Index(None, "job_id"),)

    device: Mapped[str] = mapped_column(primary_key=True)
    job_id: Mapped[int] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"))
    owner: Mapped[str]
    expires_at: Mapped[float]


class ScheduleRow(Base):
    """Ids are never used again: runs of a schedule that was removed stay."""

    __tablename__ = "schedules"
    __table_args__ = (UniqueConstraint("name"), {"sqlite_autoincrement": True})

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(200))
    definition: Mapped[dict[str, Any]]
    cron: Mapped[str]
    timezone: Mapped[str] = mapped_column(String(100))
    window_minutes: Mapped[float | None]
    policy: Mapped[str] = mapped_column(String(20))
    margin: Mapped[float]
    target: Mapped[dict[str, Any]]
    """Empty: none."""
    state: Mapped[str] = mapped_column(String(20))
    created_at: Mapped[float]
    created_by: Mapped[str]
    active_since: Mapped[float] = mapped_column(server_default="0")


class RunRow(Base):
    """One run of a schedule, whose name it keeps."""

    __tablename__ = "schedule_runs"
    __table_args__ = (
        UniqueConstraint("schedule_id", "scheduled_for"),
        Index(None, "schedule", "scheduled_for"),
        Index(None, "scheduled_for"),
        Index(None, "job_id"),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    schedule_id: Mapped[int]
    schedule: Mapped[str] = mapped_column(String(200))
    scheduled_for: Mapped[float]
    state: Mapped[str] = mapped_column(String(20))
    outcome: Mapped[str | None] = mapped_column(String(20))
    job_id: Mapped[int | None]
    study_id: Mapped[int | None]
    promotion_id: Mapped[int | None]
    started_at: Mapped[float | None]
    ended_at: Mapped[float | None]
    reason: Mapped[str]
    summary: Mapped[dict[str, Any]]


class PromotionRow(Base):
    __tablename__ = "promotions"
    __table_args__ = (Index(None, "model"), Index(None, "state"))

    id: Mapped[int] = mapped_column(primary_key=True)
    model: Mapped[str] = mapped_column(String(500))
    target: Mapped[dict[str, Any]]
    place: Mapped[str]
    """Which target it is, however it is checked there: its repository and its server."""
    study_id: Mapped[int]
    trial: Mapped[int]
    candidate: Mapped[dict[str, Any]]
    state: Mapped[str] = mapped_column(String(20))
    why: Mapped[str]
    diff: Mapped[str]
    kept: Mapped[str]
    schedule_id: Mapped[int | None]
    created_at: Mapped[float]
    created_by: Mapped[str]
    decided_at: Mapped[float | None]
    decided_by: Mapped[str]
    applied_at: Mapped[float | None]
    reason: Mapped[str]
    detail: Mapped[dict[str, Any]]


class AuditRow(Base):
    """Only ever added to."""

    __tablename__ = "audit"
    __table_args__ = (Index(None, "subject"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    at: Mapped[float]
    who: Mapped[str]
    action: Mapped[str] = mapped_column(String(60))
    subject: Mapped[str] = mapped_column(String(500))
    why: Mapped[str]
    diff: Mapped[str]
    detail: Mapped[dict[str, Any]]


class TokenRow(Base):
    """A name is valid once; revoked ones may share it."""

    __tablename__ = "tokens"
    __table_args__ = (
        Index(
            "uq_tokens_valid_name",
            "name",
            unique=True,
            sqlite_where=_VALID,
            postgresql_where=_VALID,
        ),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(200))
    role: Mapped[str] = mapped_column(String(20))
    digest: Mapped[str] = mapped_column(String(64))
    created_at: Mapped[float]
    last_used_at: Mapped[float | None]
    revoked_at: Mapped[float | None]


class NoticeRow(Base):
    __tablename__ = "notices"
    __table_args__ = (Index(None, "state"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    event: Mapped[str] = mapped_column(String(20))
    title: Mapped[str]
    text: Mapped[str]
    channel: Mapped[str] = mapped_column(String(60))
    created_at: Mapped[float]
    payload: Mapped[dict[str, Any]]
    state: Mapped[str] = mapped_column(String(20))
    attempts: Mapped[int]
    sent_at: Mapped[float | None]
    error: Mapped[str]
