"""How two trials differ in a metric, and whether that is more than noise."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from autotune.core.comparison import Comparison, Relation
from autotune.core.intervals import Interval
from autotune.core.judged import Judged, emulated
from autotune.core.measurement import METRICS, label
from autotune.core.memory_noise import MEMORY, MemoryNoise

TELLING = 0.02
"""A difference of less than this share is not worth a sentence."""
BEYOND_NOISE = 0.1
"""Where there is no interval to tell the noise by, a difference of less than this share is taken
for noise."""
_EXACT = {"instances", "accuracy_drop"}
"""Counted, or taken on the same data: every difference is one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contrast:
    """Another trial against one: the metric's values ``before`` (of the one) and ``after``.

    ``effect`` is the change as a share of ``before`` (infinite from 0). ``relation`` says whether
    the other is better in the metric's own direction; None where there is nothing to tell the noise
    by, and then what is ``clear`` is so by its size alone. ``interval`` is the effect's 95%
    interval, from ``pairs`` interleaved runs of the two; None where they were only measured apart.
    ``emulated``: of the utilization of an emulated accelerator.
    """

    metric: str
    before: float
    after: float
    effect: float
    relation: Relation | None = None
    interval: Interval | None = None
    pairs: int = 0
    emulated: bool = False

    @property
    def named(self) -> str:
        """The metric for sentences."""
        return f"emulated {label(self.metric)}" if self.emulated else label(self.metric)

    @property
    def tie(self) -> bool:
        return self.relation is Relation.TIE

    @property
    def clear(self) -> bool:
        """Whether the difference is beyond the noise."""
        return not self.tie and (self.relation is not None or abs(self.effect) >= BEYOND_NOISE)

    @property
    def sure(self) -> bool:
        """Whether it is clear by more than its size: by intervals, or by counting."""
        return self.clear and self.relation is not None

    @property
    def telling(self) -> bool:
        """Whether it is clear and large enough to be spoken of."""
        return self.clear and abs(self.effect) >= TELLING

    @property
    def advantage(self) -> float:
        """The effect, positive where the other is better in the metric's own direction."""
        return self.effect if METRICS[self.metric].maximize else -self.effect


@dataclass(frozen=True, slots=True)
class Contrasts:
    """Tells trials apart: by the latest comparison of the two, else by whether their intervals
    overlap; memory by its own ``noise`` (None: by what the two alone tell of it). ``comparisons``
    are by first trial, second trial and metric."""

    comparisons: Mapping[tuple[int, int, str], Comparison]
    noise: MemoryNoise | None = None

    @classmethod
    def of(cls, comparisons: Iterable[Comparison], noise: MemoryNoise | None = None) -> Contrasts:
        found: dict[tuple[int, int, str], Comparison] = {}
        for comparison in sorted(comparisons, key=lambda c: c.taken_at):
            found.pop((comparison.second, comparison.first, comparison.metric), None)
            found[comparison.first, comparison.second, comparison.metric] = comparison
        return cls(found, noise)

    def between(self, one: Judged, other: Judged, metric: str) -> Contrast | None:
        """None where the metric is unknown of either."""
        first, second = one.estimate(metric), other.estimate(metric)
        if first is None or second is None:
            return None
        plain = Contrast(
            metric=metric,
            before=first.value,
            after=second.value,
            effect=_effect(first.value, second.value),
            emulated=metric == "utilization" and (emulated(one) or emulated(other)),
        )
        comparison = self._comparison(one.number, other.number, metric)
        if comparison is not None:
            return replace(
                plain,
                effect=comparison.effect,
                relation=comparison.relation,
                interval=comparison.interval,
                pairs=comparison.pairs,
            )
        if metric == MEMORY:
            noise = self.noise or MemoryNoise.of([one.trial, other.trial])
            return replace(plain, relation=_of_memory(plain, noise))
        return replace(plain, relation=_relation(plain, first.interval, second.interval))

    def among(self, one: Judged, other: Judged, metrics: Iterable[str]) -> list[Contrast]:
        """Those of the metrics that are known of both."""
        found = (self.between(one, other, metric) for metric in metrics)
        return [contrast for contrast in found if contrast is not None]

    def compared_with(self, number: int) -> set[int]:
        """The trials that a trial was compared with."""
        pairs = {(first, second) for first, second, _ in self.comparisons}
        return {n for pair in pairs if number in pair for n in pair if n != number}

    def _comparison(self, one: int, other: int, metric: str) -> Comparison | None:
        forth = self.comparisons.get((one, other, metric))
        back = self.comparisons.get((other, one, metric))
        return forth if back is None else back.turned()


def _relation(contrast: Contrast, one: Interval | None, other: Interval | None) -> Relation | None:
    """Of two that were only measured apart."""
    if contrast.metric in _EXACT:
        if not contrast.effect:
            return None
    elif one is None or other is None:
        return None
    elif one.overlaps(other):
        return Relation.TIE
    return _better_or_worse(contrast)


def _of_memory(contrast: Contrast, noise: MemoryNoise) -> Relation | None:
    if not contrast.effect:
        return None
    differs = noise.differ(contrast.before, contrast.after)
    return _better_or_worse(contrast) if differs else Relation.TIE


def _better_or_worse(contrast: Contrast) -> Relation:
    return Relation.BETTER if contrast.advantage > 0 else Relation.WORSE


def _effect(before: float, after: float) -> float:
    if before == after:
        return 0.0
    return (after - before) / abs(before) if before else math.copysign(math.inf, after)
