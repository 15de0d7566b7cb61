"""The end of a study: decide, confirm the pick from its exported files, and export it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from autotune.core.decision import Decision, without_unconfirmed
from autotune.core.errors import LoadFailed, ServerFailed
from autotune.core.measurement import Measurement, Purpose
from autotune.core.records import DecisionRecord, StudyRecord
from autotune.core.searched import Searched
from autotune.core.sla import Outcome, judge
from autotune.core.study import Study
from autotune.core.trial import Trial, TrialState, numbered
from autotune.ports import Applied, Clock, Exporter, ExportFile, Server, TrialStore
from autotune.tuner import phases
from autotune.tuner.crashes import despite_a_crash
from autotune.tuner.deciding import decision_of
from autotune.tuner.phases import Phase
from autotune.tuner.recorder import NotBelieved, Recorder, Say

CONFIRMATIONS = 3
"""How many picks may fail their confirmation before the study gives up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Documents:
    """Writes what stands beside an exported model, from the finished study; where there is no
    pick, what tells of the study alone."""

    write: Callable[[StudyRecord, Sequence[Trial], DecisionRecord], Sequence[ExportFile]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """What a study came to; ``notes`` say why a pick was passed over. ``report`` is where the
    report was written."""

    trials: Sequence[Trial]
    decision: Decision
    exported_to: Path | None
    report: Path | None
    notes: tuple[str, ...] = ()


@dataclass(slots=True, kw_only=True)
class Conclusion:
    """Takes the decision on what is stored. ``work`` is scratch on the same disk as ``out``;
    ``planned`` is how many candidates there were to try."""

    study: Study
    study_id: int
    store: TrialStore
    exporter: Exporter
    recorder: Recorder
    documents: Documents
    clock: Clock
    say: Say
    out: Path
    work: Path
    planned: int
    _passed_over: list[str] = field(default_factory=list, init=False)

    def settle(self) -> Settled:
        """Export the first pick that keeps the SLA from its exported files, or none."""
        for _ in range(CONFIRMATIONS):
            trials, decision = self._decide()
            pick = numbered(trials, decision.pick)
            if pick is None or self._confirmed(pick):
                break
            self._confirm(pick)
        trials, decision = self._decide()
        pick = numbered(trials, decision.pick)
        notes = list(self._passed_over)
        if pick is not None and not self._confirmed(pick):
            notes.append(
                f"{CONFIRMATIONS} picks failed their confirmation, and trial {pick.number}, the"
                " next, was not tried: nothing is exported"
            )
            pick, decision = None, self._taken(without_unconfirmed(trials, self.study.sla))
        exported_to, report = self._write(decision, pick)
        return Settled(
            trials=trials,
            decision=decision,
            exported_to=exported_to,
            report=report,
            notes=tuple(notes),
        )

    def _confirmed(self, pick: Trial) -> bool:
        """Measured from its exported files, and in all of the neighbourhood that is asked for."""
        measured = {probe.traffic for probe in pick.of(Purpose.ROBUST)}
        wanted = {phase.traffic for phase in phases.neighbourhood(self.study)}
        return pick.confirmation is not None and wanted <= measured

    def _decide(self) -> tuple[list[Trial], Decision]:
        ended = [t for t in self.store.trials(self.study_id) if t.state is not TrialState.RUNNING]
        return ended, self._taken(ended)

    def _taken(self, trials: Sequence[Trial]) -> Decision:
        stored = self.store.trials(self.study_id)
        searched = Searched.of(stored, self.planned, self.study.budget.minutes)
        return decision_of(self.study, trials, self.store.comparisons(self.study_id), searched)

    # -------------------------------------------------------------------------------- confirm
    def _confirm(self, pick: Trial) -> None:
        """Load the pick from its exported files in a strict server, and measure it once more; and
        in the neighbourhood of the workload, where the study asks for that. One that cannot be
        served so is passed over."""
        self.say("confirm", f"confirming trial {pick.number} from its exported files")
        staged = self.work / f"confirm-{pick.number}"
        self.exporter.write(pick.candidate, staged, self.study.name, ())
        strict = self.exporter.strict_server(staged)
        try:
            applied = despite_a_crash(
                lambda: self._served(strict, pick), strict, partial(self.say, "again")
            )
            if pick.confirmation is None:
                target = phases.at_target(self.study)
                measured = self._measure(strict, pick, applied, Purpose.CONFIRM, target)
            else:
                measured = pick.confirmation
            if judge(measured, self.study.sla).outcome is not Outcome.MISSES:
                self._neighbourhood(strict, pick, applied)
        except ServerFailed as exc:
            reason = f"trial {pick.number} cannot be served from its exported files: {exc.rule}"
            self.say("confirm", reason)
            self._passed_over.append(reason)
            self.store.end_trial(self.study_id, pick.number, TrialState.FAILED, reason)
        finally:
            strict.close()

    def _served(self, strict: Server, pick: Trial) -> Applied:
        strict.start()
        applied = strict.apply(pick.candidate)
        self.recorder.check_outputs(strict, pick.candidate)
        return applied

    def _neighbourhood(self, strict: Server, pick: Trial, applied: Applied) -> None:
        """Measure what is not measured yet of the neighbourhood, until a point misses the SLA."""
        measured = {probe.traffic for probe in pick.of(Purpose.ROBUST)}
        for phase in phases.neighbourhood(self.study):
            if phase.traffic in measured:
                continue
            shown = f"{phase.traffic.qps:.1f}/s, cv {phase.traffic.cv}"
            self.say("robust", f"trial {pick.number} in the neighbourhood: {shown}")
            probe = self._measure(strict, pick, applied, Purpose.ROBUST, phase)
            if judge(probe, self.study.sla).outcome is Outcome.MISSES:
                return

    def _measure(
        self, strict: Server, pick: Trial, applied: Applied, purpose: Purpose, phase: Phase
    ) -> Measurement:
        try:
            return self.recorder.take(strict, pick, purpose, phase, applied)
        except NotBelieved as exc:
            raise LoadFailed(
                f"trial {pick.number} could not be confirmed: {exc.rule}",
                next_step="free this machine of other work, then go on with --resume; `autotune"
                f" show {self.study.name}` tells what was found",
            ) from exc

    # ---------------------------------------------------------------------------------- write
    def _write(self, decision: Decision, pick: Trial | None) -> tuple[Path | None, Path | None]:
        """Export the pick with its documents; without one, leave the report in ``work``."""
        record = DecisionRecord(
            study_id=self.study_id,
            taken_at=self.clock.now(),
            rule=self.study.pick,
            pick=None if pick is None else pick.number,
            detail=decision.to_json(),
            exported_to=None if pick is None else str(self.out.absolute()),
        )
        study = self.store.study(str(self.study_id))
        trials = self.store.trials(self.study_id, samples=True)
        files = self.documents.write(study, trials, record)
        if pick is None:
            self.store.add_decision(record)
            return None, self._leave(files)
        self.say("export", f"writing trial {pick.number} to {self.out}")
        self.exporter.write(pick.candidate, self.out, self.study.name, files)
        self.store.add_decision(record)
        return self.out, None

    def _leave(self, files: Sequence[ExportFile]) -> Path | None:
        self.work.mkdir(parents=True, exist_ok=True)
        paths = [self.work / file.name for file in files]
        for path, file in zip(paths, files, strict=True):
            path.write_text(file.text, encoding="utf-8")
        return next(iter(paths), None)
