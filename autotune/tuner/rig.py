"""What a device measures with: a server, its load, and what is asked of every candidate."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from autotune.core.decision import Decision
from autotune.core.model_interface import ModelInterface, Sample
from autotune.core.study import Study
from autotune.ports import (
    AccuracyGate,
    Clock,
    LoadDriver,
    OutputCheck,
    Server,
    Telemetry,
    TrialStore,
)
from autotune.tuner.answers import Answers
from autotune.tuner.finals import Finals
from autotune.tuner.measure import Measurer
from autotune.tuner.recorder import Keep, Recorder, Say
from search_spaces.candidate import Candidate


@dataclass(slots=True, kw_only=True)
class Rig:
    """``baseline`` is the first candidate; ``found`` the configuration that the model was found
    with, where that is another (None: it is the same); accuracy is told against what it answers.
    What answers tell of variants goes to the ``store``."""

    study: Study
    study_id: int
    store: TrialStore
    server: Server
    load: LoadDriver
    telemetry: Telemetry
    check: OutputCheck
    samples_for: Callable[[ModelInterface], Sequence[Sample]]
    clock: Clock
    baseline: Candidate
    found: Candidate | None = None
    gate: AccuracyGate | None = None
    samples: Sequence[Sample] = field(default=(), init=False)
    answers: Answers = field(init=False)

    def __post_init__(self) -> None:
        self.answers = Answers(
            study=self.study,
            study_id=self.study_id,
            store=self.store,
            check=self.check,
            gate=self.gate,
            in_service=self.found or self.baseline,
        )

    def prepare_load(self, served: Candidate) -> str:
        """Build the load's requests for what is served now, and compare its answers to all of them
        with the model run directly; says in a line what was compared."""
        interface = self.server.interface()
        self.samples = self.samples_for(interface)
        self.load.prepare(interface, self.samples)
        return self.answers.compare(self.server, served, self.samples)

    def recorder(
        self,
        keep: Keep,
        again: Callable[[str], None],
        *,
        answers: Answers | None = None,
        checked: int | None = None,
    ) -> Recorder:
        """``checked``: on how many samples each candidate's answers are compared; None: on all.
        ``answers`` are those of another server's candidates."""
        asked = answers or self.answers
        return Recorder(
            keep=keep,
            measurer=Measurer(
                study=self.study, load=self.load, telemetry=self.telemetry, clock=self.clock
            ),
            check_outputs=lambda server, candidate: asked.compare(
                server, candidate, self.samples[:checked]
            ),
            accuracy_drop=asked.drop,
            again=again,
        )

    def recorder_of_stored(
        self, say: Say, *, answers: Answers | None = None, checked: int | None = None
    ) -> Recorder:
        """One whose measurements go to the store's trials."""
        keep = partial(self.store.add_measurement, self.study_id)
        return self.recorder(keep, partial(say, "again"), answers=answers, checked=checked)

    def finals(
        self,
        say: Say,
        warn: Callable[[str], None],
        decision: Callable[[], Decision],
        *,
        seconds_left: Callable[[], float] = lambda: math.inf,
        checked: int | None = None,
    ) -> Finals:
        return Finals(
            study=self.study,
            study_id=self.study_id,
            store=self.store,
            server=self.server,
            recorder=self.recorder_of_stored(say, checked=checked),
            clock=self.clock,
            say=say,
            warn=warn,
            decision=decision,
            seconds_left=seconds_left,
        )
