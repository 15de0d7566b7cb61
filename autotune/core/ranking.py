"""The order of trials by a pick rule, the front it is taken from, and who is tied with the best."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from autotune.core.comparison import Relation
from autotune.core.contrast import Contrasts
from autotune.core.judged import Dimension, Judged
from autotune.core.measurement import METRICS
from autotune.core.memory_noise import MEMORY, MemoryNoise
from autotune.core.pareto import distance_to_utopia, pareto_front
from autotune.core.sla import Sla
from autotune.core.study import Objective, PickRule

_Key: TypeAlias = tuple[float, ...]
_Costs: TypeAlias = dict[int, tuple[float, float]]
"""Instances, and the class of memory among trials of as many, by trial number."""
_INSTANCES = Dimension(metric="instances", maximize=False)
_MEMORY = Dimension(metric=MEMORY, maximize=False)


# ------------------------------------------------------------------------------------ the front
def dimensions(
    rule: PickRule, objectives: Sequence[Objective], sla: Sla, trials: Sequence[Judged]
) -> tuple[Dimension, ...]:
    """What the front is taken over: the objectives and what the rule goes by."""
    own = [Dimension(metric=o.metric, maximize=o.maximize) for o in objectives]
    latency = Dimension(metric=sla.tightest_metric, maximize=False)
    more = {
        PickRule.CHEAPEST: [_INSTANCES, _MEMORY],
        PickRule.FASTEST: [latency],
        PickRule.MAX_THROUGHPUT: [Dimension(metric=_throughput(trials), maximize=True)],
        PickRule.BALANCED: [] if own else [latency, _INSTANCES],
    }
    return tuple(dict.fromkeys([*own, *more[rule]]))


def gone_by(
    rule: PickRule, objectives: Sequence[Objective], sla: Sla, trials: Sequence[Judged]
) -> tuple[tuple[Dimension, ...], tuple[Dimension, ...]]:
    """The dimensions that are wanted, and those that are gone by: of these the ones that are known,
    or, where none is, what the rule goes by of a study without objectives."""
    wanted = dimensions(rule, objectives, sla, trials)
    known = known_dimensions(wanted, trials)
    return wanted, known or known_dimensions(dimensions(rule, (), sla, trials), trials)


def _throughput(trials: Sequence[Judged]) -> str:
    known = any(trial.metric("saturation_qps") is not None for trial in trials)
    return "saturation_qps" if known else "achieved_qps"


def known_dimensions(
    wanted: Sequence[Dimension], trials: Sequence[Judged]
) -> tuple[Dimension, ...]:
    """Those known of some trial; of every trial, where else none would be on the front."""
    columns = {dimension: dimension.column(trials) for dimension in wanted}
    some = [d for d in wanted if any(v is not None for v in columns[d])]
    complete = any(all(columns[d][i] is not None for d in some) for i in range(len(trials)))
    if complete:
        return tuple(some)
    return tuple(d for d in some if all(v is not None for v in columns[d]))


def front(trials: Sequence[Judged], over: Sequence[Dimension], noise: MemoryNoise) -> list[Judged]:
    reach = {at: noise.reach for at, dimension in enumerate(over) if dimension.noisy}
    found = pareto_front(_points(trials, over), [d.maximize for d in over], reach)
    return [trials[i] for i in found]


def _points(trials: Sequence[Judged], over: Iterable[Dimension]) -> list[tuple[float | None, ...]]:
    columns = [dimension.column(trials) for dimension in over]
    return [tuple(column[i] for column in columns) for i in range(len(trials))]


# ------------------------------------------------------------------------------------ the order
@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """``best`` is first by the values measured; ``ties`` are those that noise does not let be told
    from it, with itself, the cheapest first (empty where it stands alone); ``pick`` is the cheapest
    of them. ``ranked`` are all trials, the pick first; ``front`` the numbers of those on it;
    ``noisy`` the metrics that the ties are ties in; ``costs`` are instances and the class of memory
    by trial number, among the ties."""

    pick: Judged
    best: Judged
    ties: tuple[Judged, ...]
    ranked: tuple[Judged, ...]
    front: frozenset[int]
    noisy: tuple[str, ...]
    costs: _Costs

    @property
    def runner_up(self) -> Judged | None:
        return self.ranked[1] if len(self.ranked) > 1 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """Trials by a rule: ``ordered`` has the ``front`` first, best first, by the values measured.

    ``noisy`` are the metrics that the rule goes by and that noise may decide; ``costs`` are
    instances and the class of memory by trial number, ``noise`` tells memory apart.
    """

    rule: PickRule
    over: tuple[Dimension, ...]
    front: tuple[Judged, ...]
    ordered: tuple[Judged, ...]
    noisy: tuple[str, ...]
    costs: _Costs
    noise: MemoryNoise

    def tied(self, one: Judged, other: Judged, contrasts: Contrasts) -> bool:
        """Whether noise alone may decide which of two is better by the rule."""
        if not self._same_class(one, other):
            return False
        found = [contrasts.between(one, other, metric) for metric in self.noisy]
        known = [contrast for contrast in found if contrast is not None]
        return (
            len(known) == len(found)
            and not any(contrast.clear for contrast in known)
            and any(contrast.tie for contrast in known)
        )

    def choose(self, contrasts: Contrasts) -> Choice | None:
        """The best, or the cheapest of those that are tied with it; None among no trials."""
        best = self._best(contrasts)
        if best is None:
            return None
        ties = self._ties(best, contrasts)
        pick = self._cheapest(ties, best, contrasts)
        ranked = dict.fromkeys(trial.number for trial in (pick, best, *self.ordered))
        of = {trial.number: trial for trial in self.ordered}
        return Choice(
            pick=pick,
            best=best,
            ties=tuple(ties) if len(ties) > 1 else (),
            ranked=tuple(of[number] for number in ranked),
            front=frozenset(trial.number for trial in self.front),
            noisy=self.noisy,
            costs=_costs_of(ties, self.noise),
        )

    def _best(self, contrasts: Contrasts) -> Judged | None:
        """The first in order, unless another was found better, run against run."""
        comparable = self._comparable()
        best = next(iter(comparable), next(iter(self.ordered), None))
        for other in comparable[1:] if len(self.noisy) == 1 else ():
            if best is None or not self._same_class(best, other):
                continue
            contrast = contrasts.between(best, other, self.noisy[0])
            if contrast is not None and contrast.relation is self._wanted(self.noisy[0]):
                best = other
        return best

    def _wanted(self, metric: str) -> Relation:
        """What a better trial is in a metric's own direction, which an objective may turn."""
        natural = METRICS[metric].maximize
        turned = any(d.metric == metric and d.maximize != natural for d in self.over)
        return Relation.WORSE if turned else Relation.BETTER

    def _same_class(self, one: Judged, other: Judged) -> bool:
        """Whether noise may decide between two: the cheapest rule goes by the costs first."""
        costs = self.costs
        return self.rule is not PickRule.CHEAPEST or costs[one.number] == costs[other.number]

    def _ties(self, best: Judged, contrasts: Contrasts) -> list[Judged]:
        """The best and those that are tied with it and have nothing clearly against them, the
        cheapest first: fewest instances, least memory, lowest number. What counts as less memory
        is told among them alone: no other has a say in it."""
        tied = [
            trial
            for trial in self._comparable()
            if trial is not best
            and self.tied(best, trial, contrasts)
            and not self._dominates(best, trial, contrasts)
        ]
        ties = [best, *tied]
        costs = _costs_of(ties, self.noise)
        return sorted(ties, key=lambda trial: (costs[trial.number], trial.number))

    def _cheapest(self, ties: Sequence[Judged], best: Judged, contrasts: Contrasts) -> Judged:
        """The first of the ties that none of them and no trial of the front clearly dominates."""
        others = list({trial.number: trial for trial in (*self.front, *ties)}.values())
        for trial in ties:
            if not any(self._dominates(other, trial, contrasts) for other in others):
                return trial
        return best

    def _comparable(self) -> list[Judged]:
        """Those of which every dimension is known, in order."""
        points = _points(self.ordered, self.over)
        return [t for t, p in zip(self.ordered, points, strict=True) if None not in p]

    def _dominates(self, one: Judged, other: Judged, contrasts: Contrasts) -> bool:
        """Whether one costs no more than the other and is nowhere worse, and is cheaper or
        somewhere better: all of it by more than the noise. Where it is so for sure, what is only
        worse by its size, without an interval, does not outweigh it."""
        if one is other or self._dearer(one, other):
            return False
        sure, better, worse = self._dearer(other, one), False, False
        for dimension in self.over:
            contrast = contrasts.between(one, other, dimension.metric)
            if contrast is None:
                return False
            if not contrast.clear:
                continue
            if (contrast.effect < 0) == dimension.maximize:
                sure, better = sure or contrast.sure, True
            elif contrast.sure:
                return False
            else:
                worse = True
        return sure or (better and not worse)

    def _dearer(self, one: Judged, other: Judged) -> bool:
        """Whether one takes more instances, or more memory beyond its noise."""
        (count, mb), (fewer, less) = (
            (_less(t, _INSTANCES), _less(t, _MEMORY)) for t in (one, other)
        )
        return count > fewer or mb > self.noise.reach(less)


