"""Whether a challenger takes the champion's place.

It does for one of three grounds, each of them enough:

- *better*: a metric of the paired runs is better by the margin at least, its interval clear of
  zero, and none is worse;
- *cheaper*: it takes fewer instances, or as many and less memory (beyond what that varies by:
  `autotune.core.memory_noise`), by the margin at least, and no metric of the paired runs is worse;
  that it may be, where the cheapest that meets the SLA is what was asked for;
- *sla*: the champion misses the SLA beyond doubt, and the challenger meets it.

Whatever the ground, it must meet the SLA beyond doubt, in the paired runs too, and have been
confirmed from its exported files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from autotune.core.comparison import Comparison, Relation
from autotune.core.judged import Judged, objection
from autotune.core.measurement import METRICS, Purpose, label
from autotune.core.memory_noise import MEMORY, MemoryNoise
from autotune.core.sla import Outcome, Sla, judge_together
from autotune.core.wording import change_span, percent


class Ground(StrEnum):
    BETTER = "better"
    CHEAPER = "cheaper"
    SLA = "sla"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """``ground`` is why the challenger is to be promoted; None: it is not. ``reasons`` are
    sentences for people, the deciding one first."""

    ground: Ground | None
    reasons: tuple[str, ...]

    @property
    def promoted(self) -> bool:
        return self.ground is not None

    @property
    def words(self) -> str:
        return self.reasons[0]

    def to_json(self) -> dict[str, Any]:
        ground = None if self.ground is None else str(self.ground)
        return {"promoted": self.promoted, "ground": ground, "reasons": list(self.reasons)}


def judge_challenge(  # noqa: PLR0913 - the two, their runs, and the rules
    champion: Judged | None,
    challenger: Judged,
    comparisons: Sequence[Comparison],
    *,
    margin: float,
    sla: Sla,
    noise: MemoryNoise,
    cheapest: bool = False,
) -> Verdict:
    """``comparisons`` are of the two, from interleaved runs. ``champion`` None: it failed, and
    nothing is known of it but that. ``noise`` is the study's, in memory. ``cheapest``: the study
    picks the cheapest."""
    turned = [each if each.second == challenger.number else each.turned() for each in comparisons]
    saved = (0.0, "") if champion is None else _cheaper_by(champion, challenger, noise)
    told = (*map(_words, turned), *([saved[1]] if saved[0] else []))
    against = _against(challenger, sla)
    if against:
        return Verdict(ground=None, reasons=(against, *told))
    found = _ground(champion, turned, saved, margin, sla, cheapest=cheapest)
    if found is None:
        return Verdict(ground=None, reasons=(_why_not(turned, margin), *told))
    ground, why = found
    return Verdict(ground=ground, reasons=(why, *told))


def _against(challenger: Judged, sla: Sla) -> str:
    """What rules it out, whatever it gains; empty if nothing does."""
    if not challenger.meets:
        return "the challenger does not meet the SLA beyond doubt"
    if challenger.confirmation is None:
        return "the challenger was not confirmed from its exported files"
    paired = challenger.trial.of(Purpose.COMPARE)
    if paired and objection(judge_together(paired, sla)) is not Outcome.MEETS:
        return "the challenger did not meet the SLA in the paired runs"
    return ""


def _ground(  # noqa: PLR0913 - the same
    champion: Judged | None,
    comparisons: Sequence[Comparison],
    less: tuple[float, str],
    margin: float,
    sla: Sla,
    *,
    cheapest: bool,
) -> tuple[Ground, str] | None:
    if champion is None:
        return Ground.SLA, "the champion fails, and the challenger meets the SLA"
    if misses(champion, sla):
        return Ground.SLA, "the champion misses the SLA beyond doubt, and the challenger meets it"
    worse = any(each.relation is Relation.WORSE for each in comparisons)
    better = [each for each in comparisons if _better_by(each) >= margin and _better(each)]
    if better and not worse:
        most = max(better, key=_better_by)
        return Ground.BETTER, f"{_words(most)}: better by the margin of {margin:.0%} at least"
    saved, words = less
    if comparisons and saved > 0 and saved >= margin and (cheapest or not worse):
        return Ground.CHEAPER, f"{words}: cheaper by the margin of {margin:.0%} at least"
    return None


def misses(champion: Judged, sla: Sla) -> bool:
    """Whether it misses the SLA beyond doubt: in its evidence, and in the paired runs not
    otherwise."""
    if champion.verdict.outcome is not Outcome.MISSES:
        return False
    paired = champion.trial.of(Purpose.COMPARE)
    return not paired or judge_together(paired, sla).outcome is not Outcome.MEETS


def _why_not(comparisons: Sequence[Comparison], margin: float) -> str:
    if not comparisons:
        return "the challenger could not be compared with the champion"
    worse = [each for each in comparisons if each.relation is Relation.WORSE]
    if worse:
        return f"the challenger is worse: {_words(worse[0])}"
    return f"the challenger is neither better nor cheaper by the margin of {margin:.0%}"


def _better(comparison: Comparison) -> bool:
    return comparison.relation is Relation.BETTER


def _better_by(comparison: Comparison) -> float:
    """The relative change, above 0 where it is to the better."""
    maximize = METRICS[comparison.metric].maximize
    return comparison.effect if maximize else -comparison.effect


def _words(comparison: Comparison) -> str:
    """``p95 −12.0% (−15.1% to −8.7%; 6 pairs of runs)``; what is a tie is called so."""
    tie = ", a tie" if comparison.relation is Relation.TIE else ""
    return (
        f"{label(comparison.metric)} {percent(comparison.effect)}{tie}"
        f" ({change_span(comparison.interval)}; {comparison.pairs} pairs of runs)"
    )


# ---------------------------------------------------------------------------------------- the cost
def _cheaper_by(champion: Judged, challenger: Judged, noise: MemoryNoise) -> tuple[float, str]:
    """The share of instances saved, or where they are as many, of memory, where that differs by
    more than its noise; with the words for it."""
    before, after = champion.metric("instances"), challenger.metric("instances")
    if before and after is not None and before != after:
        plural = "" if after == 1 else "s"
        return 1 - after / before, f"{after:g} instance{plural} instead of {before:g}"
    held, holds = champion.metric(MEMORY), challenger.metric(MEMORY)
    if not held or not holds or held <= holds or not noise.differ(held, holds):
        return 0.0, ""
    return 1 - holds / held, f"{holds:,.0f} MB of memory instead of {held:,.0f} MB"
