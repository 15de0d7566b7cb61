"""What need not be kept for ever."""

from __future__ import annotations

from typing import Any

from sqlalchemy import select, update

from storage.schema import MeasurementRow, StudyRow, TrialRow
from storage.service.database import Database


def forget_samples(database: Database, ended_before: float, limit: int) -> int:
    """Remove the raw request times of up to ``limit`` measurements of studies that had ended then,
    and say of how many they were; what was made of them stays."""
    of_old_studies = (
        select(MeasurementRow.id)
        .join(TrialRow, TrialRow.id == MeasurementRow.trial_id)
        .join(StudyRow, StudyRow.id == TrialRow.study_id)
        .where(StudyRow.ended_at < ended_before, MeasurementRow.samples.is_not(None))
        .limit(limit)
    )
    with database.write() as session:
        forgotten: Any = session.execute(
            update(MeasurementRow)
            .where(MeasurementRow.id.in_(of_old_studies))
            .values(samples=None)
            .execution_options(synchronize_session=False)
        )
        return int(forgotten.rowcount)
