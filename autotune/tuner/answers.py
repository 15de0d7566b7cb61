"""What a candidate answers, looked at before it is timed.

Whether its answers are those of the model file that it serves, and how much worse they are than the
source model's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from autotune.core.errors import CandidateFailed, OutputsDiffer
from autotune.core.model_interface import Sample
from autotune.core.study import Study
from autotune.core.variants import VariantRecord
from autotune.core.wording import share_words
from autotune.ports import AccuracyGate, OutputCheck, Server, TrialStore
from search_spaces.candidate import VARIANT, Candidate, split_target


def variants_of(candidate: Candidate) -> Candidate:
    """The part of it that says what is answered: its variants."""
    chosen = {t: v for t, v in candidate.values.items() if split_target(t)[1] == VARIANT}
    return Candidate(chosen)


@dataclass(slots=True, kw_only=True)
class Answers:
    """Of one server's candidates. ``in_service`` is the configuration that was found: answers that
    are not its model's end a study; of another variant they fail the candidate alone. ``gate`` is
    None where nobody asks about accuracy."""

    study: Study
    study_id: int
    store: TrialStore
    check: OutputCheck
    gate: AccuracyGate | None = None
    in_service: Candidate = field(default_factory=lambda: Candidate({}))
    _drops: dict[Candidate, float] = field(default_factory=dict, init=False)

    def compare(self, server: Server, candidate: Candidate, samples: Sequence[Sample]) -> str:
        """Say in a line what was compared. OutputsDiffer, or CandidateFailed for a variant."""
        try:
            return self.check.check(server.endpoint, server.interface(), samples, candidate)
        except OutputsDiffer as exc:
            if variants_of(candidate) == variants_of(self.in_service):
                raise
            raise CandidateFailed(
                f"its answers are not those of its own model file: {exc.rule}", value=exc.value
            ) from exc

    def drop(self, server: Server, candidate: Candidate) -> float | None:
        """How much worse the served candidate answers than the source, measured once for each
        assignment of variants; None where nobody asks. CandidateFailed above the SLA's limit."""
        if self.gate is None:
            return None
        drop, limit = self._measured(self.gate, server, candidate), self.study.sla.accuracy_drop
        if limit is not None and drop > limit:
            raise CandidateFailed(
                f"accuracy drop {share_words(drop)} of what is served is above the SLA's"
                f" {share_words(limit)}",
                value=str(variants_of(candidate)),
            )
        return drop

    def ask_source(self, server: Server) -> None:
        """Ask the server, which serves the configuration found, before any other candidate: a gate
        that does not know the source's answers takes the first that it is given for them.
        CandidateFailed if it answers with errors: then nothing could be held against it."""
        if self.gate is not None:
            self._measured(self.gate, server, self.in_service)

    def _measured(self, gate: AccuracyGate, server: Server, candidate: Candidate) -> float:
        chosen = variants_of(candidate)
        if chosen not in self._drops:
            self._drops[chosen] = gate.drop(server.endpoint, server.interface())
            self._remember(chosen, self._drops[chosen])
        return self._drops[chosen]

    def anew(self) -> Answers:
        """The same for another server: it is asked again."""
        return replace(self)

    def _remember(self, chosen: Candidate, drop: float) -> None:
        """Store it with the variant that it is of: where other steps serve another one than was
        found, whose loss it is cannot be told."""
        records = self.store.variants(self.study_id)
        told = [
            replace(record, served_drop=drop) if self._is_of(record, chosen) else record
            for record in records
        ]
        if told != list(records):
            self.store.set_variants(self.study_id, told)

    def _is_of(self, record: VariantRecord, chosen: Candidate) -> bool:
        mine = chosen.get(record.target) == str(record.variant)
        others = (t for t in chosen if t != record.target)
        return mine and all(chosen[t] == self.in_service.get(t) for t in others)
