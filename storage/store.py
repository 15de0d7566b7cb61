"""`SqlTrialStore`: the TrialStore port on a SQL database."""

from __future__ import annotations

import difflib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from sqlalchemy import ColumnElement, Select, delete, func, select, update
from sqlalchemy.orm import Session, selectinload, undefer

from autotune.core.comparison import Comparison
from autotune.core.errors import NotFound, StoreFailed
from autotune.core.measurement import Measurement
from autotune.core.records import DecisionRecord, StudyRecord, StudyState
from autotune.core.trial import Trial, TrialState
from autotune.core.variants import VariantRecord
from search_spaces.candidate import Candidate
from storage import rows
from storage.failures import translated
from storage.opening import WRITING, open_engine, parse_url, shown
from storage.plain import text
from storage.schema import (
    ComparisonRow,
    DecisionRow,
    EnvironmentRow,
    MeasurementRow,
    StudyRow,
    TrialRow,
    VariantRow,
)

DEFAULT_URL = "sqlite:///autotune.db"


class SqlTrialStore:
    """Studies in SQLite (WAL) or another SQL database. Every call is one transaction.

    ``where`` is a SQLAlchemy URL or the path of an SQLite file. With ``create`` False a missing
    file is refused instead of created. ``busy_timeout_s`` bounds the wait for another process's
    lock, in seconds; a signal ends it earlier. ``now`` gives UTC seconds since the epoch.

    Raises InputRefused and StoreFailed only, from every method.
    """

    def __init__(
        self,
        where: str = DEFAULT_URL,
        *,
        create: bool = True,
        busy_timeout_s: float = 60.0,
        now: Callable[[], float] = time.time,
    ) -> None:
        url = parse_url(where)
        self._where = shown(url)
        self._now = now
        self._engine = open_engine(url, create=create, busy_timeout_s=busy_timeout_s)
        self._writing_engine = self._engine.execution_options(**WRITING)
        self._begun: dict[tuple[int, int], float] = {}

    # --------------------------------------------------------------------------------- studies
    def create_study(self, name: str, definition: Mapping[str, Any], digest: str) -> int:
        row = StudyRow(
            name=text(name),
            digest=digest,
            definition=dict(definition),
            state=str(StudyState.RUNNING),
            reason="",
            created_at=self._now(),
        )
        with self._writing() as session:
            session.add(row)
            session.flush()
            return row.id

    def study(self, reference: str) -> StudyRecord:
        with self._reading() as session:
            if _is_id(reference) and (found := records(session, StudyRow.id == int(reference))):
                return found[0]
            if found := records(session, StudyRow.name == text(reference)):
                return next((record for record in found if record.trials), found[0])
            names = session.scalars(select(StudyRow.name).distinct()).all()
        raise NotFound("no such study", value=reference, next_step=_suggestion(reference, names))

    def studies(self) -> Sequence[StudyRecord]:
        with self._reading() as session:
            return records(session)

    def set_study_state(self, study_id: int, state: StudyState, reason: str = "") -> None:
        with self._writing() as session:
            row = self._study_row(session, study_id)
            row.state = str(state)
            row.reason = text(reason)
            row.ended_at = None if state is StudyState.RUNNING else self._now()

    def set_environment(self, study_id: int, environment: Mapping[str, Any]) -> None:
        with self._writing() as session:
            self._study_row(session, study_id)
            session.add(
                EnvironmentRow(study_id=study_id, recorded_at=self._now(), detail=dict(environment))
            )

    # ---------------------------------------------------------------------------------- trials
    def begin_trial(self, study_id: int, number: int, candidate: Candidate) -> None:
        started_at = self._now()
        with self._writing() as session:
            self._study_row(session, study_id)
            old = session.scalar(_trial_query(study_id, number))
            if old is not None:
                self._refuse_ended(old)
                session.delete(old)
                session.flush()
            session.add(
                TrialRow(
                    study_id=study_id,
                    number=number,
                    candidate=candidate.to_json(),
                    candidate_digest=candidate.digest,
                    state=str(TrialState.RUNNING),
                    reason="",
                    started_at=started_at,
                )
            )
        self._begun[study_id, number] = started_at

    def add_measurement(self, study_id: int, number: int, measurement: Measurement) -> None:
        row = rows.measurement_row(measurement)
        with self._writing() as session:
            row.trial_id = self._trial_row(session, study_id, number).id
            session.add(row)

    def end_trial(self, study_id: int, number: int, state: TrialState, reason: str = "") -> None:
        with self._writing() as session:
            row = self._trial_row(session, study_id, number)
            row.state = str(state)
            row.reason = text(reason)
            row.ended_at = self._now()

    def trials(self, study_id: int, *, samples: bool = False) -> Sequence[Trial]:
        measurements = selectinload(TrialRow.measurements)
        query = select(TrialRow).where(TrialRow.study_id == study_id).order_by(TrialRow.number)
        if samples:
            measurements = measurements.options(undefer(MeasurementRow.samples))
        with self._reading() as session:
            found = session.scalars(query.options(measurements)).all()
            return [rows.trial(row, samples=samples) for row in found]

    def doubt_measurements(self, study_id: int, reason: str) -> None:
        trials = select(TrialRow.id).where(TrialRow.study_id == study_id)
        doubted = MeasurementRow.valid & MeasurementRow.trial_id.in_(trials)
        with self._writing() as session:
            self._study_row(session, study_id)
            session.execute(
                update(MeasurementRow).where(doubted).values(valid=False, invalid_because=[reason]),
                execution_options={"synchronize_session": False},
            )

    # ----------------------------------------------------------------------------- comparisons
    def add_comparisons(self, study_id: int, comparisons: Sequence[Comparison]) -> None:
        added = [rows.comparison_row(study_id, comparison) for comparison in comparisons]
        with self._writing() as session:
            self._study_row(session, study_id)
            session.add_all(added)

    def comparisons(self, study_id: int) -> Sequence[Comparison]:
        query = select(ComparisonRow).where(ComparisonRow.study_id == study_id)
        with self._reading() as session:
            found = session.scalars(query.order_by(ComparisonRow.id)).all()
            return [rows.comparison(row) for row in found]

    # -------------------------------------------------------------------------------- variants
    def set_variants(self, study_id: int, variants: Sequence[VariantRecord]) -> None:
        added = [rows.variant_row(study_id, variant) for variant in variants]
        with self._writing() as session:
            self._study_row(session, study_id)
            session.execute(delete(VariantRow).where(VariantRow.study_id == study_id))
            session.add_all(added)

    def variants(self, study_id: int) -> Sequence[VariantRecord]:
        query = select(VariantRow).where(VariantRow.study_id == study_id)
        with self._reading() as session:
            found = session.scalars(query.order_by(VariantRow.id)).all()
            return [rows.variant(row) for row in found]

    # ------------------------------------------------------------------------------- decisions
    def add_decision(self, decision: DecisionRecord) -> None:
        with self._writing() as session:
            self._study_row(session, decision.study_id)
            session.add(
                DecisionRow(
                    study_id=decision.study_id,
                    taken_at=decision.taken_at,
                    rule=text(decision.rule),
                    pick=decision.pick,
                    detail=dict(decision.detail),
                    exported_to=None
                    if decision.exported_to is None
                    else text(decision.exported_to),
                )
            )

    def decision(self, study_id: int) -> DecisionRecord | None:
        query = select(DecisionRow).where(DecisionRow.study_id == study_id)
        with self._reading() as session:
            row = session.scalar(query.order_by(DecisionRow.id.desc()).limit(1))
            return None if row is None else rows.decision(row)

    def close(self) -> None:
        self._engine.dispose()

    # ------------------------------------------------------------------------------------ inner
    @contextmanager
    def _reading(self) -> Iterator[Session]:
        with translated(self._where), Session(self._engine) as session:
            yield session

    @contextmanager
    def _writing(self) -> Iterator[Session]:
        with translated(self._where), Session(self._writing_engine) as session, session.begin():
            yield session

    def _study_row(self, session: Session, study_id: int) -> StudyRow:
        row = session.get(StudyRow, study_id)
        if row is None:
            raise StoreFailed("the database has no such study", value=study_id)
        return row

    def _trial_row(self, session: Session, study_id: int, number: int) -> TrialRow:
        row = session.scalar(_trial_query(study_id, number))
        if row is None:
            raise StoreFailed(f"study {study_id} has no such trial", value=number)
        if self._begun.get((study_id, number), row.started_at) != row.started_at:
            raise StoreFailed(
                f"trial {number} of study {study_id} has been begun anew by another process",
                next_step="Let the other one go on: this one ends, and has written nothing to it.",
            )
        return row

    def _refuse_ended(self, row: TrialRow) -> None:
        if row.state != TrialState.RUNNING:
            raise StoreFailed(
                f"trial {row.number} of study {row.study_id} is stored already",
                value=row.state,
                next_step="Is another process running the same study? Let one of them end.",
            )


