"""Searches that do not learn: every candidate in turn, or in random order."""

from __future__ import annotations

from collections.abc import Sequence

from autotune.adapters.search.history import SearchHistory
from autotune.core.study import Objective
from autotune.ports import TrialOutcome
from search_spaces.candidate import Candidate
from search_spaces.space import Space


class GridSearch:
    """The baseline, then the space's grid in its own order: costly changes are rarest."""

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
        self._grid = space.candidates()
        self._next: Candidate | None = next(self._grid, None)

    @property
    def pruned(self) -> list[tuple[Candidate, str]]:
        """The grid's candidates that are never suggested, each with the prune rule's reason."""
        return self._history.pruned

    def ask(self) -> Candidate | None:
        """The next candidate that has not been told yet, or None when the grid is exhausted."""
        history = self._history
        if history.baseline not in history.told:
            return history.baseline
        while self._next is not None and not history.open(self._next):
            self._next = next(self._grid, None)
        return self._next

    def tell(self, candidate: Candidate, outcome: TrialOutcome) -> None:
        self._history.tell(candidate, outcome)


class RandomSearch:
    """The baseline, then candidates drawn evenly on each parameter's scale, none twice."""

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

    def ask(self) -> Candidate | None:
        """A random candidate that has not been told yet, or None when none is left."""
        history = self._history
        if history.baseline not in history.told:
            return history.baseline
        return history.draw(history.rng())

    def tell(self, candidate: Candidate, outcome: TrialOutcome) -> None:
        self._history.tell(candidate, outcome)
