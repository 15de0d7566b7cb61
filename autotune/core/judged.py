"""A trial held against the SLA, and the dimensions along which trials are compared."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from autotune.core.measurement import METRICS, Measurement
from autotune.core.sla import Outcome, Sla, Verdict, judge
from autotune.core.trial import Trial, TrialState

MEMORY_BUCKET = 1.1
"""Memory is compared in steps of this factor, counted from the least of the trials compared: what
lies within a step is called equal, so that a few pages more or less do not decide."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """An ok trial with the verdict on its own measurement and, where its exported files were
    measured again, on that confirmation.
    """

    trial: Trial
    measurement: Measurement
    verdict: Verdict
    confirmation: Verdict | None = None

    @property
    def number(self) -> int:
        return self.trial.number

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        return (self.verdict,) if self.confirmation is None else (self.verdict, self.confirmation)

    @property
    def outcome(self) -> Outcome:
        """The worse of the two verdicts: who fails a confirmation does not meet the SLA."""
        outcomes = {verdict.outcome for verdict in self.verdicts}
        order = (Outcome.MISSES, Outcome.UNDECIDED)
        return next((outcome for outcome in order if outcome in outcomes), Outcome.MEETS)

    @property
    def meets(self) -> bool:
        return self.outcome is Outcome.MEETS

    @property
    def violation(self) -> float:
        """The worst relative violation of any term; 0 where none is broken."""
        return max(0.0, *(v for verdict in self.verdicts for v in verdict.violations))

    def metric(self, name: str) -> float | None:
        value = self.measurement.metric(name)
        return None if value is None or math.isnan(value) else value

    def to_json(self) -> dict[str, Any]:
        return {
            "trial": self.number,
            "outcome": str(self.outcome),
            "violation": self.violation,
            "findings": _findings(self.verdict),
            "confirmation": None if self.confirmation is None else _findings(self.confirmation),
            "metrics": {name: self.metric(name) for name in METRICS},
        }


def judge_trial(trial: Trial, sla: Sla) -> Judged | None:
    """None for a trial that is not ok or has no measurement that can be believed."""
    if trial.state is not TrialState.OK or trial.measurement is None:
        return None
    confirmed = trial.confirmation
    return Judged(
        trial=trial,
        measurement=trial.measurement,
        verdict=judge(trial.measurement, sla),
        confirmation=None if confirmed is None else judge(confirmed, sla),
    )


def _findings(verdict: Verdict) -> list[dict[str, Any]]:
    return [
        {
            "metric": finding.metric,
            "value": finding.value,
            "limit": finding.limit,
            "outcome": str(finding.outcome),
            "margin": finding.margin,
            "reason": finding.reason,
        }
        for finding in verdict.findings
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dimension:
    """A metric along which trials are compared; ``bucketed`` in steps of `MEMORY_BUCKET`."""

    metric: str
    maximize: bool
    bucketed: bool = False

    def column(self, trials: Sequence[Judged]) -> list[float | None]:
        """The value of each trial, None where it is unknown."""
        values = [trial.metric(self.metric) for trial in trials]
        if not self.bucketed:
            return values
        least = min((v for v in values if v is not None and v > 0), default=1.0)
        return [None if v is None else _bucket(v, least) for v in values]

    def __str__(self) -> str:
        return f"{self.metric} in steps of 10%" if self.bucketed else self.metric


def _bucket(value: float, least: float) -> float:
    return math.floor(math.log(max(value, least) / least, MEMORY_BUCKET) + 1e-9)