def rank(
    trials: Sequence[Judged],
    over: tuple[Dimension, ...],
    rule: PickRule,
    sla: Sla,
    noise: MemoryNoise,
) -> Ranking:
    """By the rule: the front over the dimensions first, best first; then the others."""
    best = front(trials, over, noise)
    on_front = {trial.number for trial in best}
    costs = _costs_of(trials, noise, on_front)
    distances = _distances(best, over, noise) if rule is PickRule.BALANCED else {}
    keys = _keys(trials, rule, sla, costs, distances)
    noisy = {
        PickRule.MAX_THROUGHPUT: (_throughput(trials),),
        PickRule.BALANCED: tuple(dimension.metric for dimension in over),
    }
    return Ranking(
        rule=rule,
        over=over,
        front=tuple(best),
        ordered=tuple(
            sorted(trials, key=lambda t: (t.number not in on_front, keys[t.number], t.number))
        ),
        noisy=noisy.get(rule, (sla.tightest_metric,)),
        costs=costs,
        noise=noise,
    )


def _less(trial: Judged, dimension: Dimension) -> float:
    """Less is better; unknown is infinite."""
    value = trial.metric(dimension.metric)
    if value is None:
        return math.inf
    return -value if dimension.maximize else value


def _costs_of(trials: Sequence[Judged], noise: MemoryNoise, first: Collection[int] = ()) -> _Costs:
    """The classes of memory begin at the least of those that come ``first``, by their numbers, or
    of all, where none of these has as many instances."""
    instances = {trial.number: _less(trial, _INSTANCES) for trial in trials}
    memory = {trial.number: _less(trial, _MEMORY) for trial in trials}
    found: _Costs = {}
    for count in set(instances.values()):
        alike = [number for number in memory if instances[number] == count]
        known = [number for number in alike if memory[number] < math.inf]
        leading = [number for number in known if number in first] or known
        anchors = noise.anchors(memory[number] for number in leading)
        found |= dict.fromkeys(alike, (count, math.inf))
        found |= {number: (count, noise.step(memory[number], anchors)) for number in known}
    return found


