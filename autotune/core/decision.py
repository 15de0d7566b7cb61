"""The decision: which trials meet the SLA, which of them are on the front, which one is picked.

What the front is taken over depends on the pick rule, so that a pick is never clearly dominated:

==============  =====================================================  =========================
rule            front over the study's objectives and                  first of the front by
==============  =====================================================  =========================
cheapest        instances, memory                                      instances, memory, latency
fastest         latency                                                latency, instances, memory
max_throughput  saturation throughput (achieved, where that is         throughput, latency,
                unknown of every trial)                                instances
balanced        nothing else (latency and instances where the study    distance to the utopia
                has no objectives, or none that is known)              point, instances, memory
==============  =====================================================  =========================

``latency`` is the metric with the tightest limit in the SLA. Memory is more only beyond what it
varies by (see `autotune.core.memory_noise`). Last of all the lower trial number decides. A
dimension that is unknown of every trial that meets the SLA is left out and reported; a trial that
lacks one which others know is not on the front.

Noise decides nothing. What cannot be told from the best by the rule (for *cheapest*: in latency, at
equal instances and memory) is tied with it: by the comparison of the two where they were run
against each other, else where their intervals overlap. Of the best and its ties the cheapest is
picked: the fewest instances, then the least memory, then the lower trial number, since trial 0 is
what runs now.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.core.bottleneck import Remedy, most_instances, remedy
from autotune.core.comparison import Comparison
from autotune.core.contrast import Contrasts
from autotune.core.explain_steps import help_words
from autotune.core.judged import Dimension, Judged, judge_trial
from autotune.core.memory_noise import MemoryNoise
from autotune.core.plain import finite
from autotune.core.ranking import Choice, front, gone_by, rank
from autotune.core.reasons import Field, reasons
from autotune.core.searched import Searched
from autotune.core.sla import ACCURACY, Outcome, Sla
from autotune.core.study import Objective, PickRule, Robust
from autotune.core.trial import Trial
from autotune.core.workload import Workload
from search_spaces.space import Space


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A metric of the configuration in service (``before``) and of the pick (``after``)."""

    metric: str
    before: float | None
    after: float | None

    @property
    def relative(self) -> float | None:
        """As a share of ``before``; None where either is unknown or ``before`` is 0."""
        if self.before is None or self.after is None:
            return None
        return (self.after - self.before) / abs(self.before) if self.before else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """``pick``, ``runner_up``, ``nearest_miss``, ``front`` and ``infeasible_front`` are trial
    numbers.

    ``front`` holds the trials that meet the SLA and are not dominated by another such over
    ``dimensions``, and the pick, which may be dominated within the noise; ``infeasible_front``
    those that do not meet it (or are undecided) and that no measured trial dominates. ``pick`` is
    None exactly when no trial clearly meets the SLA; only then is there a ``nearest_miss`` (an
    undecided one before any that misses; None if nothing was measured), and ``distance`` is its
    worst relative violation. ``ties`` are the trials, the pick among them, that noise does not let
    be told apart by the rule; empty where the pick stands alone. ``contenders`` are the pick and
    those that longer measuring could make the pick, by the rule's order. ``comparisons`` are the
    latest ones of any two of the judged. ``unknown`` are dimensions left out. ``reasons`` are
    sentences for people. ``remedy`` is what would help a pipeline that is the nearest miss;
    ``searched`` how far the search got (None: not told).
    """

    rule: PickRule
    dimensions: tuple[Dimension, ...]
    unknown: tuple[str, ...]
    judged: tuple[Judged, ...]
    front: tuple[int, ...]
    infeasible_front: tuple[int, ...]
    pick: int | None
    runner_up: int | None
    nearest_miss: int | None
    distance: float | None
    gain: tuple[Change, ...]
    reasons: tuple[str, ...]
    ties: tuple[int, ...] = ()
    contenders: tuple[int, ...] = ()
    comparisons: tuple[Comparison, ...] = ()
    remedy: Remedy | None = None
    searched: Searched | None = None

    def of(self, number: int | None) -> Judged | None:
        """The judged trial of that number."""
        return next((trial for trial in self.judged if trial.number == number), None)

    @property
    def without_verdict(self) -> bool:
        """Whether no trial has a measurement that can be believed: then none meets the SLA, and
        none misses it."""
        return not self.judged

    @property
    def meeting(self) -> tuple[int, ...]:
        return tuple(trial.number for trial in self.judged if trial.meets)

    @property
    def undecided(self) -> tuple[int, ...]:
        return tuple(t.number for t in self.judged if t.outcome is Outcome.UNDECIDED)

    def to_json(self) -> dict[str, Any]:
        """Plain data for a `DecisionRecord`'s detail: everything but the measurements. ``steps``
        are the pick's, or the nearest miss's, where it is a pipeline."""
        told = self.of(self.nearest_miss if self.pick is None else self.pick)
        steps = None if told is None else told.steps
        return {
            "rule": str(self.rule),
            "dimensions": [{"metric": d.metric, "maximize": d.maximize} for d in self.dimensions],
            "unknown": list(self.unknown),
            "pick": self.pick,
            "runner_up": self.runner_up,
            "nearest_miss": self.nearest_miss,
            "distance": self.distance,
            "front": list(self.front),
            "infeasible_front": list(self.infeasible_front),
            "ties": list(self.ties),
            "contenders": list(self.contenders),
            "comparisons": [_comparison_json(comparison) for comparison in self.comparisons],
            "meeting": list(self.meeting),
            "undecided": list(self.undecided),
            "gain": [
                {"metric": c.metric, "before": c.before, "after": c.after, "relative": c.relative}
                for c in self.gain
            ],
            "reasons": list(self.reasons),
            "searched": None
            if self.searched is None
            else {
                "tried": self.searched.tried,
                "planned": self.searched.planned,
                "words": self.searched.words,
            },
            "steps": None
            if told is None or steps is None
            else {"trial": told.number, **steps.to_json()},
            "remedy": None
            if steps is None or self.remedy is None
            else {**self.remedy.to_json(), "words": help_words(steps, self.remedy)},
            "judged": [trial.to_json() for trial in self.judged],
        }


