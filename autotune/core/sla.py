"""The service level agreement, and its judgement of a measurement."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from autotune.core.errors import InputRefused
from autotune.core.evidence import estimate
from autotune.core.intervals import Estimate, Interval
from autotune.core.measurement import PERCENTILES, Ended, Measurement, Purpose, label
from autotune.core.wording import share_words, span

EDGE_REQUESTS = 2
"""A request answered just after the window closed is not a sign of falling behind: this many are
forgiven, so that slow traffic in a short window is not judged by its edges."""

ACCURACY = "accuracy_drop"
"""The metric of the term of an SLA that is about what is answered, not when."""


class Outcome(StrEnum):
    MEETS = "meets"
    MISSES = "misses"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """One term of an SLA: ``metric`` must be at most ``limit``."""

    metric: str
    limit: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One term judged: ``margin`` is the share of the limit to spare (negative: by how much it is
    broken; relative to the limit, and the plain difference for an error rate that is broken or a
    limit of 0). It is that of ``value``, whose 95% interval is ``interval`` where there is one."""

    metric: str
    value: float | None
    limit: float
    outcome: Outcome
    margin: float | None
    reason: str
    interval: Interval | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The judgement of a measurement: the worst outcome of its findings, with all of them."""

    outcome: Outcome
    findings: tuple[Finding, ...]

    @property
    def meets(self) -> bool:
        return self.outcome is Outcome.MEETS

    @property
    def tightest(self) -> Finding | None:
        """The finding with the least margin: what limits, or by how much it is missed."""
        known = [finding for finding in self.findings if finding.margin is not None]
        return min(known, key=lambda finding: finding.margin or 0.0, default=None)

    @property
    def violations(self) -> tuple[float, ...]:
        """One number per finding: ≤ 0 where the term is kept, > 0 by how much it is broken; 1
        where nothing is known. What a constrained search is told."""
        return tuple(_violation(finding) for finding in self.findings)

    @property
    def broken(self) -> bool:
        """Whether a value is beyond its limit, be it within the noise, or nothing is known."""
        return any(violation > 0 for violation in self.violations)

    @property
    def reasons(self) -> tuple[str, ...]:
        return tuple(finding.reason for finding in self.findings)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sla:
    """Upper limits on latency percentiles (``latency_ms``: percentile → ms), on ``error_rate``, and
    where it is given on ``accuracy_drop``: by how much what is served may answer worse than the
    source model, a share (0 to 1).

    A measurement must also have answered nearly all that was offered: ``min_achieved`` is the
    least share of the offered rate that good answers must reach (a server that falls behind for
    the length of a run can still show tolerable early latencies).
    """

    latency_ms: Mapping[float, float]
    error_rate: float = 0.001
    min_achieved: float = 0.98
    accuracy_drop: float | None = None

    def __post_init__(self) -> None:
        if not self.latency_ms:
            raise InputRefused(
                "an SLA names at least one latency percentile", next_step="e.g. p95_ms: 80"
            )
        for percentile, limit in self.latency_ms.items():
            if percentile not in PERCENTILES:
                names = ", ".join(f"p{p:g}_ms" for p in PERCENTILES)
                raise InputRefused(f"an SLA latency is one of {names}", value=f"p{percentile:g}_ms")
            if not 0 < limit < 1e7:
                raise InputRefused("an SLA latency must be above 0 ms", value=limit)
        if not 0 <= self.error_rate < 1:
            raise InputRefused("error_rate is a share from 0 up to 1", value=self.error_rate)
        if not 0 < self.min_achieved <= 1:
            raise InputRefused("min_achieved is a share above 0, up to 1", value=self.min_achieved)
        if self.accuracy_drop is not None and not 0 <= self.accuracy_drop <= 1:
            raise InputRefused("accuracy_drop is a share from 0 to 1", value=self.accuracy_drop)

    @property
    def limits(self) -> tuple[Limit, ...]:
        latencies = (
            Limit(metric=f"p{p:g}_ms", limit=v) for p, v in sorted(self.latency_ms.items())
        )
        errors = Limit(metric="error_rate", limit=self.error_rate)
        if self.accuracy_drop is None:
            return (*latencies, errors)
        return (*latencies, errors, Limit(metric=ACCURACY, limit=self.accuracy_drop))

    @property
    def tightest_latency_ms(self) -> float:
        return min(self.latency_ms.values())

    @property
    def tightest_metric(self) -> str:
        """The latency metric with the least limit; of equal limits, the highest percentile."""
        percentile = min(self.latency_ms, key=lambda p: (self.latency_ms[p], -p))
        return f"p{percentile:g}_ms"


def _violation(finding: Finding) -> float:
    if finding.value is None:
        return 1.0
    if finding.margin is None:
        return finding.limit - finding.value
    return -finding.margin


def enough_samples(percentile: float) -> int:
    """The least number of requests from which a percentile is judged: ten beyond it expected.

    With fewer than ten expected exceedances the sampling error of the percentile's rank alone is
    above a third (binomial standard deviation √10 / 10).
    """
    return math.ceil(1000 / (100 - percentile))


def judge(measurement: Measurement, sla: Sla) -> Verdict:
    """Hold a valid measurement against an SLA; every term is judged and gives its reason."""
    return judge_together([measurement], sla)


def judge_together(measurements: Sequence[Measurement], sla: Sla) -> Verdict:
    """Hold valid measurements of one configuration, at least one, against an SLA as one.

    A latency meets its limit where its whole 95% interval does, misses it where the whole interval
    lies above, and is undecided between; where there is no interval its value decides.
    """
    findings = [_judge_limit(measurements, limit) for limit in sla.limits]
    findings.append(_judge_achieved(measurements, sla.min_achieved))
    return Verdict(outcome=worst(f.outcome for f in findings), findings=tuple(findings))


def worst(outcomes: Iterable[Outcome]) -> Outcome:
    found = set(outcomes)
    order = (Outcome.MISSES, Outcome.UNDECIDED)
    return next((outcome for outcome in order if outcome in found), Outcome.MEETS)


# ------------------------------------------------------------------ latency, error rate, accuracy
def _judge_limit(measurements: Sequence[Measurement], limit: Limit) -> Finding:
    known = estimate(measurements, limit.metric)
    if known is None:
        return _finding(limit, None, Outcome.UNDECIDED, None, _unknown(limit))
    margin = _margin(limit, known.value)
    outcome = _outcome(limit, known)
    scheduled = sum(m.load.scheduled for m in measurements)
    needed = _samples_needed(limit.metric)
    if outcome is Outcome.MEETS and known.interval is None and scheduled < needed:
        reason = (
            f"{label(limit.metric)} rests on {scheduled} requests;"
            f" at least {needed} are needed:"
            f" raise {_more_of(measurements, 'workload.measure_s')}"
        )
        return _finding(limit, known, Outcome.UNDECIDED, margin, reason)
    if outcome is Outcome.UNDECIDED and known.interval is not None:
        reason = (
            f"{_shown(limit, known)} (95% interval {span(known.interval)}) straddles"
            f" {_bound(limit)}: raise {_more_of(measurements, 'workload.measure_max_s')}"
        )
        return _finding(limit, known, outcome, margin, reason)
    return _finding(limit, known, outcome, margin, _reason(limit, known, margin, outcome))


def _unknown(limit: Limit) -> str:
    if limit.metric == ACCURACY:
        return "accuracy is unknown: what was served was not held against its source model"
    return f"{label(limit.metric)} is unknown: no request was measured"


def _more_of(measurements: Sequence[Measurement], window: str) -> str:
    """The key of the study file that gives more to judge by: the finals' windows are of a fixed
    length, and there may be more of them."""
    finals = any(measurement.purpose is Purpose.FINAL for measurement in measurements)
    return "finals.rounds" if finals else window


def _outcome(limit: Limit, known: Estimate) -> Outcome:
    ends = known.interval
    low, high = (known.value, known.value) if ends is None else (ends.low, ends.high)
    if high <= limit.limit:
        return Outcome.MEETS
    return Outcome.MISSES if low > limit.limit else Outcome.UNDECIDED


def _margin(limit: Limit, value: float) -> float:
    """Relative to the limit; a broken error rate by the plain difference, since a tenth of all
    requests lost is not a hundred times as bad as a latency that doubles."""
    if limit.limit == 0 or (limit.metric == "error_rate" and value > limit.limit):
        return limit.limit - value
    return (limit.limit - value) / limit.limit


def _samples_needed(metric: str) -> int:
    if not (metric.startswith("p") and metric.endswith("_ms")):
        return 1
    return enough_samples(float(metric[1:-3]))


def _shown(limit: Limit, known: Estimate) -> str:
    if limit.metric in _SHARES:
        return f"{label(limit.metric)} {_SHARES[limit.metric](known.value)}"
    return f"{label(limit.metric)} {known.value:.1f} ms"


def _bound(limit: Limit) -> str:
    words = _SHARES.get(limit.metric)
    return f"{limit.limit:g} ms" if words is None else words(limit.limit)


_SHARES: dict[str, Callable[[float], str]] = {
    "error_rate": lambda share: f"{share:.2%}",
    ACCURACY: share_words,
}
"""How the metrics that are shares are told."""


def _reason(limit: Limit, known: Estimate, margin: float, outcome: Outcome) -> str:
    shown, bound = _shown(limit, known), _bound(limit)
    if known.interval is not None:
        shown += f" ({span(known.interval)})"
    if outcome is Outcome.MEETS:
        return f"{shown} meets {bound} with {max(margin, 0):.0%} to spare"
    if limit.metric == "error_rate":
        return f"{shown} breaks {bound}"
    if limit.metric == ACCURACY:
        return f"{shown} breaks {bound}: it answers worse than its source model by too much"
    if known.value > 2 * limit.limit:
        return f"{shown} is {known.value / limit.limit:.3g} times the limit of {bound}"
    return f"{shown} breaks {bound} by {-margin:.0%}"


# ------------------------------------------------------------------------------------- throughput
def _judge_achieved(measurements: Sequence[Measurement], least: float) -> Finding:
    loads = [measurement.load for measurement in measurements]
    limit = Limit(metric="achieved", limit=least)
    scheduled = sum(load.scheduled for load in loads)
    if not scheduled:
        return _finding(limit, None, Outcome.UNDECIDED, None, "no request was scheduled")
    offered = sum(load.offered_qps * load.window_s for load in loads)
    # More than were offered are those that were asked for before the window opened.
    answered = min(offered, sum(load.achieved_qps * load.window_s for load in loads))
    share = sum(load.ok for load in loads) / scheduled
    kept = (answered + EDGE_REQUESTS * len(loads)) / offered if offered else 0.0
    value = min(share, kept, 1.0)
    window_s = sum(load.window_s for load in loads)
    shown = (
        f"{answered / window_s:.1f} of {offered / window_s:.1f} offered requests/s were answered"
        f" ({value:.0%})"
    )
    known, margin = Estimate(value), (value - least) / least
    if any(load.ended is Ended.FELL_BEHIND for load in loads):
        # How short the window was cut must not hide it: at least one request was left over.
        behind = max(1.0, offered - answered) / max(1.0, offered)
        reason = f"{shown}: the requests in flight grew all the time, it falls behind"
        return _finding(limit, known, Outcome.MISSES, min(margin, -behind), reason)
    if value < least:
        return _finding(limit, known, Outcome.MISSES, margin, f"{shown}: it falls behind")
    return _finding(limit, known, Outcome.MEETS, None, shown)


def _finding(
    limit: Limit, known: Estimate | None, outcome: Outcome, margin: float | None, reason: str
) -> Finding:
    return Finding(
        metric=limit.metric,
        value=None if known is None else known.value,
        limit=limit.limit,
        outcome=outcome,
        margin=margin,
        reason=reason,
        interval=None if known is None else known.interval,
    )
