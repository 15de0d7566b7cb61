"""The decision of a study, on what it has stored."""

from __future__ import annotations

from collections.abc import Sequence

from autotune.core.comparison import Comparison
from autotune.core.decision import Decision, decide
from autotune.core.measurement import Purpose
from autotune.core.searched import Searched
from autotune.core.study import Study
from autotune.core.trial import Trial


def decision_of(
    study: Study,
    trials: Sequence[Trial],
    comparisons: Sequence[Comparison] = (),
    searched: Searched | None = None,
) -> Decision:
    """Judge the study's trials by its own SLA, objectives and rules. Comparisons count that rest on
    finals which are believed."""
    final = {trial.number for trial in trials if trial.of(Purpose.FINAL)}
    return decide(
        trials,
        study.sla,
        study.objectives,
        study.pick,
        workload=study.workload,
        comparisons=[c for c in comparisons if {c.first, c.second} <= final],
        robust=study.robust,
        space=study.space,
        searched=searched,
    )
