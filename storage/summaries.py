"""Narrow reads of studies, for showing: of ten thousand trials only what a list needs.

A measurement's row is wide: its histogram, series and samples are most of it. They are left in the
database here, and no object of the mapper stands for a row.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias, cast

from sqlalchemy import JSON, ColumnElement, Integer, Row, func, literal, null, select, type_coerce
from sqlalchemy import cast as sql_cast
from sqlalchemy.orm import Session, selectinload, undefer

from autotune.core.records import DecisionRecord, StudyRecord
from autotune.core.trial import Trial, TrialState
from search_spaces.candidate import Candidate
from storage import rows
from storage.plain import PlainJson, decode
from storage.schema import (
    ComparisonRow,
    DecisionRow,
    EnvironmentRow,
    MeasurementRow,
    StudyRow,
    TrialRow,
    VariantRow,
)
from storage.service.database import Database
from storage.store import records

Mark: TypeAlias = tuple[str, float | None, int, int, int]
"""What changes whenever a trial does: its state, its end, how many measurements it has, the latest
one's id, and how many are valid."""

_AT_ONCE = 500
"""How many trials one query names."""
_JUDGED = "judged"
_NO_TEXT: ColumnElement[str] = literal("")
_NO_LIST: ColumnElement[Any] = literal([], PlainJson())
_NO_MAPPING: ColumnElement[Any] = literal({}, PlainJson())
_LEFT_OUT: dict[str, ColumnElement[Any]] = {
    "samples": null(),
    "histogram": _NO_TEXT,
    "telemetry_series": _NO_LIST,
    "error_texts": _NO_MAPPING,
    "steps": _NO_MAPPING,
    "service_count": null(),
    "lag_count": null(),
}
"""Columns of a measurement that no list shows, with what stands for them."""


