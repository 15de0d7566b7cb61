"""A decision in sentences for people."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from autotune.core.contrast import TELLING, Contrast
from autotune.core.judged import Dimension, Judged, Probe, objection
from autotune.core.measurement import METRICS, label
from autotune.core.memory import ran_out
from autotune.core.memory_noise import MEMORY
from autotune.core.ranking import Choice
from autotune.core.savings import Savings
from autotune.core.searched import Searched
from autotune.core.sla import ACCURACY, Finding, Outcome, Verdict
from autotune.core.trial import Trial, TrialState
from autotune.core.wording import (
    ENDED,
    change_span,
    cost_words,
    listed,
    share_words,
    unjudged,
)
from autotune.core.workload import Workload

UNSTEADY = 1.3
"""By what factor two measurements of one configuration may differ before it is spoken of."""
TEMPTING = 0.05
"""By how much a trial that misses the SLA must be better than the pick to be spoken of."""

_SHARES = {"utilization", "error_rate", "sm_active", "tensor_active", "dram_active"}
_IN_WORDS: dict[str, Callable[[float], str]] = {
    ACCURACY: share_words,
    "cost_per_1000": cost_words,
    "instances": lambda count: f"{count:.0f}",
}
_UNITS = {"1/s": "/s", "ms": " ms", "J": " J", "W": " W"}
_IN_SERVICE = {
    Outcome.MEETS: "which met the SLA",
    Outcome.MISSES: "which did not meet the SLA",
    Outcome.UNDECIDED: "of which it is not known whether it meets the SLA",
}


def shown(metric: str, value: float | None) -> str:
    """A metric's value with its unit, as people read it: "35.2 ms", "145.0/s", "87%"; a cost, in
    whatever currency, with three digits."""
    if value is None:
        return "unknown"
    if metric in _SHARES:
        return f"{value:.1%}"
    if metric in _IN_WORDS:
        return _IN_WORDS[metric](value)
    unit = METRICS[metric].unit
    if unit == "MB":
        return f"{value:.0f} MB"
    return f"{value:.1f}{_UNITS.get(unit, '')}"


def picked(pick: Judged, rule: str, workload: Workload | None) -> str:
    told = [*_latencies(pick.verdict), *_accuracy(pick.verdict)]
    kept = "; ".join(finding.reason for finding in told)
    rate = f"{pick.measurement.load.offered_qps:.1f} requests/s"
    if workload is not None:
        planned = f"{workload.headroom:g} × {workload.target_qps:g}"
        rate = f"{workload.offered_qps:g} requests/s ({planned})"
    return f"trial {pick.number} is picked ({rule}): {kept} at {rate}"


def tie(choice: Choice, other: Judged, contrasts: Sequence[Contrast]) -> str:
    """Why, of the ties, the pick is the pick; ``contrasts`` are of ``other`` against it."""
    tied = "; ".join(_tied(contrast) for contrast in contrasts if contrast.tie)
    rest = [t.number for t in choice.ties if t is not choice.pick and t is not other]
    pair = " and ".join(str(number) for number in sorted((choice.pick.number, other.number)))
    more = f", as {'are' if len(rest) > 1 else 'is'} {_some(rest)}" if rest else ""
    return f"trials {pair} are a tie{f' ({tied})' if tied else ''}{more}: {_cheaper(choice, other)}"


def _tied(contrast: Contrast) -> str:
    text = f"{contrast.named} differs by {abs(contrast.effect):.1%}"
    if contrast.metric == MEMORY:
        return f"{text}, no more than memory varies by"
    if contrast.interval is None:
        return f"{text}, their 95% intervals overlap"
    return f"{text}, 95% interval {change_span(contrast.interval)}"


def _cheaper(choice: Choice, other: Judged) -> str:
    pick = choice.pick
    ours, theirs = choice.costs[pick.number], choice.costs[other.number]
    if ours > theirs:
        return f"trial {pick.number} is picked, since what is cheaper is clearly beaten by another"
    if ours < theirs:
        metric = "instances" if ours[0] < theirs[0] else MEMORY
        less = f"{shown(metric, pick.metric(metric))} instead of"
        cheaper = f"the cheaper is picked, trial {pick.number}, with {label(metric)} {less}"
        return f"{cheaper} {shown(metric, other.metric(metric))}"
    if pick.number > other.number:
        beaten = f"trial {other.number}, which costs the same, is clearly beaten otherwise"
        return f"trial {pick.number} is picked, since {beaten}"
    if pick.number == 0:
        return "trial 0 is picked, which is what runs now: to change nothing is cheapest"
    return f"they cost the same, and trial {pick.number}, the first of them, is picked"


def confirmed(pick: Judged) -> list[str]:
    if pick.confirmation is None:
        return ["not confirmed: it has not been measured from its exported files"]
    once = pick.verdict.findings[0]
    again = pick.confirmation.findings[0]
    text = f"confirmed from its exported files: {again.reason}"
    if doubts := _doubts(pick.confirmation):
        text = f"not contradicted by its exported files, though not sure by them alone: {doubts}"
    if _apart(once, again):
        text += (
            f"; the two differ by more than {UNSTEADY - 1:.0%}, so this machine or its other work"
            " was not steady: measure again when it is idle"
        )
    return [text]


def _apart(once: Finding, again: Finding) -> bool:
    """By more than `UNSTEADY`, and beyond the noise."""
    if not once.value or not again.value or once.interval is None or again.interval is None:
        return False
    near = 1 / UNSTEADY <= again.value / once.value <= UNSTEADY
    return not near and not once.interval.overlaps(again.interval)


def robust(pick: Judged, *, asked: bool) -> list[str]:
    """Over which rates and burstiness the pick holds the SLA, and where by the least."""
    if not pick.probes:
        text = "not shown to be robust: it has not been measured at other rates and burstiness"
        return [text] if asked else []
    rates = [probe.traffic.qps for probe in pick.probes]
    bursts = [probe.traffic.cv for probe in pick.probes if probe.traffic.cv is not None]
    limits = _latencies(pick.verdict)
    held = f"{limits[0].limit:g} ms" if len(limits) == 1 else "the SLA"
    text = f"holds {held} {_range(rates, 'from')} requests/s"
    text += f" at cv {_range(bursts)}" if bursts else ""
    least = min(pick.probes, key=_least_margin)
    text += f"; least margin {_least_margin(least):.0%} {_where(least)}"
    unsure = [f"not sure {_where(p)}: {d}" for p in pick.probes if (d := _doubts(p.verdict))]
    return ["; ".join([text, *unsure])]


def _least_margin(probe: Probe) -> float:
    """Of what the traffic changes: the accuracy is the same under any."""
    margins = [f.margin for f in probe.verdict.findings if f.metric != ACCURACY]
    return min((margin for margin in margins if margin is not None), default=math.inf)


def _where(probe: Probe) -> str:
    cv = probe.traffic.cv
    return f"at {_short(probe.traffic.qps)}/s" + ("" if cv is None else f", cv {cv:g}")


def _range(values: Sequence[float], before: str = "") -> str:
    low, high = min(values), max(values)
    if low == high:
        return f"{'at ' if before else ''}{_short(low)}"
    return f"{before} {_short(low)} to {_short(high)}".strip()


def _short(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"


def capacity(trial: Judged, workload: Workload | None) -> list[str]:
    """The highest rate that holds the SLA, against the peak asked for."""
    found = trial.capacity
    if found is None:
        return []
    text = f"trial {trial.number}: the highest rate that holds the SLA is {found}"
    known = found.interval.low if found.at_least else 0.0 if found.at_most else found.qps
    if workload is not None and known > 0:
        text += f", {known / workload.target_qps:.2g} times your peak"
    return [text]


def no_baseline(trial: Trial) -> str:
    """``trial`` is trial 0, which is not judged."""
    why = unjudged(trial)[1]
    told = f"the configuration in service {_unmeasured(trial)}, so no gain is told"
    return f"{told}: {why.splitlines()[0]}" if why else told


def _unmeasured(trial: Trial) -> str:
    if trial.state is TrialState.FAILED:
        return "failed after it was measured" if trial.measurement else "could not be measured"
    if not trial.measurements:
        return "was not measured"
    if trial.state is TrialState.OK:
        return "was measured, but that is doubted now"
    return "was measured, but not so that it can be believed"


def runner_up(pick: Judged, other: Judged, contrasts: Sequence[Contrast]) -> str:
    """What separates the pick from it, as far as it is more than noise. ``contrasts`` are of the
    pick against the other."""
    telling = [contrast for contrast in contrasts if contrast.telling]
    ahead = [_instead(contrast) for contrast in telling if contrast.advantage > 0]
    behind = [_instead(contrast) for contrast in telling if contrast.advantage < 0]
    told = f"runner-up: trial {other.number}"
    if not telling:
        noise = any(abs(contrast.effect) >= TELLING for contrast in contrasts)
        how = "by no more than the noise" if noise else f"by less than {TELLING:.0%}"
        return f"{told}, which differs {how}"
    but = f", but {listed(behind)}" if ahead and behind else ""
    return f"{told}; trial {pick.number} has {listed(ahead or behind)}{but}"


def tempts(other: Judged, contrast: Contrast) -> str:
    """Why a trial that is better in one metric is not the pick: it does not meet the SLA."""
    return f"trial {other.number} has {_difference(contrast)} but {_why_not(other)}"


def near_miss(nearest: Judged, rule: str) -> list[str]:
    """How far the trial that comes nearest is from the SLA, and at which of its terms."""
    if nearest.outcome is Outcome.UNDECIDED:
        unsure = [(where, f) for where, f in _failing(nearest) if f.outcome is Outcome.UNDECIDED]
        why = "; ".join(f"{where}{finding.reason}" for where, finding in unsure)
        # Fewer requests make no percentile surer: only what straddles a limit clears it so.
        other = any(finding.interval is not None for _, finding in unsure)
        return [
            f"no candidate is known to meet the SLA, so none is {rule}; trial {nearest.number} is"
            f" undecided: {why}{', or lower the rate' if other else ''}"
        ]
    broken = [(where, f) for where, f in _failing(nearest) if f.outcome is Outcome.MISSES]
    worst = min(broken, key=lambda found: found[1].margin or 0.0)
    others = [found for found in broken if found is not worst]
    why = "; ".join(f"{where}{finding.reason}" for where, finding in [worst, *others])
    achieved = nearest.measurement.load
    # What was asked before the window opened is answered within it, too.
    answered = min(achieved.achieved_qps, achieved.offered_qps)
    rate = (
        "the rate is not what it fails at: it answered"
        f" {answered:.1f} of {achieved.offered_qps:.1f} requests/s"
    )
    behind = any(finding.metric == "achieved" for _, finding in broken)
    text = f"no candidate meets the SLA; trial {nearest.number} comes nearest: {why}"
    return [text, *([] if behind else [rate])]


def cut_short(searched: Searched | None) -> list[str]:
    """That candidates are left which nobody tried, so that none of them can be ruled out."""
    if searched is None or not searched.cut_short:
        return []
    was = "was" if searched.tried == 1 else "were"
    told = f"only {searched.tried} of {searched.planned} candidates {was} tried"
    if searched.minutes is None:
        return [f"{told}: another may meet the SLA"]
    return [
        f"{told} within budget.minutes, {searched.minutes:g}: another may meet the SLA; raise it to"
        " try more"
    ]


def unmeasured(trials: Sequence[Trial]) -> list[str]:
    """Of which candidates nothing is known, so that none of them can be ruled out."""
    numbers = [trial.number for trial in trials if trial.state is TrialState.INVALID]
    if not numbers:
        return []
    it, meets = ("it", "meets") if len(numbers) == 1 else ("they", "meet")
    told = f"{_trials(numbers)} could not be measured so that it can be believed"
    return [f"{told}: whether {it} {meets} the SLA is not known"]


def gained(baseline: Judged, pick: Judged, contrasts: Sequence[Contrast]) -> str:
    """``contrasts`` are of the pick against the configuration in service."""
    if baseline.number == pick.number:
        return "the configuration in service is already the pick"
    changes = [_change(contrast) for contrast in contrasts if contrast.before != contrast.after]
    changed = "; ".join(changes) or "nothing measurable changed"
    return f"against the configuration in service, {_IN_SERVICE[baseline.outcome]}: {changed}"


def _change(contrast: Contrast) -> str:
    metric = contrast.metric
    text = f"{contrast.named} {shown(metric, contrast.before)} → {shown(metric, contrast.after)}"
    return f"{text} (within the noise)" if contrast.tie else text


def incomplete(number: int, missing: Sequence[str]) -> str:
    what = listed(missing)
    return f"trial {number} meets the SLA too but cannot be compared: {what} is unknown of it"


def left_out(unknown: Sequence[str], instead: Sequence[Dimension] = ()) -> list[str]:
    """``instead``: what was gone by in place of all that was wanted."""
    if not unknown:
        return []
    text = f"not compared, since unknown: {', '.join(unknown)}"
    if instead:
        by = listed([label(dimension.metric) for dimension in instead])
        text += f"; {by} decided in place of that"
    return [text]


def out_of_memory(trials: Sequence[Trial]) -> list[str]:
    """Which candidates ran out of memory, and which were not loaded since they would have."""
    failed = [trial.number for trial in trials if ran_out(trial)]
    spared = [trial.number for trial in trials if trial.state is TrialState.PRUNED]
    told = [f"{_trials(failed)} ran out of memory"] if failed else []
    if spared:
        was = "was" if len(spared) == 1 else "were"
        told.append(f"{_trials(spared)} {was} not loaded, for want of memory")
    return ["; ".join(told)] if told else []


def saved(savings: Savings, workload: Workload) -> list[str]:
    """What the windows took against windows of a fixed length; nothing where that is the same."""
    if abs(savings.saved) < TELLING:
        return []
    windows = "1 measured window" if savings.phases == 1 else f"{savings.phases} measured windows"
    odd = f", {savings.disbelieved} of them not believed," if savings.disbelieved else ""
    ended = [
        f"{words}: {savings.ended[end]}" for end, words in ENDED.items() if end in savings.ended
    ]
    took = f"the search's {windows}{odd} took {savings.window_s:.0f} s ({', '.join(ended)})"
    if savings.saved < 0:
        more_s = savings.window_s - savings.fixed_s
        return [
            f"{took}, {more_s:.0f} s more than at a fixed {workload.measure_s:g} s each: a window"
            " goes on while its verdict is undecided"
        ]
    return [f"{took} instead of {savings.fixed_s:.0f} s at a fixed {workload.measure_s:g} s each"]


# ------------------------------------------------------------------------------------ the pieces
def _latencies(verdict: Verdict) -> list[Finding]:
    return [f for f in verdict.findings if f.metric.endswith("_ms")]


def _accuracy(verdict: Verdict) -> list[Finding]:
    return [f for f in verdict.findings if f.metric == ACCURACY]


def _doubts(verdict: Verdict) -> str:
    return "; ".join(f.reason for f in verdict.findings if f.outcome is Outcome.UNDECIDED)


def _why_not(other: Judged) -> str:
    failing = _failing(other)
    where, finding = min(
        failing, key=lambda found: (found[1].outcome is not Outcome.MISSES, found[1].margin or 0.0)
    )
    return f"{where}{finding.reason}"


def _failing(trial: Judged) -> list[tuple[str, Finding]]:
    """What a trial that does not meet the SLA fails at, and where; a check that objects to nothing
    is left out."""
    checks = [] if trial.confirmation is None else [("when confirmed, ", trial.confirmation)]
    checks += [(f"{_where(probe)}, ", probe.verdict) for probe in trial.probes]
    objecting = [(w, verdict) for w, verdict in checks if objection(verdict) is not Outcome.MEETS]
    return [
        (where, finding)
        for where, verdict in [("", trial.verdict), *objecting]
        for finding in verdict.findings
        if finding.outcome is not Outcome.MEETS
    ]


def _instead(contrast: Contrast) -> str:
    metric = contrast.metric
    before = shown(metric, contrast.before)
    return f"{contrast.named} {shown(metric, contrast.after)} instead of {before}"


def _difference(contrast: Contrast) -> str:
    metric = contrast.metric
    text = f"{contrast.named} {shown(metric, contrast.after)}"
    if metric == "instances" or math.isinf(contrast.effect):
        return _instead(contrast)
    return f"{text} ({abs(contrast.effect):.0%} {'more' if contrast.effect > 0 else 'less'})"


def _trials(numbers: Sequence[int]) -> str:
    return f"trial{'s' if len(numbers) > 1 else ''} {_some(numbers)}"


def _some(numbers: Sequence[int], most: int = 5) -> str:
    named = [str(number) for number in sorted(numbers)]
    hidden = len(named) - most
    return listed([*named[:most], f"{hidden} more"] if hidden > 0 else named)
