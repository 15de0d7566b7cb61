"""Rules for combinations that cannot pay: ruled out before anything is measured."""

from __future__ import annotations

import math
from dataclasses import dataclass

from search_spaces.candidate import MAX_BATCH_SIZE, PREFERRED_BATCH_SIZES, Candidate, Value
from search_spaces.conditions import Condition

CORES = "cores"
"""Stands for the number of CPU cores at hand in a rule's bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneRule:
    """Rules out the candidates for which everything said in it holds.

    ``combine`` ("product" or "sum") of ``targets`` lies ``side`` ("above" or "below") of
    ``bound``, a number, the word `CORES` or another target; and every condition of ``when`` holds.
    A rule that names a target which the candidate does not set (or sets to null) says nothing.
    ``because`` is the reason given to people.
    """

    combine: str = ""
    targets: tuple[str, ...] = ()
    side: str = "above"
    bound: float | str = 0
    when: tuple[Condition, ...] = ()
    because: str = ""

    def reason(self, candidate: Candidate, cores: int) -> str | None:
        """Why the candidate is ruled out; None if it is not by this rule."""
        if not all(condition.holds(candidate.values) for condition in self.when):
            return None
        if not self.combine:
            return self.because or " and ".join(map(str, self.when)) + " cannot pay"
        total, bound = self._total(candidate), self._bound(candidate, cores)
        if total is None or bound is None:
            return None
        if not (total > bound if self.side == "above" else total < bound):
            return None
        sign = " x " if self.combine == "product" else " + "
        text = f"{sign.join(self.targets)} = {total:g} is {self.side} {self._named_bound(bound)}"
        return f"{text}: {self.because}" if self.because else text

    def _total(self, candidate: Candidate) -> float | None:
        numbers = [_number(candidate.get(target)) for target in self.targets]
        known = [number for number in numbers if number is not None]
        if len(known) < len(numbers):
            return None
        return math.prod(known) if self.combine == "product" else sum(known)

    def _bound(self, candidate: Candidate, cores: int) -> float | None:
        if self.bound == CORES:
            return cores
        return _number(candidate.get(self.bound) if isinstance(self.bound, str) else self.bound)

    def _named_bound(self, bound: float) -> str:
        if self.bound == CORES:
            return f"the {bound:g} cores"
        return f"{self.bound} = {bound:g}" if isinstance(self.bound, str) else f"{bound:g}"


def contradiction(candidate: Candidate) -> str | None:
    """Why Triton would refuse the candidate whatever the model, or one of its steps; None if it
    would not.

    Source: Triton core, ValidateModelConfig ("dynamic batching preferred size must be <= max batch
    size").
    """
    for target, sizes in candidate.values.items():
        if isinstance(sizes, tuple) and target.endswith(PREFERRED_BATCH_SIZES):
            step = target.removesuffix(PREFERRED_BATCH_SIZES)
            largest = candidate.get(step + MAX_BATCH_SIZE)
            if isinstance(largest, int) and max(sizes) > largest:
                return (
                    f"preferred batch size {max(sizes)} is above {step}{MAX_BATCH_SIZE} {largest}:"
                    " Triton refuses it"
                )
    return None


def _number(value: Value) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value