class SqlStudyReader:
    """Reads only; raises InputRefused and StoreFailed only. Threads may share it."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def records(self, limit: int) -> Sequence[StudyRecord]:
        """Newest first."""
        with self._database.read() as session:
            return records(session, limit=limit)

    def version(self, study_id: int) -> str:
        """Changes with everything that is stored of the study."""
        with self._database.read() as session:
            found = [tuple(row) for query in _stamps(study_id) for row in session.execute(query)]
        return hashlib.sha256(repr(found).encode()).hexdigest()[:16]

    def marks(self, study_id: int) -> Mapping[int, Mark]:
        """By trial number, in their order: what tells whether it is still the one that was read."""
        query = (
            select(
                TrialRow.number,
                TrialRow.state,
                TrialRow.ended_at,
                func.count(MeasurementRow.id),
                func.coalesce(func.max(MeasurementRow.id), 0),
                func.coalesce(func.sum(sql_cast(MeasurementRow.valid, Integer)), 0),
            )
            .outerjoin(MeasurementRow, MeasurementRow.trial_id == TrialRow.id)
            .where(TrialRow.study_id == study_id)
            .group_by(TrialRow.id)
            .order_by(TrialRow.number)
        )
        with self._database.read() as session:
            return {
                number: (state, ended, count, latest, valid)
                for number, state, ended, count, latest, valid in session.execute(query)
            }

    def trials(self, study_id: int, numbers: Sequence[int] | None = None) -> Sequence[Trial]:
        """In the order of their numbers, all or those named; without samples, histograms, series,
        steps and the times of sends."""
        own = TrialRow.study_id == study_id
        parts: list[list[ColumnElement[bool]]] = [[own]]
        if numbers is not None:
            wanted = sorted(numbers)
            parts = [
                [own, TrialRow.number.in_(wanted[at : at + _AT_ONCE])]
                for at in range(0, len(wanted), _AT_ONCE)
            ]
        with self._database.read() as session:
            return [trial for part in parts for trial in _trials(session, part)]

    def bare_trials(self, study_id: int) -> Sequence[Trial]:
        """In the order of their numbers, without any measurement."""
        with self._database.read() as session:
            query = _trial_query([TrialRow.study_id == study_id])
            return [_trial(row, ()) for row in session.execute(query)]

    def decision(self, study_id: int) -> tuple[DecisionRecord, Sequence[Any]] | None:
        """The latest decision without the trials it judged, and those, as they are stored: JSON
        says everything of them (see `autotune.core.plain.finite`)."""
        query = select(
            DecisionRow.study_id,
            DecisionRow.taken_at,
            DecisionRow.rule,
            DecisionRow.pick,
            DecisionRow.exported_to,
            type_coerce(DecisionRow.detail, JSON).label("detail"),
        ).where(DecisionRow.study_id == study_id)
        with self._database.read() as session:
            row = session.execute(query.order_by(DecisionRow.id.desc()).limit(1)).first()
        if row is None:
            return None
        judged = row.detail.pop(_JUDGED, ())
        told = DecisionRecord(
            study_id=row.study_id,
            taken_at=row.taken_at,
            rule=row.rule,
            pick=row.pick,
            detail=decode(row.detail),
            exported_to=row.exported_to,
        )
        return told, judged

    def picks(self, study_ids: Sequence[int]) -> Mapping[int, int | None]:
        """By study: the pick of its latest decision; without those that have none."""
        latest = select(func.max(DecisionRow.id)).where(DecisionRow.study_id.in_(study_ids))
        query = select(DecisionRow.study_id, DecisionRow.pick).where(
            DecisionRow.id.in_(latest.group_by(DecisionRow.study_id))
        )
        with self._database.read() as session:
            return {study_id: pick for study_id, pick in session.execute(query)}  # noqa: C416

    def whole_trial(self, study_id: int, number: int, *, samples: bool) -> Trial | None:
        """All that is stored of it; its raw samples only where they are asked for."""
        measurements = selectinload(TrialRow.measurements)
        if samples:
            measurements = measurements.options(undefer(MeasurementRow.samples))
        query = select(TrialRow).where(TrialRow.study_id == study_id, TrialRow.number == number)
        with self._database.read() as session:
            row = session.scalar(query.options(measurements))
            return None if row is None else rows.trial(row, samples=samples)


def _stamps(study_id: int) -> Iterable[Any]:
    """Queries of one row each, which together change with everything that is stored."""
    own = TrialRow.study_id == study_id
    yield select(StudyRow.state, StudyRow.reason, StudyRow.ended_at).where(StudyRow.id == study_id)
    yield select(func.max(EnvironmentRow.id)).where(EnvironmentRow.study_id == study_id)
    yield select(
        func.count(),
        func.max(TrialRow.id),
        func.count(TrialRow.ended_at),
        func.max(TrialRow.ended_at),
    ).where(own)
    yield (
        select(
            func.count(),
            func.max(MeasurementRow.id),
            func.sum(sql_cast(MeasurementRow.valid, Integer)),
        )
        .join(TrialRow, MeasurementRow.trial_id == TrialRow.id)
        .where(own)
    )
    for table in (ComparisonRow, VariantRow, DecisionRow):
        yield select(func.count(), func.max(table.id)).where(table.study_id == study_id)


def _trial_query(chosen: Sequence[ColumnElement[bool]]) -> Any:
    return (
        select(
            TrialRow.id,
            TrialRow.number,
            TrialRow.state,
            TrialRow.reason,
            TrialRow.started_at,
            TrialRow.ended_at,
            type_coerce(TrialRow.candidate, JSON).label("candidate"),
        )
        .where(*chosen)
        .order_by(TrialRow.number)
    )


def _trials(session: Session, chosen: Sequence[ColumnElement[bool]]) -> list[Trial]:
    measured: dict[int, list[Any]] = {}
    query = (
        select(*_narrow())
        .join(TrialRow, MeasurementRow.trial_id == TrialRow.id)
        .where(*chosen)
        .order_by(MeasurementRow.id)
    )
    for row in session.execute(query):
        # A row of these columns reads like the mapper's own.
        one = rows.measurement(cast("MeasurementRow", row), samples=False)
        measured.setdefault(row.trial_id, []).append(one)
    return [_trial(row, measured.get(row.id, ())) for row in session.execute(_trial_query(chosen))]


def _narrow() -> list[ColumnElement[Any]]:
    return [
        _LEFT_OUT[column.name].label(column.name) if column.name in _LEFT_OUT else column
        for column in MeasurementRow.__table__.columns
    ]


def _trial(row: Row[Any], measurements: Sequence[Any]) -> Trial:
    return Trial(
        number=row.number,
        candidate=Candidate.from_json(row.candidate),
        state=TrialState(row.state),
        measurements=tuple(measurements),
        reason=row.reason,
        started_at=row.started_at,
        ended_at=row.ended_at,
    )
