"""A trial: a candidate with its measurements and its state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from autotune.core.measurement import Measurement, Purpose
from search_spaces.candidate import Candidate


class TrialState(StrEnum):
    RUNNING = "running"
    OK = "ok"
    INVALID = "invalid"
    """The measuring failed, every time it was tried: says nothing about the candidate."""
    FAILED = "failed"
    """The candidate failed: it did not load, or the server died under it."""
    PRUNED = "pruned"
    """Ruled out unmeasured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """``number`` counts from 0 within the study; trial 0 is the configuration found in service.

    ``reason`` says why a trial is not ok. Measurements are in the order they were taken, invalid
    ones included.
    """

    number: int
    candidate: Candidate
    state: TrialState
    measurements: Sequence[Measurement] = ()
    reason: str = ""
    started_at: float = 0.0
    ended_at: float | None = None

    def of(self, purpose: Purpose) -> tuple[Measurement, ...]:
        """Its valid measurements of a purpose, in the order they were taken."""
        return tuple(m for m in self.measurements if m.purpose is purpose and m.valid)

    @property
    def measurement(self) -> Measurement | None:
        """The last valid measurement of the search's own."""
        return next(reversed(self.of(Purpose.TRIAL)), None)

    @property
    def confirmation(self) -> Measurement | None:
        """The last valid measurement of its exported files."""
        return next(reversed(self.of(Purpose.CONFIRM)), None)


def numbered(trials: Sequence[Trial], number: int | None) -> Trial | None:
    """The trial of that number; None where there is none, or none is asked for."""
    return next((trial for trial in trials if trial.number == number), None)
