"""Whether a candidate can fit into the memory there is, by what others took.

Two things are learned from the trials of a study. One that ran out of memory rules out every
candidate that asks for at least as much. And memory grows with each instance: two trials that
differ in the instances of one model alone tell by how much, which bounds the candidates that have
more.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations

from autotune.core.measurement import Measurement
from autotune.core.trial import Trial, TrialState
from search_spaces.candidate import (
    INSTANCES,
    MAX_BATCH_SIZE,
    PREFERRED_BATCH_SIZES,
    QUEUE_DELAY_US,
    Candidate,
    Value,
    split_target,
)

_GROWING = {INSTANCES, MAX_BATCH_SIZE}
"""Fields that take the more memory, the larger they are."""
_WITHOUT = {QUEUE_DELAY_US, PREFERRED_BATCH_SIZES}
"""Fields that memory does not depend on."""

_OUT_OF_MEMORY = re.compile(
    r"out of memory|CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation|bad_alloc"
    r"|cannot allocate memory|failed to allocate memory|unable to allocate|CUBLAS_STATUS_ALLOC_FAILED",
    re.IGNORECASE,
)


def tells_out_of_memory(text: str) -> bool:
    """Whether a server's answer or log says that memory ran out: CUDA's, PyTorch's, ONNX Runtime's
    arena's, Triton's own or the operating system's words for it."""
    return bool(_OUT_OF_MEMORY.search(text))


@dataclass(frozen=True, slots=True)
class _Needs:
    """A candidate by what its memory depends on: ``growing`` numbers and ``fixed`` all the rest."""

    growing: Mapping[tuple[str, str], int]
    fixed: Mapping[tuple[str, str], Value]

    @classmethod
    def of(cls, candidate: Candidate) -> _Needs:
        named = {split_target(target): value for target, value in candidate.values.items()}
        growing = {
            place: value
            for place, value in named.items()
            if place[1] in _GROWING and isinstance(value, int)
        }
        fixed = {
            place: value
            for place, value in named.items()
            if place not in growing and place[1] not in _WITHOUT
        }
        return cls(growing, fixed)

    def comparable(self, other: _Needs) -> bool:
        return self.fixed == other.fixed and self.growing.keys() == other.growing.keys()

    def at_least(self, other: _Needs) -> bool:
        """Whether it takes at least as much of everything."""
        return self.comparable(other) and all(
            value >= other.growing[place] for place, value in self.growing.items()
        )

    def more_instances(self, other: _Needs) -> tuple[tuple[str, str], int] | None:
        """Where the two differ in the instances of one model alone: which, and how many more."""
        if not self.comparable(other):
            return None
        differing = [place for place in self.growing if self.growing[place] != other.growing[place]]
        if len(differing) != 1 or differing[0][1] != INSTANCES:
            return None
        return differing[0], self.growing[differing[0]] - other.growing[differing[0]]


def cannot_fit(candidate: Candidate, trials: Sequence[Trial]) -> str | None:
    """Why a candidate need not be loaded to know that it runs out of memory; None where it may fit.

    Memory is compared only within what `Trial.measurement` tells of one source; the larger of two
    predictions counts.
    """
    needs = _Needs.of(candidate)
    for trial in trials:
        if ran_out(trial) and needs.at_least(_Needs.of(trial.candidate)):
            return f"asks for at least as much memory as trial {trial.number}, which ran out of it"
    predictions = [
        found
        for less, more in permutations(_measured(trials), 2)
        if (found := _predicted(needs, less, more)) is not None
    ]
    if not predictions:
        return None
    worst = max(predictions, key=lambda found: found.over)
    return worst.text if worst.over > 0 else None


def ran_out(trial: Trial) -> bool:
    return trial.state is TrialState.FAILED and tells_out_of_memory(trial.reason)


@dataclass(frozen=True, slots=True)
class _Prediction:
    over: float
    """Megabytes above what there is."""
    text: str


def _measured(trials: Sequence[Trial]) -> list[tuple[Trial, Measurement]]:
    return [(trial, trial.measurement) for trial in trials if trial.measurement is not None]


def _predicted(
    needs: _Needs, less: tuple[Trial, Measurement], more: tuple[Trial, Measurement]
) -> _Prediction | None:
    """By two trials of which one has more instances: what each takes, carried on to a candidate
    that takes at least as much as the larger in everything."""
    (small, before), (large, after) = less, more
    first, second = before.telemetry, after.telemetry
    total = second.memory_total_mb
    if first.memory_mb is None or second.memory_mb is None or total is None:
        return None
    if first.memory_source != second.memory_source:
        return None
    larger = _Needs.of(large.candidate)
    step = larger.more_instances(_Needs.of(small.candidate))
    if step is None or step[1] <= 0 or not needs.at_least(larger):
        return None
    place, added = step
    each = (second.memory_mb - first.memory_mb) / added
    if each <= 0:
        return None
    instances = needs.growing[place]
    needed = second.memory_mb + each * (instances - larger.growing[place])
    return _Prediction(
        over=needed - total,
        text=(
            f"would need about {needed:,.0f} MB of memory, and there are {total:,.0f}:"
            f" {each:,.0f} MB for each of {instances} instances, as trials {small.number} and"
            f" {large.number} took it"
        ),
    )
