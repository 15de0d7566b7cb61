"""What the windows that end when enough is known save against windows of a fixed length."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autotune.core.measurement import Ended, Purpose
from autotune.core.trial import Trial
from autotune.core.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Savings:
    """The measured windows of the search took ``window_s`` seconds in all; as many of the
    workload's nominal length would have taken ``fixed_s``. ``ended`` counts them by why they ended,
    the ``disbelieved`` among them included."""

    window_s: float
    fixed_s: float
    ended: Mapping[Ended, int]
    disbelieved: int = 0

    @property
    def phases(self) -> int:
        return sum(self.ended.values())

    @property
    def saved(self) -> float:
        """As a share of ``fixed_s``; negative where those that were undecided took more than the
        others saved."""
        return 1 - self.window_s / self.fixed_s if self.fixed_s else 0.0


def savings(trials: Sequence[Trial], workload: Workload) -> Savings:
    """What was measured before its traffic and why it ended were recorded is left out."""
    taken = [m for t in trials for m in t.measurements if m.purpose is Purpose.TRIAL and m.traffic]
    return Savings(
        window_s=sum(m.load.window_s for m in taken),
        fixed_s=len(taken) * workload.measure_s,
        ended=Counter(m.load.ended for m in taken),
        disbelieved=sum(not m.valid for m in taken),
    )
