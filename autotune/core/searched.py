"""How far a search got."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autotune.core.trial import Trial, TrialState


@dataclass(frozen=True, slots=True, kw_only=True)
class Searched:
    """``tried`` of the ``planned`` candidates were tried: all that the space allows, or as many as
    the budget of trials. ``minutes`` is the budget of time that ended the search (None:
    something else did, such as an interruption)."""

    tried: int
    planned: int
    minutes: float | None

    @classmethod
    def of(cls, trials: Sequence[Trial], planned: int, minutes: float | None) -> Searched:
        """By the study's trials; a running one is not tried yet."""
        tried = sum(trial.state is not TrialState.RUNNING for trial in trials)
        return cls(tried=tried, planned=planned, minutes=minutes)

    @property
    def cut_short(self) -> bool:
        return self.tried < self.planned

    @property
    def words(self) -> str:
        """``1 of 36 candidates tried``; empty where all were."""
        return f"{self.tried} of {self.planned} candidates tried" if self.cut_short else ""