def _keys(
    trials: Sequence[Judged],
    rule: PickRule,
    sla: Sla,
    costs: _Costs,
    distances: Mapping[int, float],
) -> dict[int, _Key]:
    fastest = Dimension(metric=sla.tightest_metric, maximize=False)
    throughput = Dimension(metric=_throughput(trials), maximize=True)

    def key(trial: Judged) -> _Key:
        latency, cost = _less(trial, fastest), costs[trial.number]
        if rule is PickRule.CHEAPEST:
            return *cost, latency
        if rule is PickRule.FASTEST:
            return latency, *cost
        if rule is PickRule.MAX_THROUGHPUT:
            return _less(trial, throughput), latency, *cost
        return distances.get(trial.number, math.inf), *cost, latency

    return {trial.number: key(trial) for trial in trials}


def _distances(
    best: Sequence[Judged], over: Sequence[Dimension], noise: MemoryNoise
) -> dict[int, float]:
    """Rounded, so that the last bits of a square root do not stand before the tie-breaks. Memory
    counts as the least of its class: noise alone is no distance."""
    columns = [_anchored(d, best, noise) if d.noisy else d.column(best) for d in over]
    points = [tuple(column[i] for column in columns) for i in range(len(best))]
    distances = distance_to_utopia(points, [d.maximize for d in over])
    return {t.number: round(d, 9) for t, d in zip(best, distances, strict=True)}


def _anchored(
    dimension: Dimension, trials: Sequence[Judged], noise: MemoryNoise
) -> list[float | None]:
    values = [_less(trial, dimension) for trial in trials]
    anchors = noise.anchors(values)
    return [anchors[noise.step(value, anchors)] for value in values]
