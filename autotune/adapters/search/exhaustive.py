"""Searches that do not learn: every candidate in turn, or in random order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from autotune.adapters.search.history import SearchHistory
from autotune.core.study import Objective
from autotune.ports import TrialOutcome
from search_spaces.candidate import Candidate
from search_spaces.space import Space


class _Plain:
    """What both have in common: the baseline comes first, and nothing is suggested twice."""

    def __init__(
        self,
        space: Space,
        *,
        baseline: Candidate,
        objectives: Sequence[Objective] = (),
        seed: int = 0,
        cores: int,
    ) -> None:
        self._history = SearchHistory(
            space, baseline=baseline, objectives=objectives, seed=seed, cores=cores
        )

    @property
    def pruned(self) -> list[tuple[Candidate, str]]:
        """The grid's candidates that are never suggested, each with the prune rule's reason."""
        return self._history.pruned

    def ask(self, pending: Sequence[Candidate] = ()) -> Candidate | None:
        """The next candidate that is neither told nor pending, or None when none is left."""
        self._history.expect(pending)
        ordered = self._history.ordered()
        return self._next() if ordered is None else ordered

    def _next(self) -> Candidate | None:
        raise NotImplementedError

    def tell(self, candidate: Candidate, outcome: TrialOutcome) -> None:
        self._history.tell(candidate, outcome)

    def recall(
        self, known: Sequence[tuple[Candidate, TrialOutcome]], first: Sequence[Candidate]
    ) -> None:
        self._history.recall(known, first)


class GridSearch(_Plain):
    """The baseline, then the space's grid in its own order: costly changes are rarest."""

    def __init__(self, space: Space, **options: Any) -> None:
        super().__init__(space, **options)
        self._grid = space.candidates()
        self._at: Candidate | None = next(self._grid, None)

    def _next(self) -> Candidate | None:
        """One that is pending now may be to be had again, if it is never told: none is passed over
        for good but what was told or is ruled out."""
        while self._at is not None and self._history.closed(self._at):
            self._at = next(self._grid, None)
        if self._at is None or self._history.open(self._at):
            return self._at
        return self._history.first_open()


class RandomSearch(_Plain):
    """The baseline, then candidates drawn evenly on each parameter's scale, none twice."""

    def _next(self) -> Candidate | None:
        return self._history.draw(self._history.rng())
