"""Whether a candidate can fit into the memory there is, by what others took.

Three things are learned from the trials of a study. Where one was measured, what asks for no more
has room. One that ran out of memory rules out every candidate that asks for at least as much. And
memory grows with each instance: two trials that differ in the instances of one model alone tell by
how much, which bounds the candidates that have more.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import TypeAlias

from autotune.core.measurement import LoadResult
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

_Place: TypeAlias = tuple[str, str]
"""A step of a pipeline (empty: the model itself) and what is set of it."""

RAN_OUT = "ran out of memory"
"""How the reason of a trial begins that failed for want of memory."""
_GROWING = {INSTANCES, MAX_BATCH_SIZE}
"""Fields that take the more memory, the larger they are."""
_WITHOUT = {QUEUE_DELAY_US, PREFERRED_BATCH_SIZES}
"""Fields that memory does not depend on: a saturation burst fills the batches of any."""

_OUT_OF_MEMORY = re.compile(
    r"out ?of ?memory|MemoryAllocation|bad_alloc|\bMemoryError\b|cannot allocate memory"
    r"|(?:unable|failed) to allocate(?! pinned)|could not be allocated|ALLOC_FAILED"
    r"|increase the shared memory pool",
    re.IGNORECASE,
)
_MADE_DO = re.compile(r"falling back", re.IGNORECASE)


# ---------------------------------------------------------------------------------- what tells it
def tells_out_of_memory(text: str) -> bool:
    """Whether a server's answer or log says that memory ran out: CUDA's, cuBLAS's, PyTorch's,
    TensorRT's, ONNX Runtime's, NumPy's, Python's, Triton's own (of shared memory, too) or the
    operating system's words for it. That there is no pinned memory, which Triton says wherever it
    finds no GPU, is no such thing; nor is a warning that something made do with other memory, as
    Triton does when its small pool on a GPU is full."""
    return any(
        _OUT_OF_MEMORY.search(line) and not _MADE_DO.search(line) for line in text.splitlines()
    )


def blamed(what: str, evidence: str) -> str:
    """``what`` went wrong, as memory's fault where the evidence (an answer, a log) tells of it."""
    return f"{RAN_OUT}: {what}" if tells_out_of_memory(evidence) else what


def answered_out_of_memory(load: LoadResult) -> str:
    """An answer under load that told of it; empty where none did."""
    return next((text for text in load.error_texts.values() if tells_out_of_memory(text)), "")


def ran_out(trial: Trial) -> bool:
    return trial.state is TrialState.FAILED and RAN_OUT in trial.reason.partition("\n")[0]


# ------------------------------------------------------------------------------- what cannot fit
def cannot_fit(candidate: Candidate, trials: Sequence[Trial]) -> str | None:
    """Why a candidate need not be loaded to know that it runs out of memory; None where it may fit.

    Of the predictions for each model whose instances grow, the largest counts.
    """
    needs = _Needs.of(candidate)
    fitted = [found for trial in trials if (found := _Fitted.of(trial)) is not None]
    if any(found.needs.at_least(needs) for found in fitted):
        return None
    for trial in trials:
        if ran_out(trial) and needs.at_least(_Needs.of(trial.candidate)):
            return f"asks for at least as much memory as trial {trial.number}, which ran out of it"
    over = [growth for growth in _telling(needs, fitted) if growth.excess_mb(needs) > 0]
    worst = max(over, key=lambda growth: growth.excess_mb(needs), default=None)
    return None if worst is None else worst.told(needs)


@dataclass(frozen=True, slots=True)
class _Needs:
    """A candidate by what its memory depends on: ``growing`` numbers and ``fixed`` all the rest."""

    growing: Mapping[_Place, int]
    fixed: Mapping[_Place, Value]

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
            if place not in growing and not _without_effect(place[1], value)
        }
        return cls(growing, fixed)

    def comparable(self, other: _Needs) -> bool:
        return self.fixed == other.fixed and self.growing.keys() == other.growing.keys()

    def at_least(self, other: _Needs) -> bool:
        """Whether it takes at least as much of everything."""
        return self.comparable(other) and all(
            value >= other.growing[place] for place, value in self.growing.items()
        )

    def more_instances(self, other: _Needs) -> tuple[_Place, int] | None:
        """Of which model it has more instances, and how many more, where the two differ in nothing
        else."""
        if not self.comparable(other):
            return None
        differing = [place for place in self.growing if self.growing[place] != other.growing[place]]
        if len(differing) != 1 or differing[0][1] != INSTANCES:
            return None
        more = self.growing[differing[0]] - other.growing[differing[0]]
        return (differing[0], more) if more > 0 else None


