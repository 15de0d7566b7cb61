"""Run a study: check the outputs, measure candidates, decide, export and confirm.

What has been measured is in the store before anything is decided on it, so that a run that is
killed at any moment goes on from there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

from autotune.core.decision import Decision
from autotune.core.measurement import Measurement
from autotune.core.memory import cannot_fit, ran_out
from autotune.core.records import EXECUTOR, FOUND, HELD, PLANNED, DecisionRecord, StudyState
from autotune.core.sla import judge
from autotune.core.study import Study
from autotune.core.trial import Trial, TrialState, numbered
from autotune.core.variants import VariantRecord
from autotune.core.wording import unknown_words
from autotune.ports import (
    Clock,
    Progress,
    ProgressListener,
    Search,
    TrialOutcome,
    TrialStore,
)
from autotune.tuner.answer import Answer
from autotune.tuner.deciding import decision_of
from autotune.tuner.finals import PAIRS
from autotune.tuner.venue import Overseer, Venue
from search_spaces.candidate import Candidate

CONFIRM_TRIALS = 1.5
"""What the confirmation takes, in trials: it starts a server of its own."""
RESERVE = 0.4
"""The largest share of the budget's minutes that is kept for what follows the search."""


_UNLESS = ": it plays no part unless another trial knows it"


def _never(_: Trial) -> str | None:
    return None


