"""A decision in sentences for people."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from autotune.core.judged import Judged
from autotune.core.measurement import METRICS, label
from autotune.core.sla import Finding, Outcome
from autotune.core.trial import Trial
from autotune.core.workload import Workload

TELLING = 0.02
"""A difference of less than this share is not worth a sentence."""
UNSTEADY = 1.3
"""By what factor two measurements of one configuration may differ before it is spoken of."""
TEMPTING = 0.05
"""By how much a trial that misses the SLA must be better than the pick to be spoken of."""


def shown(metric: str, value: float | None) -> str:
    """A metric's value with its unit, as people read it: "35.2 ms", "145.0/s", "87%"."""
    if value is None:
        return "unknown"
    if metric in {"utilization", "error_rate"}:
        return f"{value:.1%}"
    if metric == "instances":
        return f"{value:.0f}"
    unit = METRICS[metric].unit
    if unit == "MB":
        return f"{value:.0f} MB"
    return f"{value:.1f}{'/s' if unit == '1/s' else ' ms' if unit == 'ms' else ''}"


def picked(pick: Judged, rule: str, workload: Workload | None) -> str:
    limits = (f for f in pick.verdict.findings if f.metric not in {"error_rate", "achieved"})
    kept = "; ".join(finding.reason for finding in limits)
    rate = f"{pick.measurement.load.offered_qps:.1f} requests/s"
    if workload is not None:
        planned = f"{workload.headroom:g} × {workload.target_qps:g}"
        rate = f"{workload.offered_qps:g} requests/s ({planned})"
    return f"trial {pick.number} is picked ({rule}): {kept} at {rate}"


def confirmed(pick: Judged) -> list[str]:
    if pick.confirmation is None:
        return ["not confirmed: it has not been measured from its exported files"]
    once = pick.verdict.findings[0]
    again = pick.confirmation.findings[0]
    text = f"confirmed from its exported files: {again.reason}"
    if once.value and again.value and not 1 / UNSTEADY <= again.value / once.value <= UNSTEADY:
        text += (
            f"; the two differ by more than {UNSTEADY - 1:.0%}, so this machine or its other work"
            " was not steady: measure again when it is idle"
        )
    return [text]


def no_baseline(trial: Trial) -> str:
    why = trial.reason.splitlines()[0] if trial.reason else str(trial.state)
    return f"the configuration in service was not measured, so no gain is told: {why}"


def separates(pick: Judged, other: Judged, metrics: Iterable[str]) -> str:
    """What another trial that meets the SLA has over the pick, and the pick over it."""
    ahead, behind = _differences(pick, other, metrics)
    if not ahead and not behind:
        return f"trial {other.number} meets the SLA too and differs by less than {TELLING:.0%}"
    if not ahead:
        return f"trial {other.number} meets the SLA too but has {_and(behind)}"
    text = f"trial {other.number} has {_and(ahead)}"
    return f"{text}, but {_and(behind)}" if behind else f"{text}; it is no dearer otherwise"


def tempts(pick: Judged, other: Judged, metric: str) -> str:
    """Why a trial that is better in one metric is not the pick: it does not meet the SLA."""
    return f"trial {other.number} has {_difference(metric, pick, other)} but {_why_not(other)}"


def near_miss(nearest: Judged, rule: str) -> list[str]:
    """How far the trial that comes nearest is from the SLA, and at which of its terms."""
    broken = [f for f in _failing(nearest) if f.outcome is Outcome.MISSES]
    if not broken:
        return [
            f"no candidate is known to meet the SLA, so none is {rule}; trial {nearest.number}"
            f" broke no limit, but {_why_not(nearest)}"
        ]
    worst = min(broken, key=lambda finding: finding.margin or 0.0)
    achieved = nearest.measurement.load
    text = f"no candidate meets the SLA; trial {nearest.number} comes nearest: {worst.reason}"
    others = [f.reason for f in broken if f is not worst]
    rate = f"it answered {achieved.achieved_qps:.1f} of {achieved.offered_qps:.1f} requests/s"
    behind = any(finding.metric == "achieved" for finding in broken)
    return ["; ".join([text, *others]), *([] if behind else [rate])]


def gained(baseline: Judged, pick: Judged, metrics: Iterable[str]) -> str:
    if baseline.number == pick.number:
        return "the configuration in service is already the pick"
    changes = [
        f"{label(metric)} {shown(metric, baseline.metric(metric))}"
        f" → {shown(metric, pick.metric(metric))}"
        for metric in metrics
        if baseline.metric(metric) != pick.metric(metric)
    ]
    before = "met the SLA" if baseline.meets else "did not meet the SLA"
    changed = "; ".join(changes) or "nothing measurable changed"
    return f"against the configuration in service, which {before}: {changed}"


def incomplete(number: int, missing: Sequence[str]) -> str:
    return (
        f"trial {number} meets the SLA too but cannot be compared: {_and(missing)} is unknown of it"
    )


def left_out(unknown: Sequence[str]) -> list[str]:
    return [f"not compared, since unknown: {', '.join(unknown)}"] if unknown else []


def relative(before: float, after: float) -> float | None:
    """The change as a share of ``before``; None where that is 0."""
    return (after - before) / abs(before) if before else None


def _why_not(other: Judged) -> str:
    failing = _failing(other)
    worst = min(failing, key=lambda f: (f.outcome is not Outcome.MISSES, f.margin or 0.0))
    missed = not other.verdict.meets
    return worst.reason if missed else f"when confirmed, {worst.reason}"


def _failing(trial: Judged) -> list[Finding]:
    findings = (finding for verdict in trial.verdicts for finding in verdict.findings)
    return [finding for finding in findings if finding.outcome is not Outcome.MEETS]


def _differences(
    pick: Judged, other: Judged, metrics: Iterable[str]
) -> tuple[list[str], list[str]]:
    ahead: list[str] = []
    behind: list[str] = []
    for metric in dict.fromkeys(metrics):
        before, after = pick.metric(metric), other.metric(metric)
        if before is None or after is None:
            continue
        change = relative(before, after)
        if before == after or (change is not None and abs(change) < TELLING):
            continue
        better = (after > before) == METRICS[metric].maximize
        (ahead if better else behind).append(_difference(metric, pick, other))
    return ahead, behind


def _difference(metric: str, pick: Judged, other: Judged) -> str:
    before, after = pick.metric(metric), other.metric(metric)
    assert before is not None
    assert after is not None
    text = f"{label(metric)} {shown(metric, after)}"
    change = relative(before, after)
    if metric == "instances":
        return f"{text} instead of {before:.0f}"
    if change is None:
        return f"{text} instead of {shown(metric, before)}"
    return f"{text} ({abs(change):.0%} {'more' if change > 0 else 'less'})"


def _and(phrases: Sequence[str]) -> str:
    return ", ".join(phrases[:-1]) + " and " + phrases[-1] if len(phrases) > 1 else phrases[0]