def _trial_query(study_id: int, number: int) -> Select[TrialRow]:
    return select(TrialRow).where(TrialRow.study_id == study_id, TrialRow.number == number)


def records(
    session: Session, *conditions: ColumnElement[bool], limit: int | None = None
) -> list[StudyRecord]:
    """Studies, newest first, with their latest environment and the number of their trials."""
    trials = (
        select(func.count())
        .where(TrialRow.study_id == StudyRow.id)
        .correlate(StudyRow)
        .scalar_subquery()
    )
    latest = (
        select(func.max(EnvironmentRow.id))
        .where(EnvironmentRow.study_id == StudyRow.id)
        .correlate(StudyRow)
        .scalar_subquery()
    )
    query = (
        select(StudyRow, EnvironmentRow.detail, trials)
        .outerjoin(EnvironmentRow, EnvironmentRow.id == latest)
        .where(*conditions)
        .order_by(StudyRow.id.desc())
        .limit(limit)
    )
    return [
        rows.study(row, environment, count) for row, environment, count in session.execute(query)
    ]


def _suggestion(reference: str, names: Sequence[str]) -> str:
    if not names:
        return "The database holds no studies yet."
    near = difflib.get_close_matches(reference, names, n=3, cutoff=0.5)
    if near:
        return f"Did you mean {' or '.join(near)}?"
    shown = ", ".join(names[:5]) + (", …" if len(names) > 5 else "")
    return f"The database holds {shown}."


def _is_id(reference: str) -> bool:
    return reference.isascii() and reference.isdecimal() and len(reference) < 10
