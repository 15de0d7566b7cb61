"""The decision: which trials meet the SLA, which of them are on the front, which one is picked.

What the front is taken over depends on the pick rule, so that a pick is never dominated:

==============  =====================================================  =========================
rule            front over the study's objectives and                  first of the front by
==============  =====================================================  =========================
cheapest        instances, memory (in steps of 10%)                    instances, memory, latency
fastest         latency                                                latency, instances, memory
max_throughput  saturation throughput (achieved, where that is         throughput, latency,
                unknown of every trial)                                instances
balanced        nothing else (latency and instances where the study    distance to the utopia
                has no objectives)                                     point, instances, memory
==============  =====================================================  =========================

``latency`` is the metric with the tightest limit in the SLA. Last of all the lower trial number
decides. A dimension that is unknown of every trial that meets the SLA is left out and reported; a
trial that lacks one which others know is not on the front.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from autotune.core import explain
from autotune.core.judged import Dimension, Judged, judge_trial
from autotune.core.measurement import METRICS
from autotune.core.pareto import distance_to_utopia, pareto_front
from autotune.core.sla import Outcome, Sla
from autotune.core.study import Objective, PickRule
from autotune.core.trial import Trial
from autotune.core.workload import Workload

_Key: TypeAlias = tuple[float, ...]


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
        return explain.relative(self.before, self.after)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """``pick``, ``runner_up``, ``nearest_miss``, ``front`` and ``infeasible_front`` are trial
    numbers.

    ``front`` holds the trials that meet the SLA and are not dominated by another such over
    ``dimensions``; ``infeasible_front`` those that do not meet it (or are undecided) and that no
    measured trial dominates. ``pick`` is None exactly when no trial meets the SLA; only then is
    there a ``nearest_miss`` (None if nothing was measured), and ``distance`` is its worst relative
    violation. ``unknown`` are dimensions left out. ``reasons`` are sentences for people.
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

    def of(self, number: int | None) -> Judged | None:
        """The judged trial of that number."""
        return next((trial for trial in self.judged if trial.number == number), None)

    @property
    def meeting(self) -> tuple[int, ...]:
        return tuple(trial.number for trial in self.judged if trial.meets)

    @property
    def undecided(self) -> tuple[int, ...]:
        return tuple(t.number for t in self.judged if t.outcome is Outcome.UNDECIDED)

    def to_json(self) -> dict[str, Any]:
        """Plain data for a `DecisionRecord`'s detail: everything but the measurements."""
        return {
            "rule": str(self.rule),
            "dimensions": [
                {"metric": d.metric, "maximize": d.maximize, "bucketed": d.bucketed}
                for d in self.dimensions
            ],
            "unknown": list(self.unknown),
            "pick": self.pick,
            "runner_up": self.runner_up,
            "nearest_miss": self.nearest_miss,
            "distance": self.distance,
            "front": list(self.front),
            "infeasible_front": list(self.infeasible_front),
            "meeting": list(self.meeting),
            "undecided": list(self.undecided),
            "gain": [
                {"metric": c.metric, "before": c.before, "after": c.after, "relative": c.relative}
                for c in self.gain
            ],
            "reasons": list(self.reasons),
            "judged": [trial.to_json() for trial in self.judged],
        }


