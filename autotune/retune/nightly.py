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

from autotune.core.challenge import Verdict, judge_challenge, misses
from autotune.core.comparison import Comparison
from autotune.core.decision import Decision
from autotune.core.drift import Drift, Observation, drift_between
from autotune.core.errors import AutotuneError, InputRefused, Interrupted, LoadFailed, MachineBusy
from autotune.core.judged import Judged, judge_trial
from autotune.core.memory_noise import MemoryNoise
from autotune.core.notices import Event
from autotune.core.plain import finite
from autotune.core.promotions import Edited, Promotion, PromotionState
from autotune.core.schedules import NightRun, Outcome, Policy, RunState, Schedule, news
from autotune.core.sla import Outcome as Kept
from autotune.core.study import PickRule, Study
from autotune.core.trial import Trial, TrialState, numbered
from autotune.ports import Clock
from autotune.retune import telling
from autotune.retune.past import Past, settled
from autotune.retune.promote import unsure
from autotune.service_ports import ScheduleStore
from search_spaces.candidate import Candidate

CHAMPION = 0
"""The number of its trial."""
ROUNDS = 3
"""Rounds of A B B A between the champion and a challenger."""
RUNS_PER_ROUND = 4
_AROUND_RUN_S = 4.0
_START_S = 20.0
LOOKED_BACK = 50
"""So many runs are looked back on for what was told already."""
DRIFT_TOLD, EDIT_TOLD = "drift_told", "edit_told"
"""The keys of a night's summary that say so."""
BY_HAND = "by_hand"
"""The key of what somebody has put into service that is still there, as far as is known: nothing is
put over it without anyone asking."""

Tell: TypeAlias = Callable[[Event, str, str, Mapping[str, Any]], None]
"""Puts a notice into the outbox: event, title, text, and all of it as plain data."""


