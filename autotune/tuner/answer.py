"""What a study came to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from autotune.core.decision import Decision
from autotune.core.records import StudyRecord
from autotune.core.study import Study
from autotune.core.trial import Trial
from autotune.core.variants import VariantRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """``exported_to`` is None where no candidate meets the SLA; then ``report`` is where the report
    was left by itself. ``search_log`` is a file that optuna-dashboard opens. ``load_s`` of
    ``wall_s`` seconds were spent under load; ``stopped_because`` says why no further candidate was
    measured; ``variants`` is what came of those that the study asked for."""

    study: Study
    record: StudyRecord
    trials: Sequence[Trial]
    decision: Decision
    exported_to: Path | None
    stopped_because: str
    wall_s: float
    load_s: float
    report: Path | None = None
    search_log: Path | None = None
    warnings: tuple[str, ...] = ()
    variants: Sequence[VariantRecord] = ()