@dataclass(slots=True, kw_only=True)
class StudyRunner:
    """One run of one study, carried out at its ``venue``, whose `TrialSource` it is.

    ``planned`` is how many candidates there are to try: as many as the budget of trials, or all
    that there are, which is what the space ``holds`` (None: more than can be counted). ``variants``
    is what came of those that the space asks for, before any of them is served. ``found`` is the
    configuration that the model was found with, where trial 0 is another (None: it is the same).

    ``known`` are trials of earlier studies, for the search to learn from, of which ``first`` come
    right after trial 0. ``stop_after`` is asked once after each trial whether the study ends with
    it, and says why: it then ends without finals, confirmation and export."""

    study: Study
    study_id: int
    store: TrialStore
    search: Search
    venue: Venue
    environment: Callable[[], Mapping[str, Any]]
    clock: Clock
    listen: ProgressListener
    planned: int
    holds: int | None = None
    variants: Sequence[VariantRecord] = ()
    search_log: Path | None = None
    warnings: tuple[str, ...] = ()
    found: Candidate | None = None
    known: Sequence[Trial] = ()
    first: Sequence[Candidate] = ()
    stop_after: Callable[[Trial], str | None] = _never
    _began: float = field(default=0.0, init=False)
    _before_s: float = field(default=0.0, init=False)
    _load_before_s: float = field(default=0.0, init=False)
    _trials: list[Trial] = field(default_factory=list, init=False)
    _measuring: dict[int, _Measuring] = field(default_factory=dict, init=False)
    _measured_s: list[float] = field(default_factory=list, init=False)
    _decided: Decision | None = field(default=None, init=False)
    _warned: list[str] = field(default_factory=list, init=False)
    _enough: str | None = field(default=None, init=False)
    _used_up: str | None = field(default=None, init=False)

    def run(self) -> Answer:
        """Come to an answer. An AutotuneError means that the study could not; what it had
        measured is stored, and its state says why it ended."""
        self._began = self.clock.monotonic()
        try:
            self._resume()
            self._prepare()
            stopped_because = self._search()
            self._settle_unknown()
            if self._enough is not None:
                return self._hold(self._enough)
            return self._conclude(stopped_because)
        except KeyboardInterrupt as exc:
            self._end(StudyState.INTERRUPTED, str(exc) or "interrupted")
            raise
        except Exception as exc:
            self._end(StudyState.FAILED, str(exc) or type(exc).__name__)
            raise

    @property
    def has_measured(self) -> bool:
        """Whether anything is stored that a resumed run would go on from."""
        stored = self.store.trials(self.study_id)
        return any(t.measurements or t.state is not TrialState.RUNNING for t in stored)

    def _end(self, state: StudyState, reason: str) -> None:
        self.store.set_study_state(self.study_id, state, reason)

    # --------------------------------------------------------------------------------- prepare
    def _resume(self) -> None:
        """Tell the search what an earlier run of this study has measured."""
        self.store.set_study_state(self.study_id, StudyState.RUNNING)
        before = self.store.study(str(self.study_id)).environment or {}
        self._warned = list(dict.fromkeys((*self.warnings, *before.get("warnings", ()))))
        told = {**before, **self.environment(), PLANNED: self.planned}
        if self.found is not None:
            told[FOUND] = self.found.to_json()
        self.store.set_environment(self.study_id, told)
        if self.variants:
            stored = self.store.variants(self.study_id)
            self.store.set_variants(self.study_id, _with_served(self.variants, stored))
        self.search.recall([(t.candidate, self._outcome(t)) for t in self.known], self.first)
        for trial in self.store.trials(self.study_id):
            if trial.state is TrialState.RUNNING:
                continue
            self._add(trial)
            self.search.tell(trial.candidate, self._outcome(trial))
            # Not from when it began and ended: the wall clock may have been set between.
            taken_s = sum(m.reload_s + _load_s(m) for m in trial.measurements)
            self._before_s += taken_s / _side_by_side(before)
            self._load_before_s += sum(map(_load_s, trial.measurements))

    def _prepare(self) -> None:
        readied = self.venue.prepare(self._say)
        found = {} if self.found is None else {FOUND: self.found.to_json()}
        self.store.set_environment(
            self.study_id,
            {
                **self.environment(),
                **readied.identity,
                "outputs": readied.compared,
                "warnings": self._warned,
                "instances_at_start": readied.instances,
                PLANNED: self.planned,
                **found,
            },
        )

    # ---------------------------------------------------------------------------------- search
    def _search(self) -> str:
        """Have the venue measure what the search suggests; says why no more was measured."""
        self._enough = self.stop_after(self._trials[-1]) if self._trials else None
        self.venue.run(self)
        return self._used_up or self._all_tried()

    def next(self) -> Trial | None:
        """One that is ruled out unmeasured ends here, and the one after it is looked at."""
        while (candidate := self._candidate()) is not None:
            trial = self._begun(candidate)
            too_large = cannot_fit(candidate, self._trials)
            if too_large is None:
                return trial
            self.ended(trial.number, TrialState.PRUNED, too_large)
        return None

    def _candidate(self) -> Candidate | None:
        """None where there is none: for good, unless what is being measured changes that."""
        self._used_up = self._why_not_another()
        if self._used_up is not None:
            return None
        return self.search.ask([each.candidate for each in self._measuring.values()])

    def _why_not_another(self) -> str | None:
        budget, under_way = self.study.budget, len(self._measuring)
        if self._enough is not None:
            return self._enough
        if self._counted() + under_way >= budget.trials:
            return f"the budget is used up: trials: {budget.trials}"
        some = bool(self._trials) or under_way > 0
        if some and self._spent_s() + self._still_s(1, self._one_s()) > budget.minutes * 60:
            return f"the next trial would not fit into the budget of {budget.minutes:g} min"
        return None

    def _all_tried(self) -> str:
        self._plan(len(self._trials))
        or_not = " or ruled out" if self._ruled_out() else ""
        how = "tried" if self._unmeasured() else "measured"
        return f"every candidate of the space has been {how}{or_not}"

    def _begun(self, candidate: Candidate) -> Trial:
        """Under the first free number: an interrupted run may have left one that never ended."""
        taken = {*(trial.number for trial in self._trials), *self._measuring}
        number = next(n for n in count() if n not in taken)
        self.store.begin_trial(self.study_id, number, candidate)
        self._measuring[number] = _Measuring(candidate, self.clock.monotonic())
        self._say("trial", "measuring", trial=number + 1, candidate=candidate)
        return Trial(number=number, candidate=candidate, state=TrialState.RUNNING)

    def so_far(self) -> Sequence[Trial]:
        return tuple(self._trials)

    def again(self, number: int, reason: str) -> None:
        begun = self._measuring[number]
        lost_s = self.clock.monotonic() - begun.since
        self._measuring[number] = replace(begun, lost_s=lost_s)
        self._say("trial", f"measuring again: {reason}", trial=number + 1)

    def measured(self, number: int, measurement: Measurement) -> None:
        self.store.add_measurement(self.study_id, number, measurement)

    def ended(
        self, number: int, state: TrialState, reason: str = "", took_s: float | None = None
    ) -> None:
        self.store.end_trial(self.study_id, number, state, reason)
        begun = self._measuring.pop(number)
        trial = next(t for t in self.store.trials(self.study_id) if t.number == number)
        if state is not TrialState.PRUNED:
            since_s = self.clock.monotonic() - begun.since
            self._measured_s.append(since_s if took_s is None else took_s)
        self._add(trial)
        self._say("trial", str(state), trial=number + 1, candidate=begun.candidate, finished=trial)
        self._tell_unknown(trial)
        self.search.tell(begun.candidate, self._outcome(trial))
        if self._enough is None:
            self._enough = self.stop_after(trial)

    def _counted(self) -> int:
        """Trials that the budget has paid for. Those that were ruled out unmeasured are free, up to
        as many as the budget has: a search that finds nothing else comes to an end, too."""
        return len(self._trials) - min(self._ruled_out(), self.study.budget.trials)

    def _unmeasured(self) -> bool:
        """Whether one of those that were served has no measurement that can be believed."""
        served = (trial for trial in self._trials if trial.state is not TrialState.PRUNED)
        return any(trial.measurement is None for trial in served)

    def _ruled_out(self) -> int:
        return sum(trial.state is TrialState.PRUNED for trial in self._trials)

    def _plan(self, candidates: int) -> None:
        """There are more or fewer candidates to try than was thought, as it turns out."""
        if candidates != self.planned:
            self.planned = candidates
            self._note({PLANNED: candidates})

    def _tell_unknown(self, trial: Trial) -> None:
        """Of the first trial that was measured: which objectives cannot be had here."""
        measured = [each for each in self._trials if each.measurement is not None]
        if trial.measurement is None or measured != [trial]:
            return
        for metric in (objective.metric for objective in self.study.objectives):
            if trial.measurement.metric(metric) is None:
                why = unknown_words(metric, trial.measurement)
                told = f"the objective {metric} is unknown of trial {trial.number}{why}"
                self._warn(told + _UNLESS)

    def _settle_unknown(self) -> None:
        """The search is over, so that it can be said of those what part they play."""
        for at, told in enumerate(self._warned):
            if not told.endswith(_UNLESS):
                continue
            metric = told.removeprefix("the objective ").partition(" ")[0]
            measured = [t.measurement for t in self._trials if t.measurement is not None]
            known = any(each.metric(metric) is not None for each in measured)
            end = "" if known else ", and of every other: it plays no part"
            self._warned[at] = told.removesuffix(_UNLESS) + end
            self._note({"warnings": self._warned})

    def _outcome(self, trial: Trial) -> TrialOutcome:
        measurement = trial.measurement
        if measurement is None:
            unknown = tuple(None for _ in self.study.objectives)
            # A measured one of which nothing can be believed any more was doubted with its study.
            state = TrialState.INVALID if trial.state is TrialState.OK else trial.state
            return TrialOutcome(
                state=state, values=unknown, violations=None, infeasible=_infeasible(trial)
            )
        values = tuple(measurement.metric(objective.metric) for objective in self.study.objectives)
        verdict = judge(measurement, self.study.sla)
        return TrialOutcome(
            state=trial.state,
            values=values,
            violations=verdict.violations,
            infeasible=_infeasible(trial),
        )

    # -------------------------------------------------------------------------------- conclude
    def _hold(self, why: str) -> Answer:
        """End with what was measured: nothing is compared, confirmed or exported."""
        self._plan(len(self._trials))
        self._note({HELD: why})
        decision = self._decision()
        self.store.add_decision(
            DecisionRecord(
                study_id=self.study_id,
                taken_at=self.clock.now(),
                rule=self.study.pick,
                pick=decision.pick,
                detail=decision.to_json(),
            )
        )
        self.venue.close()
        self._end(StudyState.DONE, why)
        self._say("done", why)
        return self._answer(self._trials, decision, why)

    def _conclude(self, stopped_because: str) -> Answer:
        settled = self.venue.settle(
            Overseer(
                say=self._say,
                warn=self._warn,
                decision=self._decided_anew,
                seconds_left=lambda: self._budget_left_s() - CONFIRM_TRIALS * self._one_s(),
                planned=self.planned,
            )
        )
        why = "; ".join([stopped_because, *settled.notes])
        self._end(StudyState.DONE, why)
        self._trials = list(settled.trials)
        self._decided = settled.decision
        self._say("done", why)
        answer = self._answer(settled.trials, settled.decision, why)
        return replace(answer, exported_to=settled.exported_to, report=settled.report)

    def _answer(self, trials: Sequence[Trial], decision: Decision, why: str) -> Answer:
        return Answer(
            study=self.study,
            record=self.store.study(str(self.study_id)),
            trials=trials,
            decision=decision,
            exported_to=None,
            stopped_because=why,
            wall_s=self.clock.monotonic() - self._began,
            load_s=self._load_s(),
            warnings=tuple(self._warned),
            search_log=self.search_log,
            variants=self.store.variants(self.study_id),
        )

    def _warn(self, warning: str) -> None:
        """Of what came up on the way, once: stored at once, with the environment."""
        if warning not in self._warned:
            self._warned.append(warning)
            self._note({"warnings": self._warned})

    def _note(self, more: Mapping[str, Any]) -> None:
        """Add to what is stored of the environment."""
        before = self.store.study(str(self.study_id)).environment or {}
        self.store.set_environment(self.study_id, {**before, **more})

    def _add(self, trial: Trial) -> None:
        self._trials = sorted([*self._trials, trial], key=lambda each: each.number)
        self._decided = None
        free = trial.state is TrialState.PRUNED and self._ruled_out() <= self.study.budget.trials
        if free and (self.holds is None or self.planned < self.holds):
            self._plan(self.planned + 1)

    def _decision(self) -> Decision:
        """On the trials so far; taken anew only when there is another."""
        if self._decided is None:
            self._decided = decision_of(self.study, self._trials)
        return self._decided

    def _decided_anew(self) -> Decision:
        """On all that is stored: after the search, a trial's measurements are added to."""
        stored = self.store.trials(self.study_id)
        self._trials = [trial for trial in stored if trial.state is not TrialState.RUNNING]
        comparisons = self.store.comparisons(self.study_id)
        self._decided = decision_of(self.study, self._trials, comparisons)
        return self._decided

    # -------------------------------------------------------------------------------- progress
    def _load_s(self) -> float:
        """Seconds of load that this run's measurements took."""
        taken = (measured for trial in self._trials for measured in trial.measurements)
        return sum(map(_load_s, taken)) - self._load_before_s

    def _spent_s(self) -> float:
        return self._before_s + self.clock.monotonic() - self._began

    def _one_s(self) -> float:
        """What a trial takes: the mean so far, or its load by plan before there is one."""
        if self._measured_s:
            return sum(self._measured_s) / len(self._measured_s)
        work = self.study.workload
        return min(work.warmup_s, 2.0) + work.measure_s + work.saturation_s + 3

    def _likely_s(self, lost_s: Sequence[float]) -> float:
        """What a trial takes, by those that have ended and those that are measured once more, each
        after so many seconds that were lost."""
        one_s = self._one_s()
        again = [each + one_s for each in lost_s if each > 0]
        known = [*self._measured_s, *again]
        return sum(known) / len(known) if again else one_s

    def _still_s(self, trials: int, one_s: float) -> float:
        """What that many more trials in turn will take, and what follows the search: the canary,
        the finals, the capacity's probes and the confirmation, within `RESERVE`."""
        finals = self.study.finals
        after_s = CONFIRM_TRIALS * one_s
        if finals.candidates:
            runs = 1 + finals.candidates * (PAIRS * finals.rounds + finals.capacity / 2)
            after_s += runs * one_s
        return trials * one_s + min(after_s, RESERVE * self.study.budget.minutes * 60)

    def _left_s(self) -> float:
        trials = max(self.planned - len(self._trials), 0)
        in_turn = math.ceil(trials / self.venue.side_by_side)
        lost_s = [each.lost_s for each in self._measuring.values()]
        still_s = self._still_s(in_turn, self._likely_s(lost_s)) - min(lost_s, default=0.0)
        return max(0.0, min(still_s, self._budget_left_s()))

    def _budget_left_s(self) -> float:
        return self.study.budget.minutes * 60 - self._spent_s()

    def _say(
        self,
        stage: str,
        text: str,
        *,
        trial: int | None = None,
        candidate: Candidate | None = None,
        finished: Trial | None = None,
    ) -> None:
        self.listen(
            Progress(
                stage=stage,
                text=text,
                trial=trial,
                of=self.planned,
                best=numbered(self._trials, self._decision().pick),
                seconds_left=self._left_s(),
                candidate=candidate,
                finished=finished,
            )
        )


@dataclass(frozen=True, slots=True)
class _Measuring:
    """A trial that is being measured, ``since`` when by the monotonic clock; ``lost_s`` of that
    brought nothing: it is measured again."""

    candidate: Candidate
    since: float
    lost_s: float = 0.0


def _side_by_side(environment: Mapping[str, Any]) -> int:
    """How many trials were measured at once when this was recorded."""
    return int(environment.get(EXECUTOR, {}).get("side_by_side", 1))


def _infeasible(trial: Trial) -> bool:
    return trial.state is TrialState.PRUNED or ran_out(trial)


def _with_served(
    variants: Sequence[VariantRecord], stored: Sequence[VariantRecord]
) -> list[VariantRecord]:
    """With what an interrupted run has found of the same artefacts as served."""
    served = {(each.target, each.digest): each.served_drop for each in stored}
    return [replace(each, served_drop=served.get((each.target, each.digest))) for each in variants]


def _load_s(measured: Measurement) -> float:
    return measured.load.warmup_s + measured.load.window_s + measured.saturation_s
