"""When a difference in memory is one, and not what the same configuration's memory varies by.

What a server holds is not its configuration's doing alone. Its allocators keep what earlier
configurations have freed; a page of a library counts less while another process has mapped it too,
which other servers on the machine do as they come and go; and what is read is the most of two
moments of a window. One configuration of a tiny model, measured nineteen times in four studies
beside other servers, had 55 to 110 MB, and within a single study 72 to 110.

*Rule.* The more of two counts as more only beyond all three of

- `FLOOR_MB`: what a server varies by whatever its size, a little above the most that was seen;
- `SHARE`: of the less, for what grows with the model;
- 2.8 standard deviations of what one configuration's memory varied by from measurement to
  measurement, where trials were measured repeatedly (the search's, the canary's, the finals' and
  the comparisons'): the difference that two measurements of the same exceed in one case of twenty
  (the repeatability limit of ISO 5725-6). The confirmation's is left out: a strict server that was
  just started holds nothing of what others have freed, so that it differs by the servers, always to
  one side. Counted, a pick that is confirmed would widen the noise that it was picked by.

*Order.* That is a semiorder (Luce, "Semiorders and a theory of utility discrimination",
Econometrica 24, 1956): *more* is transitive, *equal* is not. 60 and 110 MB are equal, so are 110
and 160, and 160 is more than 60. So what is decided by pairs must not depend on which pair comes
first:

- where trials are sorted, `anchors` make classes of them, from the least upwards, each as far as
  its own least reaches; being of one class is transitive, and depends on the values alone;
- the front is the set that no member of itself dominates (`autotune.core.pareto`), of which there
  is exactly one, whatever the order.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from autotune.core.measurement import Purpose
from autotune.core.trial import Trial, TrialState

MEMORY = "memory_mb"
FLOOR_MB = 64.0
SHARE = 0.10
_REPEATABILITY = 1.96 * math.sqrt(2)
_REPEATED = {Purpose.TRIAL, Purpose.CANARY, Purpose.FINAL, Purpose.COMPARE}
"""The measurements at the study's own rate (other rates may hold other memory) that are not of the
exported files' own server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryNoise:
    """``spread`` is the standard deviation of the logarithm of one configuration's memory, from
    measurement to measurement; 0 where nothing was measured twice."""

    spread: float = 0.0

    @classmethod
    def of(cls, trials: Iterable[Trial]) -> MemoryNoise:
        """From all of them together: one trial's few measurements say little."""
        return cls.of_repeats(repeats(trial) for trial in trials)

    @classmethod
    def of_repeats(cls, repeated: Iterable[Sequence[float]]) -> MemoryNoise:
        """From what `repeats` says of each trial."""
        squares: list[float] = []
        degrees = 0
        for logs in ([math.log(mb) for mb in each] for each in repeated if len(each) > 1):
            mean = fmean(logs)
            squares += [(log - mean) ** 2 for log in logs]
            degrees += len(logs) - 1
        # Exactly summed: the order of the trials plays no part.
        return cls(spread=math.sqrt(math.fsum(squares) / degrees) if degrees else 0.0)

    def reach(self, mb: float) -> float:
        """The most, in MB, that counts as equal to ``mb`` or less; it grows with ``mb``."""
        varies = math.expm1(_REPEATABILITY * self.spread)
        return mb + max(FLOOR_MB, mb * max(SHARE, varies))

    def differ(self, one: float, other: float) -> bool:
        """Whether two differ by more than the noise."""
        return max(one, other) > self.reach(min(one, other))

    def anchors(self, values: Iterable[float]) -> tuple[float, ...]:
        """The least of each class, ascending: a value that the class before does not reach begins
        the next."""
        found: list[float] = []
        for value in sorted(values):
            if not found or value > self.reach(found[-1]):
                found.append(value)
        return tuple(found)

    def step(self, value: float, anchors: Sequence[float]) -> int:
        """The class, from 0, of a value among ``anchors``: the first that reaches it, and what lies
        below the least of them belongs to the first; ``len(anchors)`` beyond all."""
        return bisect_left(anchors, value, key=self.reach)


def repeats(trial: Trial) -> tuple[float, ...]:
    """The memory of a trial's believed measurements under the study's own load, in MB; empty where
    it is not ok."""
    if trial.state is not TrialState.OK:
        return ()
    believed = (m for m in trial.measurements if m.valid and m.purpose in _REPEATED)
    found = (measurement.telemetry.memory_mb for measurement in believed)
    return tuple(mb for mb in found if mb is not None and mb > 0)