def decide(  # noqa: PLR0913 - what a decision rests on, and what only words it, are named apart
    trials: Sequence[Trial],
    sla: Sla,
    objectives: Sequence[Objective],
    rule: PickRule,
    *,
    workload: Workload | None = None,
    comparisons: Sequence[Comparison] = (),
    robust: Robust | None = None,
    space: Space | None = None,
    searched: Searched | None = None,
) -> Decision:
    """Judge every ok trial, take the front of those that meet the SLA, and pick from it.

    Depends on its arguments alone, not on the order of ``trials``. ``workload``, ``robust``,
    ``space`` and ``searched`` only word the reasons and the remedy; of ``comparisons`` the latest
    of two trials in a metric counts. A candidate that failed its confirmation, or a robust probe,
    does not meet the SLA.
    """
    found = (judge_trial(trial, sla) for trial in trials)
    judged = sorted((j for j in found if j is not None), key=lambda j: j.number)
    meeting = [trial for trial in judged if trial.meets]
    wanted, over = gone_by(rule, objectives, sla, meeting or judged)
    noise = MemoryNoise.of(trials)
    contrasts = Contrasts.of(_between(judged, comparisons), noise)
    ranking = rank(meeting, over, rule, sla, noise)
    choice = ranking.choose(contrasts)
    nearest = None if choice else _nearest(judged)
    helping = None if nearest is None else _helping(nearest, space)
    field = Field(
        trials=trials,
        judged=judged,
        over=over,
        unknown=tuple(dict.fromkeys(str(d) for d in wanted if d not in over)),
        instead=not set(over) & set(wanted),
        contrasts=contrasts,
        metrics=_telling_metrics(sla, objectives),
        rule=rule,
        workload=workload,
        robust=robust,
        searched=searched,
    )
    runner_up = None if choice is None else choice.runner_up
    return Decision(
        rule=rule,
        dimensions=over,
        unknown=field.unknown,
        judged=tuple(judged),
        front=_numbers([*ranking.front, *([choice.pick] if choice else [])]),
        infeasible_front=_numbers(t for t in front(judged, over, noise) if not t.meets),
        pick=None if choice is None else choice.pick.number,
        runner_up=None if runner_up is None else runner_up.number,
        nearest_miss=None if nearest is None else nearest.number,
        distance=None if nearest is None else nearest.violation,
        gain=_gain(field, choice),
        reasons=tuple(reasons(field, choice, nearest, helping)),
        ties=_numbers(choice.ties if choice else ()),
        contenders=_contenders(field, choice, sla, noise),
        comparisons=tuple(comparison for _, comparison in sorted(contrasts.comparisons.items())),
        remedy=helping,
        searched=searched,
    )