def _without_effect(field: str, value: Value) -> bool:
    """An unset delay takes the batcher out: requests are then executed one by one."""
    return field in _WITHOUT and not (field == QUEUE_DELAY_US and value is None)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fitted:
    """A trial that was measured. ``memory_mb`` of ``total_mb`` were in use by ``source``; each None
    where it is unknown."""

    number: int
    needs: _Needs
    memory_mb: float | None
    total_mb: float | None
    source: str | None

    @classmethod
    def of(cls, trial: Trial) -> _Fitted | None:
        if trial.state is not TrialState.OK or trial.measurement is None:
            return None
        seen = trial.measurement.telemetry
        return cls(
            number=trial.number,
            needs=_Needs.of(trial.candidate),
            memory_mb=seen.memory_mb,
            total_mb=seen.memory_total_mb,
            source=seen.memory_source,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Growth:
    """What each instance of a model takes, by two trials of which the ``large`` one has ``added``
    more and that differ in nothing else."""

    place: _Place
    small: int
    large: int
    needs: _Needs
    added: int
    each_mb: float
    memory_mb: float
    total_mb: float

    @classmethod
    def between(cls, small: _Fitted, large: _Fitted) -> _Growth | None:
        """None where it cannot be told: another model or setting, memory that is unknown, read
        from another source or of another size, or that did not grow."""
        step = large.needs.more_instances(small.needs)
        same = (small.source, small.total_mb) == (large.source, large.total_mb)
        if step is None or not same or large.total_mb is None:
            return None
        if small.memory_mb is None or large.memory_mb is None:
            return None
        each_mb = (large.memory_mb - small.memory_mb) / step[1]
        if each_mb <= 0:
            return None
        return cls(
            place=step[0],
            small=small.number,
            large=large.number,
            needs=large.needs,
            added=step[1],
            each_mb=each_mb,
            memory_mb=large.memory_mb,
            total_mb=large.total_mb,
        )

    @property
    def closeness(self) -> tuple[int, int]:
        """The more it has of all else, the closer it is to a candidate that has at least as much;
        then the wider apart the two are, the less of it is noise."""
        others = (value for place, value in self.needs.growing.items() if place != self.place)
        return sum(others), self.added

    def needed_mb(self, needs: _Needs) -> float:
        """Of a candidate that takes at least as much as the large one in everything."""
        more = needs.growing[self.place] - self.needs.growing[self.place]
        return self.memory_mb + self.each_mb * more

    def excess_mb(self, needs: _Needs) -> float:
        return self.needed_mb(needs) - self.total_mb

    def told(self, needs: _Needs) -> str:
        step, count = self.place[0], needs.growing[self.place]
        of = f" of {step}" if step else ""
        return (
            f"would need about {self.needed_mb(needs):,.0f} MB of memory, and there are"
            f" {self.total_mb:,.0f}: {self.each_mb:,.0f} MB for each of {count} instances{of}, as"
            f" trials {self.small} and {self.large} took it"
        )


def _telling(needs: _Needs, fitted: Sequence[_Fitted]) -> Iterator[_Growth]:
    """Of each model whose growth bounds the candidate, the two trials that tell it best."""
    found: dict[_Place, _Growth] = {}
    for small, large in permutations(fitted, 2):
        growth = _Growth.between(small, large)
        if growth is None or not needs.at_least(growth.needs):
            continue
        before = found.get(growth.place)
        if before is None or growth.closeness > before.closeness:
            found[growth.place] = growth
    yield from found.values()
