"""A night of a schedule: the order of its steps.

The champion is measured first, and held against the night before (`autotune.core.drift`). Where it
still wins, that is all. Else the search goes on, with what earlier nights measured; tonight's pick
challenges the champion in interleaved runs, and what comes of it (`autotune.core.challenge`) is
told, proposed or promoted, as the schedule says. Each step is in the run's record before the next;
a night that is carried out again, after its process died, measures nothing twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from autotune.core.challenge import Verdict, judge_challenge
from autotune.core.comparison import Comparison
from autotune.core.decision import Decision
from autotune.core.drift import Drift, Observation, drift_between
from autotune.core.errors import AutotuneError, InputRefused, Interrupted, LoadFailed, MachineBusy
from autotune.core.judged import Judged, judge_trial
from autotune.core.notices import Event
from autotune.core.plain import finite
from autotune.core.promotions import Promotion, PromotionState
from autotune.core.schedules import NightRun, Outcome, Policy, RunState, Schedule
from autotune.core.sla import Outcome as Kept
from autotune.core.study import PickRule, Study
from autotune.core.trial import Trial, TrialState, numbered
from autotune.ports import Clock
from autotune.retune import telling
from autotune.retune.past import Past, settled
from autotune.service_ports import ScheduleStore
from search_spaces.candidate import Candidate

CHAMPION = 0
"""The number of its trial."""
ROUNDS = 3
"""Rounds of A B B A between the champion and a challenger."""
RUNS_PER_ROUND = 4
_AROUND_RUN_S = 4.0
_START_S = 20.0
LOOKED_BACK = 30

Tell: TypeAlias = Callable[[Event, str, str, Mapping[str, Any]], None]
"""Puts a notice into the outbox: event, title, text, and all of it as plain data."""


class WindowOver(Interrupted):
    """The maintenance window is over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Weighing:
    """The champion's trial, just measured in study ``study_id`` on what ``environment`` tells; the
    studies before it, newest first; and how it was measured ``before`` (None: never, under this
    workload)."""

    trial: Trial
    study: Study
    study_id: int
    environment: Mapping[str, Any]
    pasts: Sequence[Past]
    before: Observation | None


