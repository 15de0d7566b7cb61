"""A study carried out on one device of one machine: its own server and load, a trial at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from autotune.core.decision import Decision
from autotune.core.errors import CandidateFailed, ServerFailed
from autotune.core.intervals import Interval
from autotune.core.measurement import Purpose
from autotune.core.model_interface import ModelInterface, Sample
from autotune.core.study import PickRule, Study
from autotune.core.trial import Trial, TrialState
from autotune.ports import (
    AccuracyGate,
    Applied,
    Clock,
    Exporter,
    LoadDriver,
    OutputCheck,
    Server,
    Telemetry,
    TrialSource,
    TrialStore,
)
from autotune.tuner.answers import Answers
from autotune.tuner.conclude import Conclusion, Documents, Settled
from autotune.tuner.deciding import decision_of
from autotune.tuner.finals import Finals
from autotune.tuner.measure import Measurer
from autotune.tuner.phases import at_target
from autotune.tuner.recorder import Keep, NotBelieved, Recorder, Say
from autotune.tuner.venue import Overseer, Readied
from search_spaces.candidate import Candidate

CHECKED_SAMPLES = 4
"""Samples compared at every later candidate; the first one is compared on all of them."""


@dataclass(slots=True, kw_only=True)
class Here:
    """Implements `Venue`. ``out`` receives the export; ``work`` is scratch on the same disk.
    ``baseline`` is the first candidate; ``found`` the configuration that the model was found with,
    where that is another (None: it is the same); accuracy is told against what it answers. What
    answers tell of variants goes to the ``store``."""

    study: Study
    study_id: int
    store: TrialStore
    server: Server
    load: LoadDriver
    telemetry: Telemetry
    check: OutputCheck
    exporter: Exporter
    documents: Documents
    samples_for: Callable[[ModelInterface], Sequence[Sample]]
    clock: Clock
    baseline: Candidate
    out: Path
    work: Path
    found: Candidate | None = None
    gate: AccuracyGate | None = None
    _samples: Sequence[Sample] = field(default=(), init=False)
    _answers: Answers = field(init=False)

    def __post_init__(self) -> None:
        self._answers = Answers(
            study=self.study,
            study_id=self.study_id,
            store=self.store,
            check=self.check,
            gate=self.gate,
            in_service=self.found or self.baseline,
        )

    @property
    def side_by_side(self) -> int:
        return 1

    def prepare(self, say: Say) -> Readied:
        self.exporter.preflight(self.out, self.study.name)
        say("prepare", "starting the server")
        self.server.start()
        say("prepare", f"loading {self.study.model.name} as it is configured now")
        served, applied = self._loaded(say)
        interface = self.server.interface()
        self._samples = self.samples_for(interface)
        self.load.prepare(interface, self._samples)
        say("check", "comparing served outputs with the model run directly")
        compared = self._answers.compare(self.server, served, self._samples)
        say("check", compared)
        if self.gate is not None:
            say("check", "asking for the answers that accuracy is measured by")
            if self.found is not None:
                self.server.apply(self.found)
            self._answers.ask_source(self.server)
        return Readied(
            compared=compared, instances=applied.instances, identity=self.server.identity()
        )

    def _loaded(self, say: Say) -> tuple[Candidate, Applied]:
        """The first candidate; or, where that does not load any more, the configuration that the
        model was found with: the first trial then fails, and others may take its place."""
        if self.found is not None:
            try:
                return self.baseline, self.server.apply(self.baseline)
            except ServerFailed as exc:
                say("prepare", f"the configuration in service does not load any more: {exc.rule}")
                if not self.server.alive():
                    self.server.start()
        found = self.found or self.baseline
        try:
            return found, self.server.apply(found)
        except CandidateFailed as exc:
            raise CandidateFailed(
                f"the model does not load as it is configured now: {exc.rule}",
                next_step=exc.next_step or "mend its config.pbtxt or model file, then run again",
            ) from exc

    def run(self, source: TrialSource) -> None:
        while (trial := source.next()) is not None:
            self.carry_out(trial, source)

    def carry_out(self, trial: Trial, source: TrialSource) -> None:
        """Measure one trial, and leave a server that lives."""
        state, reason = self._measured(trial, source)
        source.ended(trial.number, state, reason)
        if state is TrialState.FAILED and not self.server.alive():
            self.server.start()  # one that cannot be had again is no later candidate's fault

    def _measured(self, trial: Trial, source: TrialSource) -> tuple[TrialState, str]:
        """The candidate is blamed only for what the server did under it."""
        recorder = self._recorder(self._answers, source.measured, CHECKED_SAMPLES)
        recorder.again = partial(source.again, trial.number)
        phase = at_target(self.study, Contender(self.study, source.so_far()))
        try:
            recorder.take(self.server, trial, Purpose.TRIAL, phase)
        except NotBelieved as exc:
            return TrialState.INVALID, exc.rule
        except ServerFailed as exc:
            return TrialState.FAILED, str(exc)
        return TrialState.OK, ""

    def _recorder(self, answers: Answers, keep: Keep, checked: int | None = None) -> Recorder:
        """``checked``: on how many samples the answers are compared; None: on all."""
        measurer = Measurer(
            study=self.study, load=self.load, telemetry=self.telemetry, clock=self.clock
        )
        return Recorder(
            keep=keep,
            measurer=measurer,
            check_outputs=lambda server, candidate: answers.compare(
                server, candidate, self._samples[:checked]
            ),
            accuracy_drop=answers.drop,
        )

    # --------------------------------------------------------------------------------- the end
    def settle(self, overseer: Overseer) -> Settled:
        keep = partial(self.store.add_measurement, self.study_id)
        again = partial(overseer.say, "again")
        finals = Finals(
            study=self.study,
            study_id=self.study_id,
            store=self.store,
            server=self.server,
            recorder=_told(self._recorder(self._answers, keep, CHECKED_SAMPLES), again),
            clock=self.clock,
            say=overseer.say,
            warn=overseer.warn,
            decision=overseer.decision,
            seconds_left=overseer.seconds_left,
        )
        finals.run()
        exported = self._answers.anew()
        conclusion = Conclusion(
            study=self.study,
            study_id=self.study_id,
            store=self.store,
            exporter=self.exporter,
            recorder=_told(self._recorder(exported, keep), again),
            check_outputs=lambda server, candidate: exported.compare(
                server, candidate, self._samples
            ),
            documents=self.documents,
            clock=self.clock,
            say=overseer.say,
            out=self.out,
            work=self.work,
            planned=overseer.planned,
        )
        overseer.say("confirm", "ending the server that was tuned")
        self.server.close()
        return conclusion.settle()

    def close(self) -> None:
        self.server.close()


def _told(recorder: Recorder, again: Callable[[str], None]) -> Recorder:
    """One that says why it measures again."""
    recorder.again = again
    return recorder


@dataclass(slots=True)
class Contender:
    """Whether a candidate that clearly meets the SLA could still be the pick, by the trials that
    are ``known``: no other that meets it is clearly faster. Where speed is not what counts, each
    could."""

    study: Study
    known: Sequence[Trial]
    _decided: Decision | None = field(default=None, init=False)

    def __call__(self, intervals: Mapping[str, Interval], instances: int) -> bool:
        if self.study.pick not in (PickRule.CHEAPEST, PickRule.FASTEST):
            return True
        metric = self.study.sla.tightest_metric
        own = intervals.get(metric)
        if own is None:
            return True
        for rival in self._decision().judged:
            known = rival.estimate(metric)
            faster = known is not None and known.interval and known.interval.high < own.low
            dearer = rival.measurement.instances > instances
            if rival.meets and faster and (not dearer or self.study.pick is PickRule.FASTEST):
                return False
        return True

    def _decision(self) -> Decision:
        """Taken once, and only where a window is looked at."""
        if self._decided is None:
            self._decided = decision_of(self.study, self.known)
        return self._decided
