"""Two trials of a stored study, measured against each other anew."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from autotune.core.comparison import Comparison
from autotune.core.errors import LoadFailed
from autotune.core.measurement import Purpose
from autotune.core.trial import Trial
from autotune.ports import Progress, ProgressListener
from autotune.tuner.crashes import despite_a_crash
from autotune.tuner.deciding import decision_of
from autotune.tuner.rig import Rig


@dataclass(slots=True, kw_only=True)
class ComparisonRunner:
    """Compares ``first`` with ``second`` in the study's rounds of A B B A. What it measures is
    stored with the study's trials, and leaves its decision as it is. The ``rig``'s baseline is the
    configuration that the study found: accuracy is told against what it answers."""

    rig: Rig
    listen: ProgressListener
    first: Trial
    second: Trial

    def run(self) -> tuple[Comparison, ...]:
        """What the runs said, a comparison for each metric. LoadFailed if they could not be
        measured."""
        rig = self.rig
        before = len(rig.store.comparisons(rig.study_id))
        warnings: list[str] = []
        numbers = (self.first.number, self.second.number)
        despite_a_crash(self._started, rig.server, partial(self._say, "prepare"))
        rig.finals(
            self._say,
            warnings.append,
            lambda: decision_of(rig.study, rig.store.trials(rig.study_id)),
        ).compare(numbers, self._next_pair(), Purpose.COMPARE)
        taken = tuple(rig.store.comparisons(rig.study_id)[before:])
        if not taken:
            raise LoadFailed(
                f"trials {self.first.number} and {self.second.number} could not be compared",
                value="; ".join(warnings),
                next_step="free this machine of other work, then compare again",
            )
        return taken

    def _started(self) -> None:
        """The server with the first candidate, and the load's requests for it."""
        rig = self.rig
        self._say("prepare", "starting the server")
        rig.server.start()
        if rig.gate is not None:
            self._say("prepare", "asking for the answers that accuracy is measured by")
            rig.server.apply(rig.baseline)
            rig.answers.ask_source(rig.server)
        rig.server.apply(self.first.candidate)
        rig.prepare_load(self.first.candidate)

    def _next_pair(self) -> int:
        """The first pair whose arrivals neither trial has been measured with."""
        again = {Purpose.FINAL, Purpose.COMPARE}
        seen = (
            {m.traffic for m in trial.measurements if m.purpose in again}
            for trial in (self.first, self.second)
        )
        return max(map(len, seen))

    def _say(self, stage: str, text: str) -> None:
        self.listen(Progress(stage=stage, text=text))