class WindowOver(Interrupted):
    """The maintenance window is over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Weighing:
    """The champion's trial, just measured in study ``study_id`` on what ``environment`` tells; the
    studies before it, newest first; and how it was measured ``before`` (None: never, under this
    workload).

    ``edited``: what is in service is not what was promoted, or found. Where it could be
    ``measured``, it is the trial's, and ``before`` may be of what it replaces: ``replaced``.
    ``looked``: it was held against what was promoted, or is found elsewhere. ``unseen``: why it
    could not be looked at."""

    trial: Trial
    study: Study
    study_id: int
    environment: Mapping[str, Any]
    pasts: Sequence[Past]
    before: Observation | None
    edited: Edited | None = None
    measured: bool = False
    replaced: bool = False
    looked: bool = False
    unseen: str = ""


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

    def begun(self, promotion_id: int) -> bool:
        """Whether someone has decided on it, or a process that was killed had begun to put it into
        service."""

    def edited_since(self, tonight: Tonight) -> Edited | None:
        """What somebody has changed in service by now, where the champion was promoted to; None
        where nothing was, or it cannot be looked at."""

    def promote(self, promotion_id: int) -> Promotion:
        """Put it into service, or leave there what was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Became:
    """What came of a challenger that won. ``unsure``: it is in service, and its check there left
    open whether it keeps its SLA."""

    outcome: Outcome
    promotion_id: int | None = None
    note: str = ""
    unsure: bool = False


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
            return self._too_late(f"its window was over at {telling.when(deadline)}, before it")
        self._update(state=RunState.RUNNING)
        try:
            outcome, why = self._outcome(deadline)
        except WindowOver as exc:
            return self._stopped(exc)
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
        return self._ended(RunState.DONE, "; ".join((why, *self._of_the_target())), outcome)

    def _of_the_target(self) -> list[str]:
        """What is in service there, where that is not the champion, or is not known."""
        edited, unseen = self._summary.get("edited"), self._summary.get("unseen")
        told = [f"what is in service could not be looked at: {unseen}"] if unseen else []
        if edited:
            told.append(edited["told"])
        return told

    @property
    def deadline(self) -> float | None:
        """None too of a run that has come to a promotion: that is seen to its end."""
        return None if self.run.promotion_id is not None else self._window_end

    @property
    def _window_end(self) -> float | None:
        minutes = self.schedule.window_minutes
        return None if minutes is None else self.run.scheduled_for + 60 * minutes

    def _too_late(self, why: str) -> NightRun:
        if self.run.started_at is not None:
            what = "could be taken up again; what was measured is kept"
            return self._ended(RunState.STOPPED, f"{why} {what}")
        missed = self._ended(RunState.MISSED, f"{why} could begin")
        if news(missed, self._earlier()):
            self._notify(Event.FAILURE, telling.missed(self.schedule.name, missed.reason), None)
        return missed

    def _stopped(self, over: WindowOver) -> NightRun:
        """Without an answer; that the champion misses the SLA is told all the same."""
        ended = self._ended(RunState.STOPPED, f"{over.rule}; what was measured is kept")
        champion = self._summary.get("champion") or {}
        if champion.get("sla") == Kept.MISSES and DRIFT_TOLD not in self._summary:
            told = telling.unanswered(
                self.schedule, self.model, ended.study_id, champion.get("tightest", ""), over.rule
            )
            self._notify(Event.SLA_LOST, told, ended.study_id)
        return ended

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
        """Tell of a drift, and of what somebody changed in service, and whether the champion still
        wins."""
        edited = weighing.edited
        self._add_in_service(weighing)
        held = self._weighed(weighing)
        if edited is not None:
            self._tell_edited(weighing, edited)
        return held

    def _add_in_service(self, weighing: Weighing) -> None:
        """In the place of what an earlier attempt at this night saw there."""
        if weighing.unseen and "edited" in self._summary:
            self._add(unseen=weighing.unseen)
            return
        edited = None if weighing.edited is None else finite(weighing.edited.to_json())
        if edited != self._summary.get("edited"):
            self._summary.pop(EDIT_TOLD, None)
        by_hand = edited or self._still_there(weighing)
        for key, seen in (("edited", edited), ("unseen", weighing.unseen), (BY_HAND, by_hand)):
            self._summary.pop(key, None)
            if seen:
                self._add(**{key: seen})

    def _still_there(self, weighing: Weighing) -> Mapping[str, Any] | None:
        """An edit of an earlier night, where tonight's look cannot have found that it is gone."""
        edit: Mapping[str, Any] | None = self._before().get(BY_HAND)
        if edit is None or weighing.unseen:
            return edit
        same = edit["candidate"] == finite(weighing.trial.candidate.to_json())
        return edit if same and not weighing.looked else None

    def _weighed(self, weighing: Weighing) -> str | None:
        trial, study = weighing.trial, weighing.study
        champion = judge_trial(trial, study.sla)
        self._add(champion=telling.told_of(trial, champion, study.sla))
        if trial.state is TrialState.FAILED:
            told = telling.fails(self.schedule, self.model, weighing.study_id, trial)
            self._tell_once(told, weighing.study_id)
            return None  # another must take its place
        if champion is None:
            return f"the champion could not be measured: {trial.reason or 'nothing is believed'}"
        drift = self._drift(weighing)
        self._add(drift=None if drift is None else drift.to_json())
        if drift is not None and drift.drifted:
            edited = weighing.edited if weighing.replaced else None
            told = telling.drifted(
                self.schedule, self.model, weighing.study_id, drift, champion, edited=edited
            )
            self._tell_once(told, weighing.study_id, edited=edited)
            return None
        still = settled(trial.candidate, study, weighing.pasts, weighing.environment)
        if drift is None or not still or not champion.meets:
            return None
        return (
            "the champion still wins: it is what it was, and so is all that is recorded around it"
        )

    def _tell_once(
        self, told: tuple[str, str], study_id: int, *, edited: Edited | None = None
    ) -> None:
        """That the champion is not what it was, however often the night is taken up. ``edited``:
        what somebody changed, which that tells of too."""
        if DRIFT_TOLD not in self._summary:
            self._notify(Event.DRIFT, told, study_id)
            self._add(**dict.fromkeys((DRIFT_TOLD, *([EDIT_TOLD] if edited else [])), True))

    def _tell_edited(self, weighing: Weighing, edited: Edited) -> None:
        """Unless tonight's drift was told with it, or the last night that saw it told the same."""
        if EDIT_TOLD in self._summary:
            return
        if not self._edit_known(edited):
            told = telling.changed_in_service(
                self.schedule,
                self.model,
                weighing.study_id,
                edited,
                measured=weighing.measured,
            )
            self._notify(Event.DRIFT, told, weighing.study_id)
        self._add(**{EDIT_TOLD: True})

    def _edit_known(self, edited: Edited) -> bool:
        before = self._before(looked=True)
        return EDIT_TOLD in before and before.get("edited") == finite(edited.to_json())

    def _before(self, *, looked: bool = False) -> Mapping[str, Any]:
        """The summary of the last night that measured a champion, and could look at the target
        where it is to have ``looked``; empty where there is none."""
        for run in self._earlier():
            before = run.summary
            unseen = "unseen" in before and "edited" not in before
            if "champion" in before and not (looked and unseen):
                return before
        return {}

    def _drift(self, weighing: Weighing) -> Drift | None:
        before, study = weighing.before, weighing.study
        now = Observation.of(weighing.trial, weighing.study_id, weighing.environment)
        if before is None or now is None:
            return None
        edited = weighing.edited if weighing.replaced else None
        cause = () if edited is None else (telling.cause_of(edited),)
        return drift_between(before, now, study.sla, timeout_s=study.workload.timeout_s, also=cause)

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
        return self._lost(tonight, tonight.trials)

    def _lost(
        self, tonight: Tonight, trials: Sequence[Trial], against: str = ""
    ) -> tuple[Outcome, str]:
        """``against``: what there is against the pick, where there is one."""
        first = numbered(trials, CHAMPION)
        told = telling.lost(
            self.schedule,
            self.model,
            tonight.study_id,
            tonight.decision,
            champion=self._champion(trials, tonight.study),
            failed="" if first is None else first.reason,
            against=against,
        )
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
            noise=MemoryNoise.of(trials),
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
        if champion is None or misses(champion, study.sla):
            return self._lost(
                tonight, trials, f"trial {pick} met it in the search, but {verdict.words}"
            )
        return Outcome.HOLDS, f"trial {pick} was tried against the champion: {verdict.words}"

    def _act(
        self, tonight: Tonight, champion: Trial, challenger: Judged, verdict: Verdict
    ) -> tuple[Outcome, str]:
        became = self._by_policy(tonight, challenger, verdict)
        outcome, note = became.outcome, became.note
        self._add(note=note)
        words = telling.better(
            self.schedule,
            self.model,
            tonight.study_id,
            champion=champion,
            challenger=challenger,
            verdict=verdict,
            outcome=outcome,
            promotion_id=became.promotion_id,
            note=note,
            unsure=became.unsure,
        )
        # Of what did not hold in service the promotion itself tells.
        if outcome is not Outcome.ROLLED_BACK and not self._told_before(outcome, challenger):
            self._notify(Event.BETTER, words, tonight.study_id)
        return outcome, "; ".join(filter(None, (words[0], note)))

    def _by_policy(self, tonight: Tonight, challenger: Judged, verdict: Verdict) -> _Became:
        policy = self.schedule.policy
        if policy is Policy.REPORT:
            return _Became(outcome=Outcome.BETTER)
        barred = self.work.barred(challenger.trial.candidate)
        if barred:
            return _Became(outcome=Outcome.BETTER, note=barred)
        promotion_id = None
        try:
            promotion_id = self.work.propose(tonight, challenger.number, verdict.words)
            self._update(promotion_id=promotion_id)
            waits = self._why_it_waits(tonight, promotion_id) if policy is Policy.AUTO else ""
            if waits is not None:
                return _Became(outcome=Outcome.PROPOSED, promotion_id=promotion_id, note=waits)
            promotion = self.work.promote(promotion_id)
        except InputRefused as exc:
            why = f"it could not be promoted: {exc.rule}"
            return _Became(outcome=Outcome.BETTER, promotion_id=promotion_id, note=why)
        if promotion.state is PromotionState.APPLYING:
            raise AutotuneError(
                f"promotion {promotion_id} did not hold, and could not be undone yet",
                value=promotion.reason,
                next_step=f"`autotune history {self.model}` shows what is in service",
            )
        done = promotion.state is PromotionState.DONE
        return _Became(
            outcome=Outcome.PROMOTED if done else Outcome.ROLLED_BACK,
            promotion_id=promotion_id,
            note=promotion.reason,
            unsure=done and unsure(promotion),
        )

    def _why_it_waits(self, tonight: Tonight, promotion_id: int) -> str | None:
        """Why what would be promoted by itself waits for approval; None: it does not."""
        if self.work.begun(promotion_id):
            return None
        edited = self._summary.get(BY_HAND)
        if edited is None and (since := self.work.edited_since(tonight)) is not None:
            edited = finite(since.to_json())
        if edited is not None:
            return f"it is not promoted without anyone asking, since {edited['told']}"
        end = self._window_end
        if end is not None and self.clock.now() >= end:
            return "its window was over before it was in service"
        return None

    def _told_before(self, outcome: Outcome, challenger: Judged) -> bool:
        """Whether an earlier night came to the very same and said so, and the champion has been
        the same since, and what it was: then it is no news."""
        if outcome not in (Outcome.BETTER, Outcome.PROPOSED):
            return False
        this = self._news(outcome, challenger.trial.candidate.to_json(), self._summary)
        champion = (self._summary.get("champion") or {}).get("candidate")
        later: Mapping[str, Any] = self._summary
        for run in self._earlier():
            if (later.get("drift") or {}).get("drifted"):
                return False
            before = run.summary
            if before.get("champion") and before["champion"].get("candidate") != champion:
                return False
            told = (before.get("challenger") or {}).get("candidate")
            if run.state is RunState.DONE and self._news(run.outcome, told, before) == this:
                return True
            later = before
        return False

    @staticmethod
    def _news(
        outcome: Outcome | None, candidate: object, summary: Mapping[str, Any]
    ) -> tuple[object, ...]:
        return outcome, candidate, summary.get("note", "")

    def _earlier(self) -> Sequence[NightRun]:
        """The schedule's runs before this one, the latest first."""
        runs = self.runs.runs(schedule=self.schedule.name, limit=LOOKED_BACK)
        return [run for run in runs if run.scheduled_for < self.run.scheduled_for]

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
        run = self.runs.run(self.run.id)
        told = telling.failed(self.schedule, self.model, run.study_id, words, run.promotion_id)
        self._notify(Event.FAILURE, told, run.study_id)

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