def finalists(decision: Decision, count: int) -> tuple[int, ...]:
    """The trials worth measuring again, at most ``count``: the pick first, then those that could
    still be the pick by the rule's order; the runner-up where there is no other."""
    found = decision.contenders
    if len(found) == 1 and decision.runner_up is not None:
        found = (*found, decision.runner_up)
    return found[:count]


def without_unconfirmed(trials: Sequence[Trial], sla: Sla) -> list[Trial]:
    """The trials less those that met the SLA and were never confirmed: what is left to decide on
    once a study has given up confirming."""
    judged = ((trial, judge_trial(trial, sla)) for trial in trials)
    return [
        trial
        for trial, found in judged
        if found is None or not found.meets or trial.confirmation is not None
    ]


# ------------------------------------------------------------------------------------ its parts
def _numbers(trials: Iterable[Judged]) -> tuple[int, ...]:
    return tuple(sorted({trial.number for trial in trials}))


def _between(judged: Sequence[Judged], comparisons: Iterable[Comparison]) -> list[Comparison]:
    known = {trial.number for trial in judged}
    return [c for c in comparisons if c.first in known and c.second in known]


def _nearest(judged: Sequence[Judged]) -> Judged | None:
    """The one that more measuring could decide, or that breaks the SLA by the least."""

    def key(trial: Judged) -> tuple[bool, float, int]:
        return trial.outcome is not Outcome.UNDECIDED, trial.violation, trial.number

    return min(judged, key=key, default=None)


def _helping(nearest: Judged, space: Space | None) -> Remedy | None:
    steps = nearest.steps
    if steps is None:
        return None
    return remedy(steps, nearest.verdict, {} if space is None else most_instances(space))


def _contenders(
    field: Field, choice: Choice | None, sla: Sla, noise: MemoryNoise
) -> tuple[int, ...]:
    """The pick, what is tied with it, and what is undecided and would come before it if it met the
    SLA; all that are undecided where there is no pick."""
    candidates = [trial for trial in field.judged if trial.outcome is not Outcome.MISSES]
    ranking = rank(candidates, field.over, field.rule, sla, noise)
    if choice is None:
        return tuple(trial.number for trial in ranking.ordered)
    pick = choice.pick
    place = ranking.ordered.index(pick)
    others = [
        trial.number
        for at, trial in enumerate(ranking.ordered)
        if trial is not pick
        and ((at < place and not trial.meets) or ranking.tied(pick, trial, field.contrasts))
    ]
    return (pick.number, *others)


def _telling_metrics(sla: Sla, objectives: Sequence[Objective]) -> tuple[str, ...]:
    own = [objective.metric for objective in objectives]
    accuracy = [] if sla.accuracy_drop is None else [ACCURACY]
    names = [sla.tightest_metric, "saturation_qps", *own, "instances", "memory_mb", *accuracy]
    return tuple(dict.fromkeys(names))


def _gain(field: Field, choice: Choice | None) -> tuple[Change, ...]:
    if choice is None or field.baseline is None:
        return ()
    before, after = field.baseline, choice.pick
    return tuple(
        Change(metric=metric, before=before.metric(metric), after=after.metric(metric))
        for metric in field.metrics
    )


def _comparison_json(comparison: Comparison) -> dict[str, Any]:
    plain: dict[str, Any] = finite({
        "first": comparison.first,
        "second": comparison.second,
        "metric": comparison.metric,
        "effect": comparison.effect,
        "interval": [comparison.interval.low, comparison.interval.high],
        "relation": str(comparison.relation),
        "pairs": comparison.pairs,
        "taken_at": comparison.taken_at,
    })  # fmt: skip
    return plain
