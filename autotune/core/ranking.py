"""The order of trials by a pick rule, the front it is taken from, and who is tied with the best."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from autotune.core.comparison import Relation
from autotune.core.contrast import Contrasts
from autotune.core.judged import Dimension, Judged
from autotune.core.measurement import METRICS
from autotune.core.pareto import distance_to_utopia, pareto_front
from autotune.core.sla import Sla
from autotune.core.study import Objective, PickRule

_Key: TypeAlias = tuple[float, ...]


# ------------------------------------------------------------------------------------ the front
def dimensions(
    rule: PickRule, objectives: Sequence[Objective], sla: Sla, trials: Sequence[Judged]
) -> tuple[Dimension, ...]:
    """What the front is taken over: the objectives and what the rule goes by."""
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


def front(trials: Sequence[Judged], over: Sequence[Dimension]) -> list[Judged]:
    return [trials[i] for i in pareto_front(_points(trials, over), [d.maximize for d in over])]


def _points(trials: Sequence[Judged], over: Iterable[Dimension]) -> list[tuple[float | None, ...]]:
    columns = [dimension.column(trials) for dimension in over]
    return [tuple(column[i] for column in columns) for i in range(len(trials))]


# ------------------------------------------------------------------------------------ the order
@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """``best`` is first by the values measured; ``ties`` are those that noise does not let be told
    from it, with itself, the cheapest first (empty where it stands alone); ``pick`` is the cheapest
    of them. ``ranked`` are all trials, the pick first; ``front`` the numbers of those on it;
    ``noisy`` the metrics that the ties are ties in; ``costs`` are those of the `Ranking`."""

    pick: Judged
    best: Judged
    ties: tuple[Judged, ...]
    ranked: tuple[Judged, ...]
    front: frozenset[int]
    noisy: tuple[str, ...]
    costs: dict[int, tuple[float, float]]

    @property
    def runner_up(self) -> Judged | None:
        return self.ranked[1] if len(self.ranked) > 1 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """Trials by a rule: ``ordered`` has the ``front`` first, best first, by the values measured.

    ``noisy`` are the metrics that the rule goes by and that noise may decide; ``costs`` are
    instances and memory (in steps) by trial number.
    """

    rule: PickRule
    over: tuple[Dimension, ...]
    front: tuple[Judged, ...]
    ordered: tuple[Judged, ...]
    noisy: tuple[str, ...]
    costs: dict[int, tuple[float, float]]

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
            costs=self.costs,
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
        cheapest first: fewest instances, least memory, lowest number."""
        tied = [
            trial
            for trial in self._comparable()
            if trial is not best
            and self.tied(best, trial, contrasts)
            and not self._dominates(best, trial, contrasts)
        ]
        return sorted([best, *tied], key=lambda trial: (self.costs[trial.number], trial.number))

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
        ours, theirs = self.costs[one.number], self.costs[other.number]
        if one is other or any(a > b for a, b in zip(ours, theirs, strict=True)):
            return False
        sure, better, worse = ours != theirs, False, False
        for dimension in self.over:
            contrast = contrasts.between(one, other, dimension.metric)
            if contrast is None:
                return False
            if dimension.bucketed or not contrast.clear:
                continue
            if (contrast.effect < 0) == dimension.maximize:
                sure, better = sure or contrast.sure, True
            elif contrast.sure:
                return False
            else:
                worse = True
        return sure or (better and not worse)


def rank(
    trials: Sequence[Judged], over: tuple[Dimension, ...], rule: PickRule, sla: Sla
) -> Ranking:
    """By the rule: the front over the dimensions first, best first; then the others."""
    best = front(trials, over)
    on_front = {trial.number for trial in best}
    keys = _keys(best, trials, over, rule, sla)
    memory = Dimension(metric="memory_mb", maximize=False, bucketed=True)
    instances = Dimension(metric="instances", maximize=False)
    costs = zip(_costs(instances, trials), _costs(memory, trials), strict=True)
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
        costs={trial.number: cost for trial, cost in zip(trials, costs, strict=True)},
    )


def _costs(dimension: Dimension, trials: Sequence[Judged]) -> list[float]:
    """Less is better; unknown is infinite."""
    column = dimension.column(trials)
    return [math.inf if v is None else -v if dimension.maximize else v for v in column]


def _keys(
    best: Sequence[Judged],
    trials: Sequence[Judged],
    over: Sequence[Dimension],
    rule: PickRule,
    sla: Sla,
) -> dict[int, _Key]:
    latency = _costs(Dimension(metric=sla.tightest_metric, maximize=False), trials)
    instances = _costs(Dimension(metric="instances", maximize=False), trials)
    memory = _costs(Dimension(metric="memory_mb", maximize=False, bucketed=True), trials)
    columns: list[list[float]]
    if rule is PickRule.CHEAPEST:
        columns = [instances, memory, latency]
    elif rule is PickRule.FASTEST:
        columns = [latency, instances, memory]
    elif rule is PickRule.MAX_THROUGHPUT:
        throughput = Dimension(metric=_throughput(trials), maximize=True)
        columns = [_costs(throughput, trials), latency, instances, memory]
    else:
        columns = [_distances(best, trials, over), instances, memory, latency]
    return {trial.number: tuple(c[i] for c in columns) for i, trial in enumerate(trials)}


def _distances(
    best: Sequence[Judged], trials: Sequence[Judged], over: Sequence[Dimension]
) -> list[float]:
    """Rounded, so that the last bits of a square root do not stand before the tie-breaks."""
    distances = distance_to_utopia(_points(best, over), [d.maximize for d in over])
    known = {t.number: round(d, 9) for t, d in zip(best, distances, strict=True)}
    return [known.get(trial.number, math.inf) for trial in trials]