def decide(
    trials: Sequence[Trial],
    sla: Sla,
    objectives: Sequence[Objective],
    rule: PickRule,
    *,
    workload: Workload | None = None,
) -> Decision:
    """Judge every ok trial, take the front of those that meet the SLA, and pick from it.

    Depends on its arguments alone, not on the order of ``trials``. ``workload`` only words the
    reasons. A candidate that failed its confirmation does not meet the SLA.
    """
    found = (judge_trial(trial, sla) for trial in trials)
    judged = sorted((j for j in found if j is not None), key=lambda j: j.number)
    meeting = [trial for trial in judged if trial.meets]
    wanted = _dimensions(rule, objectives, sla, meeting or judged)
    dimensions = _known_dimensions(wanted, meeting or judged)
    front = _front(meeting, dimensions)
    ranked = _ranked(front, meeting, rule, dimensions, sla)
    pick, runner_up = (*ranked, None, None)[:2]
    nearest = None if meeting else min(judged, key=lambda j: (j.violation, j.number), default=None)
    infeasible = [trial for trial in _front(judged, dimensions) if not trial.meets]
    unknown = tuple(dict.fromkeys(str(d) for d in wanted if d not in dimensions))
    metrics = _telling_metrics(sla, objectives)
    baseline = next((trial for trial in judged if trial.number == 0), None)
    if pick is None:
        reasons = _miss_reasons(nearest, rule)
    else:
        reasons = [
            explain.picked(pick, rule, workload),
            *_gain_told(baseline, pick, metrics, trials),
            *explain.confirmed(pick),
            *_neighbours(ranked, front, metrics),
            *_temptations(pick, judged, metrics),
        ]
    if judged:
        reasons += _incomplete(meeting, dimensions) + explain.left_out(unknown)
    return Decision(
        rule=rule,
        dimensions=dimensions,
        unknown=unknown,
        judged=tuple(judged),
        front=tuple(trial.number for trial in front),
        infeasible_front=tuple(trial.number for trial in infeasible),
        pick=None if pick is None else pick.number,
        runner_up=None if runner_up is None else runner_up.number,
        nearest_miss=None if nearest is None else nearest.number,
        distance=None if nearest is None else nearest.violation,
        gain=() if pick is None or baseline is None else _gain(baseline, pick, metrics),
        reasons=tuple(reasons),
    )


def without_unconfirmed(trials: Sequence[Trial], sla: Sla) -> list[Trial]:
    """The trials less those that met the SLA and were never confirmed: what is left to decide on
    once a study has given up confirming."""
    judged = ((trial, judge_trial(trial, sla)) for trial in trials)
    return [
        trial
        for trial, found in judged
        if found is None or not found.meets or trial.confirmation is not None
    ]


# ------------------------------------------------------------------------------------ the front
def _dimensions(
    rule: PickRule, objectives: Sequence[Objective], sla: Sla, trials: Sequence[Judged]
) -> tuple[Dimension, ...]:
    own = [Dimension(metric=o.metric, maximize=o.maximize) for o in objectives]
    latency = Dimension(metric=sla.tightest_metric, maximize=False)
    instances = Dimension(metric="instances", maximize=False)
    memory = Dimension(metric="memory_mb", maximize=False, bucketed=True)
    more = {
        PickRule.CHEAPEST: [instances, memory],
        PickRule.FASTEST: [latency],
        PickRule.MAX_THROUGHPUT: [Dimension(metric=_throughput(trials), maximize=True)],
        PickRule.BALANCED: [] if own else [latency, instances],
    }
    return tuple(dict.fromkeys([*own, *more[rule]]))


def _throughput(trials: Sequence[Judged]) -> str:
    known = any(trial.metric("saturation_qps") is not None for trial in trials)
    return "saturation_qps" if known else "achieved_qps"


def _known_dimensions(
    wanted: Sequence[Dimension], trials: Sequence[Judged]
) -> tuple[Dimension, ...]:
    """Those known of some trial; of every trial, where else none would be on the front."""
    columns = {dimension: dimension.column(trials) for dimension in wanted}
    some = [d for d in wanted if any(v is not None for v in columns[d])]
    complete = any(all(columns[d][i] is not None for d in some) for i in range(len(trials)))
    if complete:
        return tuple(some)
    return tuple(d for d in some if all(v is not None for v in columns[d]))


def _front(trials: Sequence[Judged], dimensions: Sequence[Dimension]) -> list[Judged]:
    points = _points(trials, dimensions)
    return [trials[i] for i in pareto_front(points, [d.maximize for d in dimensions])]


def _points(
    trials: Sequence[Judged], dimensions: Iterable[Dimension]
) -> list[tuple[float | None, ...]]:
    columns = [dimension.column(trials) for dimension in dimensions]
    return [tuple(column[i] for column in columns) for i in range(len(trials))]


# ------------------------------------------------------------------------------------- the pick
def _ranked(
    front: Sequence[Judged],
    meeting: Sequence[Judged],
    rule: PickRule,
    dimensions: Sequence[Dimension],
    sla: Sla,
) -> list[Judged]:
    """The front by the rule, best first; then the other trials that meet the SLA."""
    keys = _keys(front, meeting, rule, dimensions, sla)
    on_front = {trial.number for trial in front}
    return sorted(meeting, key=lambda t: (t.number not in on_front, keys[t.number], t.number))


