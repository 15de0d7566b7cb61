"""What every search remembers: what was told, what may still be suggested, what is ruled out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice

import numpy as np

from autotune.core.study import Objective
from autotune.ports import TrialOutcome
from search_spaces.candidate import Candidate
from search_spaces.space import Space

DRAWS = 1000
"""Random candidates tried before a space is called exhausted, beside its whole grid."""
LISTED = 100_000
"""Grid candidates looked at, at most, to list what the prune rules take out."""


class SearchHistory:
    """A search's memory. What it suggests next depends only on the seed, on what was recalled, on
    what was told, in its order, and on what is pending: a search that is resumed from stored trials
    goes on as if it had never stopped, and one that is asked twice without being told gives the
    same answer twice.

    The first suggestion is ``baseline``, the configuration in service, even where it lies outside
    the space or a prune rule would take it out. A candidate of the space to which the baseline
    amounts (`Space.project`) is not suggested again. ``cores``: for the prune rules.
    """

    def __init__(
        self,
        space: Space,
        *,
        baseline: Candidate,
        objectives: Sequence[Objective],
        seed: int,
        cores: int,
    ) -> None:
        self.space = space
        self.baseline = baseline
        self.objectives = tuple(objectives)
        self.seed = seed
        self.cores = cores
        self.told: dict[Candidate, TrialOutcome] = {}
        self.prior: dict[Candidate, TrialOutcome] = {}
        self.first: tuple[Candidate, ...] = ()
        self.pending: tuple[Candidate, ...] = ()
        self._taken: set[Candidate] = set()
        self._measuring: set[Candidate] = set()

    @property
    def pruned(self) -> list[tuple[Candidate, str]]:
        """The grid's candidates that are never suggested, each with the prune rule's reason."""
        grid = islice(self.space.candidates(), LISTED)
        reasons = ((c, self.space.pruned(c, self.cores)) for c in grid)
        return [(candidate, reason) for candidate, reason in reasons if reason is not None]

    def tell(self, candidate: Candidate, outcome: TrialOutcome) -> None:
        """Learn an outcome; a candidate told again replaces what was known of it."""
        self.told[candidate] = outcome
        self._taken |= self._amounting_to([candidate])

    def expect(self, pending: Sequence[Candidate]) -> None:
        """These are being measured: of what is suggested next they are none."""
        self.pending = tuple(pending)
        self._measuring = self._amounting_to(pending)

    def _amounting_to(self, candidates: Iterable[Candidate]) -> set[Candidate]:
        """They, and the candidates of the space to which they amount."""
        own = set(candidates)
        projected = map(self.space.project, own)
        return own | {each for each in projected if each is not None}

    def recall(
        self, known: Sequence[tuple[Candidate, TrialOutcome]], first: Sequence[Candidate]
    ) -> None:
        """Prior knowledge: of a candidate that was measured more than once the last outcome."""
        self.prior = dict(known)
        self.first = tuple(each for each in first if self.space.contains(each))

    def ordered(self) -> Candidate | None:
        """What is suggested whatever the search is like: the baseline, then what is to be asked
        first; None once all of that was told, or is pending."""
        if self.baseline not in self.told and self.baseline not in self.pending:
            return self.baseline
        return next(filter(self.open, self.first), None)

    def known(self) -> dict[Candidate, TrialOutcome]:
        """All outcomes to learn from: the prior ones first, less what has been told since."""
        prior = {each: known for each, known in self.prior.items() if each not in self.told}
        return {**prior, **self.told}

    def open(self, candidate: Candidate) -> bool:
        """Whether the candidate may be suggested: neither told nor pending nor ruled out."""
        return candidate not in self._measuring and not self.closed(candidate)

    def closed(self, candidate: Candidate) -> bool:
        """Whether it can never be suggested any more: told, or ruled out."""
        return candidate in self._taken or self.space.pruned(candidate, self.cores) is not None

    def rng(self) -> np.random.Generator:
        """Randomness for the next suggestion: of the seed and the number of trials told."""
        return np.random.default_rng([abs(self.seed), int(self.seed < 0), len(self.told)])

    def draw(self, rng: np.random.Generator) -> Candidate | None:
        """A random open candidate, or the grid's first where `DRAWS` draws found none.

        None only if the whole grid is taken too: exact where all parameters list their values.
        """
        draws = (self.space.sample(rng) for _ in range(DRAWS))
        found = next((candidate for candidate in draws if self.open(candidate)), None)
        return found if found is not None else self.first_open()

    def first_open(self) -> Candidate | None:
        return next((c for c in self.space.candidates() if self.open(c)), None)
