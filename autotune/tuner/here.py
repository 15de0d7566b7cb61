"""A study carried out on one device of one machine: its own server and load, a trial at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from autotune.core.decision import Decision
from autotune.core.errors import CandidateFailed, ServerFailed
from autotune.core.intervals import Interval
from autotune.core.measurement import Purpose
from autotune.core.study import PickRule, Study
from autotune.core.trial import Trial, TrialState
from autotune.ports import Applied, Exporter, TrialSource
from autotune.tuner.conclude import Conclusion, Documents, Settled
from autotune.tuner.crashes import despite_a_crash, revive
from autotune.tuner.deciding import decision_of
from autotune.tuner.phases import at_target
from autotune.tuner.recorder import NotBelieved, Say
from autotune.tuner.rig import Rig
from autotune.tuner.venue import Overseer, Readied
from search_spaces.candidate import Candidate

CHECKED_SAMPLES = 4
"""Samples compared at every later candidate; the first one is compared on all of them."""


@dataclass(slots=True, kw_only=True)
class Here(Rig):
    """Implements `Venue`. ``out`` receives the export; ``work`` is scratch on the same disk."""

    exporter: Exporter
    documents: Documents
    out: Path
    work: Path

    @property
    def side_by_side(self) -> int:
        return 1

    def prepare(self, say: Say) -> Readied:
        self.exporter.preflight(self.out, self.study.name)
        tell = partial(say, "prepare")
        return despite_a_crash(lambda: self._readied(say), self.server, tell)

    def _readied(self, say: Say) -> Readied:
        say("prepare", "starting the server")
        self.server.start()
        say("prepare", f"loading {self.study.model.name} as it is configured now")
        served, applied = self._loaded(say)
        say("check", "comparing served outputs with the model run directly")
        compared = self.prepare_load(served)
        say("check", compared)
        if self.gate is not None:
            say("check", "asking for the answers that accuracy is measured by")
            if self.found is not None:
                self.server.apply(self.found)
            self.answers.ask_source(self.server)
        return Readied(
            compared=compared, instances=applied.instances, identity=self.server.identity()
        )

    def _loaded(self, say: Say) -> tuple[Candidate, Applied]:
        """The first candidate; or, where that does not load any more, the configuration that the
        model was found with: the first trial then fails, and others may take its place."""
        tell = partial(say, "prepare")
        if self.found is not None:
            try:
                return self.baseline, despite_a_crash(
                    lambda: self.server.apply(self.baseline), self.server, tell
                )
            except ServerFailed as exc:
                say("prepare", f"the configuration in service does not load any more: {exc.rule}")
                revive(self.server, tell)
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
        if state is TrialState.FAILED:
            revive(self.server)  # one that cannot be had again is no later candidate's fault

    def _measured(self, trial: Trial, source: TrialSource) -> tuple[TrialState, str]:
        """The candidate is blamed only for what the server did under it."""
        again = partial(source.again, trial.number)
        recorder = self.recorder(source.measured, again, checked=CHECKED_SAMPLES)
        phase = at_target(self.study, Contender(self.study, source.so_far()))
        try:
            recorder.take(self.server, trial, Purpose.TRIAL, phase)
        except NotBelieved as exc:
            return TrialState.INVALID, exc.rule
        except ServerFailed as exc:
            return TrialState.FAILED, str(exc)
        return TrialState.OK, ""

    # --------------------------------------------------------------------------------- the end
    def settle(self, overseer: Overseer) -> Settled:
        self.finals(
            overseer.say,
            overseer.warn,
            overseer.decision,
            seconds_left=overseer.seconds_left,
            checked=CHECKED_SAMPLES,
        ).run()
        exported = self.answers.anew()
        conclusion = Conclusion(
            study=self.study,
            study_id=self.study_id,
            store=self.store,
            exporter=self.exporter,
            recorder=self.recorder_of_stored(overseer.say, answers=exported),
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