Weigh: TypeAlias = Callable[[Weighing], str | None]
"""Why the night ends with the champion's trial; None: it goes on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tonight:
    """What the night's study came to. ``held``: it ended with the champion's trial, for the reason
    ``why``."""

    study: Study
    study_id: int
    trials: Sequence[Trial]
    decision: Decision
    why: str
    held: bool


class Work(Protocol):
    """What a night does outside of itself."""

    def tune(self, weigh: Weigh) -> Tonight:
        """Run the night's study, or go on with the one that was begun; ``weigh`` is asked once the
        champion has been measured."""

    def compare(
        self, tonight: Tonight, number: int
    ) -> tuple[Sequence[Trial], Sequence[Comparison]]:
        """The champion and a trial in interleaved runs; all trials, with these runs."""

    def propose(self, tonight: Tonight, number: int, why: str) -> int:
        """The id of a promotion of the trial to the schedule's target, which may be there
        already."""

    def barred(self, candidate: Candidate) -> str:
        """Why a candidate is not promoted without anyone asking; empty if it may be."""

    def promote(self, promotion_id: int) -> Promotion:
        """Put it into service, or leave there what was."""


@dataclass(slots=True, kw_only=True)
class Night:
    """Carries out ``run`` of ``schedule``, whose study tunes ``model``. ``window`` is what a
    deadline, in seconds since the epoch (None: none), raises `WindowOver` within."""

    schedule: Schedule
    run: NightRun
    model: str
    runs: ScheduleStore
    work: Work
    tell: Tell
    clock: Clock
    window: Callable[[float | None], AbstractContextManager[None]]
    _summary: dict[str, Any] = field(default_factory=dict, init=False)

    def carry_out(self) -> NightRun:
        """The run as it has ended. Interrupted and errors pass, once they are recorded."""
        if self.run.state in (RunState.DONE, RunState.MISSED):
            return self.run
        self._summary = dict(self.run.summary)
        deadline = self.deadline
        if deadline is not None and self.clock.now() >= deadline:
            begun = self.run.started_at is not None
            return self._ended(
                RunState.STOPPED if begun else RunState.MISSED,
                f"its window was over at {telling.when(deadline)}, before it could"
                + (" be taken up again; what was measured is kept" if begun else " begin"),
            )
        self._update(state=RunState.RUNNING)
        try:
            outcome, why = self._outcome(deadline)
        except WindowOver as exc:
            return self._ended(RunState.STOPPED, f"{exc.rule}; what was measured is kept")
        except MachineBusy:
            self._update(state=RunState.QUEUED)
            raise
        except KeyboardInterrupt as exc:
            rule = exc.rule if isinstance(exc, Interrupted) else "interrupted"
            self._ended(RunState.STOPPED, f"{rule}; what was measured is kept")
            raise
        except Exception as exc:
            self._failed(exc)
            raise
        return self._ended(RunState.DONE, why, outcome)

    @property
    def deadline(self) -> float | None:
        """None too of a run that has come to a promotion: that is not left half done."""
        minutes = self.schedule.window_minutes
        if minutes is None or self.run.promotion_id is not None:
            return None
        return self.run.scheduled_for + 60 * minutes

    def minutes_for(self, study: Study) -> float | None:
        """How long the study may take, so that the challenge fits into the window after it; half
        of what is left at least. None: as long as its budget. WindowOver where nothing is left."""
        if self.deadline is None:
            return None
        left_s = self.deadline - self.clock.now()
        if left_s <= 0:
            raise WindowOver("the maintenance window is over")
        return max(left_s - challenge_s(study), left_s / 2) / 60

    # ------------------------------------------------------------------------------- the steps
    def _outcome(self, deadline: float | None) -> tuple[Outcome, str]:
        with self.window(deadline):
            tonight = self.work.tune(self.weigh)
            self._update(study_id=tonight.study_id)
            self._refuse_unmeasured(tonight)
            pick = tonight.decision.pick
            if tonight.held or pick is None or pick == CHAMPION:
                return self._without_challenger(tonight)
            trials, comparisons = self._compared(tonight, pick)
        return self._challenged(tonight, pick, trials, comparisons)

    def weigh(self, weighing: Weighing) -> str | None:
        """Tell of a drift, and whether the champion still wins."""
        trial, study = weighing.trial, weighing.study
        champion = judge_trial(trial, study.sla)
        self._add(champion=telling.told_of(trial, champion, study.sla))
        if trial.state is TrialState.FAILED:
            return None  # someone must take its place
        if champion is None:
            return f"the champion could not be measured: {trial.reason or 'nothing is believed'}"
        drift = self._drift(weighing)
        told = "drift" in self._summary
        self._add(drift=None if drift is None else drift.to_json())
        if drift is not None and drift.drifted:
            if not told:
                self._notify(
                    Event.DRIFT,
                    telling.drifted(self.schedule, self.model, weighing.study_id, drift, champion),
                    weighing.study_id,
                )
            return None
        still = settled(trial.candidate, study, weighing.pasts, weighing.environment)
        if drift is None or not still or not champion.meets:
            return None
        return (
            "the champion still wins: it is what it was, and so is all that is recorded around it"
        )

    def _drift(self, weighing: Weighing) -> Drift | None:
        before, study = weighing.before, weighing.study
        now = Observation.of(weighing.trial, weighing.study_id, weighing.environment)
        if before is None or now is None:
            return None
        return drift_between(before, now, study.sla, timeout_s=study.workload.timeout_s)

    def _refuse_unmeasured(self, tonight: Tonight) -> None:
        champion = numbered(tonight.trials, CHAMPION)
        if champion is None or champion.state is TrialState.INVALID:
            raise LoadFailed(
                tonight.why or "the champion could not be measured",
                next_step="free this machine of other work for the time of the schedule",
            )

    def _without_challenger(self, tonight: Tonight) -> tuple[Outcome, str]:
        champion = self._champion(tonight.trials, tonight.study)
        self._add(searched=_searched(tonight))
        if tonight.held or (champion is not None and champion.meets):
            return Outcome.HOLDS, tonight.why if tonight.held else f"no other wins: {tonight.why}"
        return self._lost(tonight, champion)

    def _lost(self, tonight: Tonight, champion: Judged | None) -> tuple[Outcome, str]:
        told = telling.lost(self.schedule, self.model, tonight.study_id, tonight.decision, champion)
        self._notify(Event.SLA_LOST, told, tonight.study_id)
        return Outcome.NO_PICK, told[0]

    # ---------------------------------------------------------------------------- the challenge
    def _compared(
        self, tonight: Tonight, pick: int
    ) -> tuple[Sequence[Trial], Sequence[Comparison]]:
        """A champion that failed under load cannot be run against anything."""
        champion = numbered(tonight.trials, CHAMPION)
        if champion is None or champion.measurement is None:
            return tonight.trials, ()
        try:
            return self.work.compare(tonight, pick)
        except LoadFailed as exc:
            self._add(not_compared=str(exc))
            return tonight.trials, ()

    def _challenged(
        self, tonight: Tonight, pick: int, trials: Sequence[Trial], runs: Sequence[Comparison]
    ) -> tuple[Outcome, str]:
        study = tonight.study
        trial, first = numbered(trials, pick), numbered(trials, CHAMPION)
        challenger = None if trial is None else judge_trial(trial, study.sla)
        if trial is None or first is None or challenger is None:
            raise LoadFailed(f"trial {pick} of study {tonight.study_id} is not believed any more")
        champion = judge_trial(first, study.sla)
        verdict = judge_challenge(
            champion,
            challenger,
            runs,
            margin=self.schedule.margin,
            sla=study.sla,
            cheapest=study.pick is PickRule.CHEAPEST,
        )
        self._add(
            challenger=telling.told_of(trial, challenger, study.sla),
            comparisons=[_comparison(each) for each in runs],
            verdict=verdict.to_json(),
            searched=_searched(tonight),
        )
        if verdict.promoted:
            return self._act(tonight, first, challenger, verdict)
        if champion is None or champion.outcome is Kept.MISSES:
            return self._lost(tonight, champion)
        return Outcome.HOLDS, f"trial {pick} was tried against the champion: {verdict.words}"

    def _act(
        self, tonight: Tonight, champion: Trial, challenger: Judged, verdict: Verdict
    ) -> tuple[Outcome, str]:
        outcome, promotion_id, note = self._by_policy(tonight, challenger, verdict)
        self._add(note=note)
        words = telling.better(
            self.schedule,
            self.model,
            tonight.study_id,
            champion=champion,
            challenger=challenger,
            verdict=verdict,
            outcome=outcome,
            promotion_id=promotion_id,
            note=note,
        )
        # Of what did not hold in service the promotion itself tells.
        if outcome is not Outcome.ROLLED_BACK and not self._told_before(outcome, challenger):
            self._notify(Event.BETTER, words, tonight.study_id)
        return outcome, "; ".join(filter(None, (words[0], note)))

    def _by_policy(
        self, tonight: Tonight, challenger: Judged, verdict: Verdict
    ) -> tuple[Outcome, int | None, str]:
        """What came of it, the promotion if there is one, and a note."""
        policy = self.schedule.policy
        if policy is Policy.REPORT:
            return Outcome.BETTER, None, ""
        barred = self.work.barred(challenger.trial.candidate)
        if barred:
            return Outcome.BETTER, None, barred
        promotion_id = None
        try:
            promotion_id = self.work.propose(tonight, challenger.number, verdict.words)
            self._update(promotion_id=promotion_id)
            if policy is Policy.PROPOSE:
                return Outcome.PROPOSED, promotion_id, ""
            promotion = self.work.promote(promotion_id)
        except InputRefused as exc:
            return Outcome.BETTER, promotion_id, f"it could not be promoted: {exc.rule}"
        done = promotion.state is PromotionState.DONE
        return (Outcome.PROMOTED if done else Outcome.ROLLED_BACK), promotion_id, promotion.reason

    def _told_before(self, outcome: Outcome, challenger: Judged) -> bool:
        """Whether the night before came to the very same, and said so."""
        if outcome not in (Outcome.BETTER, Outcome.PROPOSED):
            return False
        runs = self.runs.runs(schedule=self.schedule.name, limit=LOOKED_BACK)
        before = next((r for r in runs if r.id != self.run.id and r.state is RunState.DONE), None)
        if before is None or before.outcome is not outcome:
            return False
        told = before.summary.get("challenger") or {}
        same_note = before.summary.get("note", "") == self._summary.get("note", "")
        return same_note and told.get("candidate") == challenger.trial.candidate.to_json()

    # -------------------------------------------------------------------------------- the record
    @staticmethod
    def _champion(trials: Sequence[Trial], study: Study) -> Judged | None:
        trial = numbered(trials, CHAMPION)
        return None if trial is None else judge_trial(trial, study.sla)

    def _add(self, **more: Any) -> None:
        self._summary |= finite(more)
        self._update(summary=self._summary)

    def _update(self, **changes: Any) -> None:
        self.runs.update_run(self.run.id, **changes)

    def _ended(self, state: RunState, why: str, outcome: Outcome | None = None) -> NightRun:
        self._update(state=state, reason=why, outcome=outcome)
        return self.runs.run(self.run.id)

    def _failed(self, error: Exception) -> None:
        known = isinstance(error, AutotuneError)
        words = str(error) if known else f"{type(error).__name__}: {error}"
        self._ended(RunState.FAILED, words)
        study_id = self.runs.run(self.run.id).study_id
        told = telling.failed(self.schedule, self.model, study_id, words)
        self._notify(Event.FAILURE, told, study_id)

    def _notify(self, event: Event, told: tuple[str, str], study_id: int | None) -> None:
        title, text = told
        payload = telling.payload(self.schedule, self.model, self.run.id, study_id, self._summary)
        self.tell(event, title, text, payload)


def challenge_s(study: Study) -> float:
    """About how long the interleaved runs take, in seconds."""
    work = study.workload
    run_s = (study.finals.measure_s or work.measure_s) + min(work.warmup_s, 2.0)
    return _START_S + ROUNDS * RUNS_PER_ROUND * (run_s + work.saturation_s + _AROUND_RUN_S)


def _searched(tonight: Tonight) -> dict[str, Any]:
    return {"trials": len(tonight.trials), "why": tonight.why}


def _comparison(comparison: Comparison) -> dict[str, Any]:
    return {
        "metric": comparison.metric,
        "effect": comparison.effect,
        "interval": [comparison.interval.low, comparison.interval.high],
        "relation": str(comparison.relation),
        "pairs": comparison.pairs,
    }
