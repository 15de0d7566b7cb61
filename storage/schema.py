"""The tables. One row per thing that happened, one column per number that can be asked for.

Latency columns without a prefix count from the **scheduled** time, ``service_*`` from the send,
``lag_*`` is sent minus scheduled. Names end in their unit. NULL means unknown; SQLite stores NaN
as NULL too, so the names of columns that were NaN stand in ``nan_columns``.
"""

from __future__ import annotations

from typing import Any, ClassVar

from sqlalchemy import (
    BigInteger,
    Double,
    ForeignKey,
    Index,
    LargeBinary,
    MetaData,
    String,
    Text,
    UniqueConstraint,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship

from storage.plain import PlainJson

VERSION_TABLE = "autotune_version"
"""Alembic's table, under a name of our own: it also tells our databases from others."""


class Base(DeclarativeBase):
    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map: ClassVar[dict[Any, Any]] = {
        float: Double(),
        str: Text(),
        bytes: LargeBinary(),
        dict[str, Any]: PlainJson(),
        list[Any]: PlainJson(),
    }


class StudyRow(Base):
    __tablename__ = "studies"
    __table_args__ = (Index(None, "name"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(500))
    digest: Mapped[str] = mapped_column(String(64))
    definition: Mapped[dict[str, Any]]
    state: Mapped[str] = mapped_column(String(20))
    reason: Mapped[str]
    created_at: Mapped[float]
    ended_at: Mapped[float | None]


class EnvironmentRow(Base):
    """What a study ran on. A study resumed elsewhere has several; the latest one counts."""

    __tablename__ = "environments"
    __table_args__ = (Index(None, "study_id"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    study_id: Mapped[int] = mapped_column(ForeignKey("studies.id", ondelete="CASCADE"))
    recorded_at: Mapped[float]
    detail: Mapped[dict[str, Any]]


class TrialRow(Base):
    __tablename__ = "trials"
    __table_args__ = (UniqueConstraint("study_id", "number"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    study_id: Mapped[int] = mapped_column(ForeignKey("studies.id", ondelete="CASCADE"))
    number: Mapped[int]
    candidate: Mapped[dict[str, Any]]
    candidate_digest: Mapped[str] = mapped_column(String(64))
    state: Mapped[str] = mapped_column(String(20))
    reason: Mapped[str]
    started_at: Mapped[float]
    ended_at: Mapped[float | None]
    measurements: Mapped[list[MeasurementRow]] = relationship(
        order_by="MeasurementRow.id", cascade="all, delete-orphan", passive_deletes=True
    )


class MeasurementRow(Base):
    __tablename__ = "measurements"
    __table_args__ = (Index(None, "trial_id"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    trial_id: Mapped[int] = mapped_column(ForeignKey("trials.id", ondelete="CASCADE"))
    purpose: Mapped[str] = mapped_column(String(20))
    started_at: Mapped[float]
    valid: Mapped[bool]
    invalid_because: Mapped[list[Any]]
    instances: Mapped[int]
    reload_s: Mapped[float | None]
    saturation_qps: Mapped[float | None]
    saturation_s: Mapped[float | None]
    accuracy_drop: Mapped[float | None]
    intervals: Mapped[dict[str, Any]]
    """95% confidence intervals as [low, high], by the metric's name."""

    traffic_qps: Mapped[float | None]
    arrival: Mapped[str | None] = mapped_column(String(20))
    """The kind of arrivals; NULL where no traffic was recorded."""
    arrival_cv: Mapped[float | None]
    seed: Mapped[int | None] = mapped_column(BigInteger)
    warmup_s: Mapped[float | None]
    steady: Mapped[bool | None]
    ended: Mapped[str | None] = mapped_column(String(20))

    offered_qps: Mapped[float | None]
    achieved_qps: Mapped[float | None]
    window_s: Mapped[float | None]
    scheduled: Mapped[int]
    sent: Mapped[int]
    completed: Mapped[int]
    ok: Mapped[int]
    error_rate: Mapped[float | None]
    errors: Mapped[dict[str, Any]]
    error_texts: Mapped[dict[str, Any]]
    """The first words of each kind of error."""
    generator_cpu: Mapped[float | None]
    max_in_flight: Mapped[int]
    in_flight_cap_hit: Mapped[bool]

    count: Mapped[int | None]
    mean_ms: Mapped[float | None]
    p50_ms: Mapped[float | None]
    p90_ms: Mapped[float | None]
    p95_ms: Mapped[float | None]
    p99_ms: Mapped[float | None]
    max_ms: Mapped[float | None]
    service_count: Mapped[int | None]
    service_mean_ms: Mapped[float | None]
    service_p50_ms: Mapped[float | None]
    service_p90_ms: Mapped[float | None]
    service_p95_ms: Mapped[float | None]
    service_p99_ms: Mapped[float | None]
    service_max_ms: Mapped[float | None]
    lag_count: Mapped[int | None]
    lag_mean_ms: Mapped[float | None]
    lag_p50_ms: Mapped[float | None]
    lag_p90_ms: Mapped[float | None]
    lag_p95_ms: Mapped[float | None]
    lag_p99_ms: Mapped[float | None]
    lag_max_ms: Mapped[float | None]
    other_percentiles: Mapped[dict[str, Any]]
    """Percentiles that have no column, by prefix, as [percentile, ms] pairs."""
    histogram: Mapped[str]

    server_requests: Mapped[int | None]
    executions: Mapped[int | None]
    failures: Mapped[int | None]
    queue_ms: Mapped[float | None]
    compute_input_ms: Mapped[float | None]
    compute_infer_ms: Mapped[float | None]
    compute_output_ms: Mapped[float | None]
    compute_ms: Mapped[float | None]
    mean_batch: Mapped[float | None]
    batches: Mapped[list[Any]]
    """The batch histogram as [size, executions, compute ms of one] triples."""
    server_instances: Mapped[int | None]
    """Instances that served the window; NULL where that was not recorded. ``instances`` is what the
    candidate has loaded in all."""
    steps: Mapped[dict[str, Any]]
    """A pipeline's composing models: the server's columns of each, by its name."""

    utilization: Mapped[float | None]
    utilization_source: Mapped[str | None]
    memory_mb: Mapped[float | None]
    memory_source: Mapped[str | None]
    memory_total_mb: Mapped[float | None]
    telemetry_series: Mapped[list[Any]]
    """[seconds since the window opened, utilization] pairs."""
    telemetry_notes: Mapped[dict[str, Any]]
    foreign_cpu: Mapped[float | None]
    foreign_gpu: Mapped[list[Any]]
    throttled: Mapped[list[Any]]
    gauges: Mapped[dict[str, Any]]
    """By name: value, source and series, as [seconds since the window opened, value] pairs."""
    price_per_hour: Mapped[float | None]

    nan_columns: Mapped[list[Any]]
    samples: Mapped[bytes | None] = mapped_column(deferred=True, deferred_raiseload=True)
    """The raw request times, as a compressed NumPy archive."""


class ComparisonRow(Base):
    """One trial against another. NULL in ``effect``, ``low`` and ``high`` is NaN."""

    __tablename__ = "comparisons"
    __table_args__ = (Index(None, "study_id"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    study_id: Mapped[int] = mapped_column(ForeignKey("studies.id", ondelete="CASCADE"))
    taken_at: Mapped[float]
    first: Mapped[int]
    second: Mapped[int]
    metric: Mapped[str] = mapped_column(String(40))
    effect: Mapped[float | None]
    low: Mapped[float | None]
    high: Mapped[float | None]
    relation: Mapped[str] = mapped_column(String(20))
    pairs: Mapped[int]


class VariantRow(Base):
    """What came of a variant that the study asked for, in the order of ``id``."""

    __tablename__ = "variants"
    __table_args__ = (Index(None, "study_id"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    study_id: Mapped[int] = mapped_column(ForeignKey("studies.id", ondelete="CASCADE"))
    variant: Mapped[str] = mapped_column(String(60))
    step: Mapped[str]
    """The pipeline's step that it is of; empty for the tuned model itself."""
    digest: Mapped[str] = mapped_column(String(64))
    file: Mapped[str]
    size_mb: Mapped[float | None]
    seconds: Mapped[float]
    cached: Mapped[bool]
    accuracy_drop: Mapped[float | None]
    served_drop: Mapped[float | None]
    refused: Mapped[str]
    attempts: Mapped[list[Any]]
    tools: Mapped[dict[str, Any]]
    notes: Mapped[list[Any]]


class DecisionRow(Base):
    __tablename__ = "decisions"
    __table_args__ = (Index(None, "study_id"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    study_id: Mapped[int] = mapped_column(ForeignKey("studies.id", ondelete="CASCADE"))
    taken_at: Mapped[float]
    rule: Mapped[str] = mapped_column(String(40))
    pick: Mapped[int | None]
    detail: Mapped[dict[str, Any]]
    exported_to: Mapped[str | None]
