"""Two trials of a stored study, measured against each other anew."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from autotune.core.comparison import Comparison
from autotune.core.errors import LoadFailed
from autotune.core.measurement import Purpose
from autotune.core.model_interface import ModelInterface, Sample
from autotune.core.study import Study
from autotune.core.trial import Trial
from autotune.ports import (
    AccuracyGate,
    Clock,
    LoadDriver,
    OutputCheck,
    Progress,
    ProgressListener,
    Server,
    Telemetry,
    TrialStore,
)
from autotune.tuner.answers import Answers
from autotune.tuner.deciding import decision_of
from autotune.tuner.finals import Finals
from autotune.tuner.measure import Measurer
from autotune.tuner.recorder import Recorder
from search_spaces.candidate import Candidate


@dataclass(slots=True, kw_only=True)
class ComparisonRunner:
    """Compares ``first`` with ``second`` in the study's rounds of A B B A. What it measures is
    stored with the study's trials, and leaves its decision as it is. ``in_service`` is the
    configuration that the study found: accuracy is told against what it answers."""

    study: Study
    study_id: int
    store: TrialStore
    server: Server
    load: LoadDriver
    telemetry: Telemetry
    check: OutputCheck
    samples_for: Callable[[ModelInterface], Sequence[Sample]]
    clock: Clock
    listen: ProgressListener
    first: Trial
    second: Trial
    in_service: Candidate
    gate: AccuracyGate | None = None

    def run(self) -> tuple[Comparison, ...]:
        """What the runs said, a comparison for each metric. LoadFailed if they could not be
        measured."""
        before = len(self.store.comparisons(self.study_id))
        warnings: list[str] = []
        numbers = (self.first.number, self.second.number)
        self._finals(warnings.append).compare(numbers, self._next_pair(), Purpose.COMPARE)
        taken = tuple(self.store.comparisons(self.study_id)[before:])
        if not taken:
            raise LoadFailed(
                f"trials {self.first.number} and {self.second.number} could not be compared",
                value="; ".join(warnings),
                next_step="free this machine of other work, then compare again",
            )
        return taken

    def _finals(self, warn: Callable[[str], None]) -> Finals:
        answers = Answers(
            study=self.study,
            study_id=self.study_id,
            store=self.store,
            check=self.check,
            gate=self.gate,
            in_service=self.in_service,
        )
        samples = self._started(answers)
        return Finals(
            study=self.study,
            study_id=self.study_id,
            store=self.store,
            server=self.server,
            recorder=Recorder(
                keep=partial(self.store.add_measurement, self.study_id),
                measurer=Measurer(
                    study=self.study, load=self.load, telemetry=self.telemetry, clock=self.clock
                ),
                check_outputs=lambda server, candidate: answers.compare(server, candidate, samples),
                accuracy_drop=answers.drop,
            ),
            clock=self.clock,
            say=self._say,
            warn=warn,
            decision=lambda: decision_of(self.study, self.store.trials(self.study_id)),
        )

    def _started(self, answers: Answers) -> Sequence[Sample]:
        """The server with the first candidate, and the load's requests for it."""
        self._say("prepare", "starting the server")
        self.server.start()
        if self.gate is not None:
            self._say("prepare", "asking for the answers that accuracy is measured by")
            self.server.apply(self.in_service)
            answers.ask_source(self.server)
        self.server.apply(self.first.candidate)
        interface = self.server.interface()
        samples = self.samples_for(interface)
        self.load.prepare(interface, samples)
        answers.compare(self.server, self.first.candidate, samples)
        return samples

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
