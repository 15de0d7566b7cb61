"""The decision of a study, on what it has stored."""

from __future__ import annotations

from collections.abc import Sequence

from autotune.core.comparison import Comparison
from autotune.core.decision import Decision, decide
from autotune.core.study import Study
from autotune.core.trial import Trial


def decision_of(
    study: Study, trials: Sequence[Trial], comparisons: Sequence[Comparison] = ()
) -> Decision:
    """Judge the study's trials by its own SLA, objectives and rules."""
    return decide(
        trials,
        study.sla,
        study.objectives,
        study.pick,
        workload=study.workload,
        comparisons=comparisons,
        robust=study.robust,
    )