def _keys(
    front: Sequence[Judged],
    meeting: Sequence[Judged],
    rule: PickRule,
    dimensions: Sequence[Dimension],
    sla: Sla,
) -> dict[int, _Key]:
    def costs(metric: str, *, maximize: bool = False, bucketed: bool = False) -> list[float]:
        dimension = Dimension(metric=metric, maximize=maximize, bucketed=bucketed)
        column = dimension.column(meeting)
        return [math.inf if v is None else -v if maximize else v for v in column]

    latency, instances = costs(sla.tightest_metric), costs("instances")
    memory = costs("memory_mb", bucketed=True)
    columns: list[list[float]]
    if rule is PickRule.CHEAPEST:
        columns = [instances, memory, latency]
    elif rule is PickRule.FASTEST:
        columns = [latency, instances, memory]
    elif rule is PickRule.MAX_THROUGHPUT:
        columns = [costs(_throughput(meeting), maximize=True), latency, instances, memory]
    else:
        columns = [_distances(front, meeting, dimensions), instances, memory, latency]
    return {trial.number: tuple(c[i] for c in columns) for i, trial in enumerate(meeting)}


def _distances(
    front: Sequence[Judged], meeting: Sequence[Judged], dimensions: Sequence[Dimension]
) -> list[float]:
    """Rounded, so that the last bits of a square root do not stand before the tie-breaks."""
    distances = distance_to_utopia(_points(front, dimensions), [d.maximize for d in dimensions])
    known = {t.number: round(d, 9) for t, d in zip(front, distances, strict=True)}
    return [known.get(trial.number, math.inf) for trial in meeting]


# ---------------------------------------------------------------------------------- the reasons
def _telling_metrics(sla: Sla, objectives: Sequence[Objective]) -> list[str]:
    own = [objective.metric for objective in objectives]
    names = [sla.tightest_metric, "saturation_qps", *own, "instances", "memory_mb"]
    return list(dict.fromkeys(names))


def _gain(baseline: Judged, pick: Judged, metrics: Iterable[str]) -> tuple[Change, ...]:
    return tuple(
        Change(metric=metric, before=baseline.metric(metric), after=pick.metric(metric))
        for metric in metrics
    )


def _gain_told(
    baseline: Judged | None, pick: Judged, metrics: Sequence[str], trials: Sequence[Trial]
) -> list[str]:
    if baseline is not None:
        return [explain.gained(baseline, pick, metrics)]
    return [explain.no_baseline(trial) for trial in trials if trial.number == 0]


def _neighbours(
    ranked: Sequence[Judged], front: Sequence[Judged], metrics: Sequence[str]
) -> list[str]:
    """What separates the pick, which is ranked first, from the runner-up and the next of the
    front."""
    pick, rest = ranked[0], ranked[1:]
    first = [f"runner-up: {explain.separates(pick, other, metrics)}" for other in rest[:1]]
    others = [other for other in rest[1:] if other in front][:3]
    return first + [explain.separates(pick, other, metrics) for other in others]


def _incomplete(meeting: Sequence[Judged], dimensions: Sequence[Dimension]) -> list[str]:
    """The trials that could not be compared with the others."""
    missing = {
        trial.number: [str(d) for d in dimensions if d.column([trial])[0] is None]
        for trial in meeting
    }
    return [explain.incomplete(number, names) for number, names in missing.items() if names]


def _temptations(pick: Judged, judged: Sequence[Judged], metrics: Iterable[str]) -> list[str]:
    """For each metric, the trial that beats the pick by the most and does not meet the SLA; each
    trial is named once."""
    told: dict[int, str] = {}
    for metric in metrics:
        advantages = [(_advantage(pick, t, metric), t) for t in judged if not t.meets]
        best = max(advantages, key=lambda pair: (pair[0], -pair[1].number), default=None)
        if best is not None and best[0] >= explain.TEMPTING and best[1].number not in told:
            told[best[1].number] = explain.tempts(pick, best[1], metric)
    return list(told.values())


def _advantage(pick: Judged, other: Judged, metric: str) -> float:
    before, after = pick.metric(metric), other.metric(metric)
    if before is None or after is None:
        return -math.inf
    change = explain.relative(before, after)
    if change is None:
        return -math.inf
    return change if METRICS[metric].maximize else -change


def _miss_reasons(nearest: Judged | None, rule: PickRule) -> list[str]:
    if nearest is None:
        return ["no trial was measured: nothing can be decided"]
    return explain.near_miss(nearest, rule)
