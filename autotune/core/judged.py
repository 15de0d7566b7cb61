"""A trial held against the SLA, and the dimensions along which trials are compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from autotune.core.bottleneck import Breakdown, breakdown
from autotune.core.capacity import Capacity, capacity_of
from autotune.core.evidence import estimate, evidence, latest
from autotune.core.intervals import Estimate, Interval
from autotune.core.measurement import EMULATED, METRICS, Measurement, Purpose, Traffic
from autotune.core.memory_noise import MEMORY
from autotune.core.plain import finite
from autotune.core.sla import Outcome, Sla, Verdict, judge, judge_together, worst
from autotune.core.trial import Trial, TrialState
from autotune.core.wording import saturation_bound


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """The verdict under other traffic than the study's: other rates, other burstiness."""

    traffic: Traffic
    verdict: Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """An ok trial with its verdicts: on the ``evidence`` it is judged by (see
    `autotune.core.evidence`), on its ``confirmation`` where its exported files were measured, and
    on every robust ``probes`` where the study asks for them. ``measurement`` is the evidence's last
    one; ``capacity`` is known where other rates were probed for it.
    """

    trial: Trial
    evidence: tuple[Measurement, ...]
    verdict: Verdict
    confirmation: Verdict | None = None
    probes: tuple[Probe, ...] = ()
    capacity: Capacity | None = None
    _known: dict[str, Estimate | None] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @property
    def number(self) -> int:
        return self.trial.number

    @property
    def measurement(self) -> Measurement:
        return self.evidence[-1]

    @property
    def steps(self) -> Breakdown | None:
        """Where the time of its last measurement went; None where it is not of a pipeline."""
        return breakdown(self.measurement, self.trial.candidate)

    @property
    def checks(self) -> tuple[Verdict, ...]:
        """The verdicts that the evidence's must stand: the confirmation's and the probes'."""
        confirmed = () if self.confirmation is None else (self.confirmation,)
        return (*confirmed, *(probe.verdict for probe in self.probes))

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        return (self.verdict, *self.checks)

    @property
    def outcome(self) -> Outcome:
        """The worst of the verdicts. The evidence must meet the SLA beyond doubt; a check objects
        only where it misses it, or is undecided with a value beyond a limit: one that straddles a
        limit from within repeats what the evidence has settled, or is told as a doubt."""
        return worst([self.verdict.outcome, *map(objection, self.checks)])

    @property
    def meets(self) -> bool:
        return self.outcome is Outcome.MEETS

    @property
    def violation(self) -> float:
        """The worst relative violation of any term; 0 where none is broken."""
        return max(0.0, *(v for verdict in self.verdicts for v in verdict.violations))

    def estimate(self, name: str) -> Estimate | None:
        """Of a metric, from the evidence."""
        if name not in self._known:
            self._known[name] = estimate(self.evidence, name)
        return self._known[name]

    def metric(self, name: str) -> float | None:
        known = self.estimate(name)
        return None if known is None else known.value

    @property
    def saturation_bound(self) -> str:
        """Why its saturation is only a lower bound; empty where it is not."""
        return saturation_bound((*latest(self.trial.measurements), *self.evidence))

    def to_json(self) -> dict[str, Any]:
        known = {name: self.estimate(name) for name in METRICS}
        steps = self.steps
        plain: dict[str, Any] = finite({
            "trial": self.number,
            "outcome": str(self.outcome),
            "violation": self.violation,
            "evidence": {"purpose": str(self.measurement.purpose), "count": len(self.evidence)},
            "findings": _findings(self.verdict),
            "confirmation": None if self.confirmation is None else _findings(self.confirmation),
            "robust": [_probe(probe) for probe in self.probes],
            "capacity": None if self.capacity is None else self.capacity.to_json(),
            "metrics": {name: None if k is None else k.value for name, k in known.items()},
            "intervals": {n: _ends(k.interval) for n, k in known.items() if k and k.interval},
            "utilization_source": self.measurement.telemetry.source,
            "saturation_bound": self.saturation_bound,
            "steps": None if steps is None else steps.to_json(),
        })  # fmt: skip
        return plain


def emulated(trial: Judged) -> bool:
    """Whether its utilization is of an emulated accelerator."""
    return trial.measurement.telemetry.source == EMULATED


def judge_trial(trial: Trial, sla: Sla) -> Judged | None:
    """None for a trial that is not ok or has no measurement that can be believed."""
    measured = evidence(trial)
    if trial.state is not TrialState.OK or not measured:
        return None
    confirmed = trial.confirmation
    return Judged(
        trial=trial,
        evidence=measured,
        verdict=judge_together(measured, sla),
        confirmation=None if confirmed is None else judge(confirmed, sla),
        probes=_probes(trial.of(Purpose.ROBUST), sla),
        capacity=capacity_of(trial.measurements, sla),
    )


def objection(check: Verdict) -> Outcome:
    """What a check of a trial has against it: MEETS, nothing, where it is only unsure."""
    doubtful = check.outcome is Outcome.UNDECIDED and not check.broken
    return Outcome.MEETS if doubtful else check.outcome


def _probes(measurements: Sequence[Measurement], sla: Sla) -> tuple[Probe, ...]:
    """One per rate and burstiness, by rate and then burstiness, from all its measurements."""
    grouped: dict[tuple[float, float, str], list[Measurement]] = {}
    for measurement in measurements:
        if (traffic := measurement.traffic) is not None:
            key = (traffic.qps, traffic.cv or 0.0, traffic.arrival)
            grouped.setdefault(key, []).append(measurement)
    probes = []
    for key in sorted(grouped):
        traffic = grouped[key][-1].traffic
        assert traffic is not None
        probes.append(Probe(traffic=traffic, verdict=judge_together(grouped[key], sla)))
    return tuple(probes)


# ------------------------------------------------------------------------------------ plain data
def _findings(verdict: Verdict) -> list[dict[str, Any]]:
    return [
        {
            "metric": finding.metric,
            "value": finding.value,
            "interval": _ends(finding.interval),
            "limit": finding.limit,
            "outcome": str(finding.outcome),
            "margin": finding.margin,
            "reason": finding.reason,
        }
        for finding in verdict.findings
    ]


def _probe(probe: Probe) -> dict[str, Any]:
    return {
        "qps": probe.traffic.qps,
        "cv": probe.traffic.cv,
        "arrival": probe.traffic.arrival,
        "outcome": str(probe.verdict.outcome),
        "findings": _findings(probe.verdict),
    }


def _ends(interval: Interval | None) -> list[float] | None:
    return None if interval is None else [interval.low, interval.high]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dimension:
    """A metric along which trials are compared."""

    metric: str
    maximize: bool

    @property
    def noisy(self) -> bool:
        """Whether it is compared by `autotune.core.memory_noise`."""
        return self.metric == MEMORY and not self.maximize

    def column(self, trials: Sequence[Judged]) -> list[float | None]:
        """The value of each trial, None where it is unknown."""
        return [trial.metric(self.metric) for trial in trials]

    def __str__(self) -> str:
        return self.metric
