"""A night of a schedule, wired: the champion measured again, the search, the challenge."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from autotune.adapters.machine import SystemClock
from autotune.bootstrap.comparing import compare_stored
from autotune.bootstrap.edits import (
    edited_since,
    other_than_before,
    other_than_begun,
    other_than_found,
)
from autotune.bootstrap.named_files import refuse_elsewhere
from autotune.bootstrap.notices import deliver_waiting, notify
from autotune.bootstrap.promotions import promote_now, propose_now
from autotune.bootstrap.recorded import machine_here
from autotune.bootstrap.releases import Contents, found_by, is_another_machines, normalized
from autotune.bootstrap.session import Plan, Present, StudySession
from autotune.bootstrap.stored import HARDWARE, StoredStudy
from autotune.core.comparison import Comparison
from autotune.core.decision import Decision
from autotune.core.drift import Observation, circumstances, same
from autotune.core.errors import AutotuneError
from autotune.core.notices import Event
from autotune.core.promotions import Edited, Promotion, PromotionState, Target
from autotune.core.records import HELD, StudyRecord, StudyState
from autotune.core.schedules import NightRun, Policy, RunState, Schedule
from autotune.core.study import Launch, Study
from autotune.core.trial import Trial, numbered
from autotune.ports import ProgressListener
from autotune.retune import telling
from autotune.retune.nightly import (
    CHAMPION,
    ROUNDS,
    Night,
    Tonight,
    Weigh,
    Weighing,
    WindowOver,
)
from autotune.retune.past import (
    Past,
    kept_by,
    known_trials,
    last_seen,
    looked_back_on,
    worth_asking_first,
)
from autotune.retune.promote import BEGUN, MACHINE, subject_of
from autotune.studyfile import read_definition
from search_spaces.candidate import Candidate
from storage.service import ServiceStore

FAILED_TWICE = 2
"""So many failed promotions of a candidate keep it from being promoted by itself."""


def _unheard(_: int) -> None: ...


def run_night(  # noqa: PLR0913 - which run, where, for whom, and who listens
    run_id: int,
    *,
    db: str,
    out: Path,
    by: str,
    listen: ProgressListener,
    started: Callable[[int], None] = _unheard,
) -> NightRun:
    """Carry out the run that `ScheduleStore.due` recorded, and return it as it has ended.

    ``out`` receives the export of the night's pick. ``by`` is who promotes under the policy
    ``auto``. ``started`` is told the id of the night's study as soon as there is one. Called again
    for a run whose process died, it takes up the study that it had begun. Must be called in the
    main thread: the end of the maintenance window comes as a signal.

    A window that is over ends the run as STOPPED or MISSED, without an exception. Interrupted
    (SIGTERM, Ctrl-C) and AutotuneError pass, after the run has been recorded as STOPPED or FAILED;
    MachineBusy passes with the run queued as before.
    """
    with closing(ServiceStore(db, create=False)) as store:
        run = store.schedules.run(run_id)
        try:
            ended = _carried_out(store, run, _At(db=db, out=out, by=by, listen=listen), started)
        except Exception:
            deliver_now(store)
            raise
        deliver_now(store)
        return ended


def deliver_now(store: ServiceStore) -> None:
    """Where no service runs that would; what does not arrive now waits in the outbox."""
    with suppress(AutotuneError, OSError):
        deliver_waiting(store.notices)


@dataclass(frozen=True, slots=True, kw_only=True)
class _At:
    db: str
    out: Path
    by: str
    listen: ProgressListener


def _carried_out(
    store: ServiceStore, run: NightRun, at: _At, started: Callable[[int], None]
) -> NightRun:
    def tell(event: Event, title: str, text: str, payload: Mapping[str, Any]) -> None:
        notify(store.notices, event, title, text, payload)

    try:
        schedule = store.schedules.by_id(run.schedule_id)
        if schedule.target is not None:
            schedule = replace(schedule, target=normalized(schedule.target))
        study = read_definition(schedule.definition)
        refuse_elsewhere(study, "the study")
    except AutotuneError as exc:
        store.schedules.update_run(run.id, state=RunState.FAILED, reason=str(exc))
        title = f"the run of schedule {run.schedule} failed: {exc.rule.splitlines()[0]}"
        tell(Event.FAILURE, title, str(exc), {"schedule": run.schedule, "run": run.id})
        raise
    work = _Work(store=store, schedule=schedule, run=run, study=study, at=at, started=started)
    night = Night(
        schedule=schedule,
        run=run,
        model=study.model.name,
        runs=store.schedules,
        work=work,
        tell=tell,
        clock=SystemClock(),
        window=until,
    )
    work.minutes = night.minutes_for
    return night.carry_out()


@contextmanager
def until(deadline: float | None) -> Iterator[None]:
    """Raises WindowOver within the block, wherever that is, at a time of the system's clock."""
    if deadline is None:
        yield
        return

    def over(_signum: int, _frame: object) -> None:
        raise WindowOver(f"the maintenance window was over at {telling.when(deadline)}")

    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, max(deadline - time.time(), 0.001))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@dataclass(frozen=True, slots=True, kw_only=True)
class _InService:
    """What a night begins with: the ``champion``, in the space's words (None: what the study
    finds), what was ``promoted``, and what somebody has ``edited`` of it since, which is
    ``measured`` where it is the champion. ``unseen``: why it could not be looked at."""

    champion: Candidate | None = None
    promoted: Candidate | None = None
    edited: Edited | None = None
    measured: bool = False
    unseen: str = ""


@dataclass(slots=True, kw_only=True)
class _Work:
    """Implements `autotune.retune.nightly.Work` on real servers, load and storage. ``minutes`` says
    how many of them a study has."""

    store: ServiceStore
    schedule: Schedule
    run: NightRun
    study: Study
    at: _At
    started: Callable[[int], None]
    minutes: Callable[[Study], float | None] = lambda _: None
    _study_id: int | None = field(default=None, init=False)
    _begun_with: Contents | None = field(default=None, init=False)

    # ---------------------------------------------------------------------------------- the study
    def tune(self, weigh: Weigh) -> Tonight:
        begun = self._begun()
        if begun is not None and begun.state is StudyState.DONE:  # its process died just after
            return self._ended(begun.id)
        with StudySession.open(
            self.study,
            db=self.at.db,
            out=self.at.out,
            resume=begun is not None,
            listen=self.at.listen,
            plan=lambda present: self._plan(present, weigh, begun),
        ) as session:
            self._study_id = session.runner.study_id
            self.store.schedules.update_run(self.run.id, study_id=self._study_id)
            self.started(self._study_id)
            answer = session.run()
        return _tonight(answer.study, answer.record, answer.trials, answer.decision)

    def _begun(self) -> StudyRecord | None:
        """The study of an earlier attempt at this run, if it can be gone on with: nobody has run
        one of that name since, and it was this machine that measured it."""
        if self.run.study_id is None:
            return None
        records = self.store.trials.studies()
        latest = next((each for each in records if each.name == self.study.name), None)
        if latest is None or latest.id != self.run.study_id or latest.digest != self.study.digest:
            return None
        there, here = latest.environment or {}, machine_here()
        return latest if same(there, here, [key for key in HARDWARE if key in there]) else None

    def _ended(self, study_id: int) -> Tonight:
        stored = StoredStudy.load(self.store.trials, str(study_id))
        return _tonight(stored.study, stored.record, stored.trials, stored.decision)

    def _plan(self, present: Present, weigh: Weigh, begun: StudyRecord | None) -> Plan:
        if self.schedule.policy is Policy.AUTO and _found_there(self.study, self.schedule.target):
            self._begun_with = found_by(self.study)
        pasts = self._pasts(None if begun is None else begun.id)
        known = known_trials(self.study.definition, pasts, present.environment)
        service = self._in_service(present.found, pasts)
        return Plan(
            champion=service.champion,
            known=known,
            first=worth_asking_first(self.study, known, service.champion or present.found),
            stop_after=lambda trial: self._weighed(trial, pasts, weigh, service),
            minutes=self.minutes(self.study),
        )

    def _weighed(
        self, trial: Trial, pasts: Sequence[Past], weigh: Weigh, service: _InService
    ) -> str | None:
        if trial.number != CHAMPION or self._study_id is None:
            return None
        record = self.store.trials.study(str(self._study_id))
        here = circumstances(record.environment, record.definition)
        seen = self._before(trial.candidate, pasts, here, service)
        return weigh(
            Weighing(
                trial=self._sampled(record.id, CHAMPION) or trial,
                study=self.study,
                study_id=record.id,
                environment=here,
                pasts=pasts,
                before=None if seen is None else self._observed(*seen),
                edited=service.edited,
                measured=service.measured,
                replaced=seen is not None and seen[1].candidate != trial.candidate,
                looked=service.promoted is not None,
                unseen=service.unseen,
            )
        )

    def _before(
        self,
        champion: Candidate,
        pasts: Sequence[Past],
        here: Mapping[str, Any],
        service: _InService,
    ) -> tuple[Past, Trial] | None:
        """Where the champion was measured last; of one that somebody has changed, that or where
        what was promoted was, whichever is later."""
        definition = self.study.definition
        candidates = (service.promoted, champion) if service.measured else (champion,)
        found = [last_seen(each, definition, pasts, here) for each in candidates if each]
        seen = [each for each in found if each is not None]
        return min(seen, key=lambda each: _rank(each, pasts, here), default=None)

    def _observed(self, past: Past, trial: Trial) -> Observation | None:
        sampled = self._sampled(past.record.id, trial.number)
        there = circumstances(past.record.environment, past.record.definition)
        return Observation.of(sampled, past.record.id, there)

    def _sampled(self, study_id: int, number: int) -> Trial | None:
        """A trial with the raw times of its requests."""
        return numbered(self.store.trials.trials(study_id, samples=True), number)

    def _in_service(self, found: Candidate, pasts: Sequence[Past] = ()) -> _InService:
        """The champion is what was promoted last, or what somebody has made of it since where the
        space can say that; what is found where the study finds its model in the place that was
        promoted to, or nothing was promoted."""
        promotion = self.store.promotions.champion(self.study.model.name, self.schedule.target)
        if promotion is None:
            return self._never_promoted(found, pasts)
        if (unseen := self._elsewhere(promotion)) is not None:
            return _InService(unseen=unseen)
        edited, unseen = _looked(lambda: edited_since(self.store, promotion, self.study))
        promoted = self._in_the_space(Candidate.from_json(promotion.candidate), found)
        if _found_there(self.study, promotion.target):
            measured = edited is not None
            return _InService(promoted=promoted, edited=edited, measured=measured, unseen=unseen)
        return self._made_of(promoted, edited, unseen, found)

    def _never_promoted(self, found: Candidate, pasts: Sequence[Past]) -> _InService:
        target = self.schedule.target
        if target is None or _found_there(self.study, target):
            return self._found_before(found, pasts)
        edited, unseen = _looked(lambda: other_than_found(target, self.study, found))
        return self._made_of(found, edited, unseen, found)

    def _found_before(self, found: Candidate, pasts: Sequence[Past]) -> _InService:
        """What is tuned is what is in service, as far as anybody knows: was it the same last time?
        Who took what that study picked did as it said; where autotune has changed it since, that is
        no sign of anybody."""
        last = next((past for past in pasts if past.asks(self.study.definition)), None)
        before = None if last is None else numbered(last.trials, CHAMPION)
        if last is None or before is None or last.kept == found:
            return _InService()
        if self._changed_there_since(last.record.created_at):
            return _InService()
        edited = other_than_before(self.study, before.candidate, found)
        if edited is None:
            return _InService()
        return _InService(promoted=before.candidate, edited=edited, measured=True)

    def _changed_there_since(self, then: float) -> bool:
        """Whether a promotion, or the undoing of one, has changed what the study finds, ``then`` in
        seconds since the epoch or later. One that was only proposed has not."""
        promotions = self.store.promotions.promotions(model=self.study.model.name)
        here = [each for each in promotions if _found_there(self.study, each.target)]
        begun = [each for each in here if each.detail.get(BEGUN) or each.applied_at is not None]
        if any((each.applied_at or 0.0) >= then for each in begun):
            return True
        subjects = {subject_of(each) for each in begun}
        steps = self.store.promotions.audit(subjects=subjects, limit=1) if subjects else ()
        return any(step.at >= then for step in steps)

    def _made_of(
        self, promoted: Candidate, edited: Edited | None, unseen: str, found: Candidate
    ) -> _InService:
        changed = None if edited is None else edited.candidate
        champion = promoted if changed is None else self._in_the_space(changed, found)
        return _InService(
            champion=champion if champion != found else None,
            promoted=promoted,
            edited=edited,
            measured=changed is not None,
            unseen=unseen,
        )

    def _elsewhere(self, promotion: Promotion) -> str | None:
        """Of a promotion to a directory that is not this one, though it is called the same."""
        if not is_another_machines(self.store, promotion):
            return None
        return (
            f"promotion {promotion.id} was made by {promotion.detail.get(MACHINE)}, to another"
            f" directory of the same path, {promotion.target}"
        )

    def _in_the_space(self, candidate: Candidate, found: Candidate) -> Candidate:
        if self.study.space.contains(candidate):
            return candidate
        whole = found.replacing(**candidate.values)
        return self.study.space.project(whole) or whole

    # ------------------------------------------------------------------------------------ the past
    def _pasts(self, tonight: int | None) -> list[Past]:
        """The latest studies of the same model that measured anything, newest first."""
        model = self.study.definition.get("model")
        records = [
            record
            for record in self.store.trials.studies()
            if record.id != tonight and record.trials and record.definition.get("model") == model
        ]
        found = looked_back_on(records)
        nights = self._nights([record.id for record in found])
        return [self._past(record, nights) for record in found]

    def _nights(self, studies: Sequence[int]) -> Mapping[int, NightRun]:
        """The latest run of each of these studies that was a night's."""
        runs = reversed(self.store.schedules.runs_of(studies))
        return {run.study_id: run for run in runs if run.study_id is not None}

    def _past(self, record: StudyRecord, nights: Mapping[int, NightRun]) -> Past:
        trials = self.store.trials.trials(record.id)
        decided = self.store.trials.decision(record.id)
        night = nights.get(record.id)
        kept = kept_by(
            trials,
            None if decided is None else decided.pick,
            None if night is None else night.outcome,
            night=night is not None,
        )
        return Past(record=record, trials=trials, kept=kept)

    # ------------------------------------------------------------------------------- the challenge
    def compare(
        self, tonight: Tonight, number: int
    ) -> tuple[Sequence[Trial], Sequence[Comparison]]:
        stored = self._compared(tonight.study_id, number)
        if not stored:
            compare_stored(
                self.at.db,
                str(tonight.study_id),
                (CHAMPION, number),
                rounds=ROUNDS,
                listen=self.at.listen,
            )
            stored = self._compared(tonight.study_id, number)
        return self.store.trials.trials(tonight.study_id), stored

    def _compared(self, study_id: int, number: int) -> list[Comparison]:
        """Those of the two that were taken since the study's decision."""
        decided = self.store.trials.decision(study_id)
        since = 0.0 if decided is None else decided.taken_at
        return [
            each
            for each in self.store.trials.comparisons(study_id)
            if {each.first, each.second} == {CHAMPION, number} and each.taken_at > since
        ]

    # ------------------------------------------------------------------------------- the promotion
    def propose(self, tonight: Tonight, number: int, why: str) -> int:
        if self.run.promotion_id is not None:
            return self.run.promotion_id
        candidate = next(t.candidate for t in tonight.trials if t.number == number)
        waiting = self._promotions(candidate, PromotionState.PROPOSED)
        if waiting:
            return waiting[0].id
        assert self.schedule.target is not None  # a schedule that promotes has one
        return propose_now(
            self.store,
            str(tonight.study_id),
            trial=number,
            target=self.schedule.target,
            why=why,
            by=self.at.by,
            schedule_id=self.schedule.id,
            listen=self.at.listen,
        ).id

    def barred(self, candidate: Candidate) -> str:
        undone = self._promotions(candidate, PromotionState.ROLLED_BACK, PromotionState.REJECTED)
        failed = self._promotions(candidate, PromotionState.FAILED)
        told = [*undone, *(failed if len(failed) >= FAILED_TWICE else [])]
        if not told:
            return ""
        state = str(told[0].state).replace("_", " ")
        verb = "has" if told[0].state is PromotionState.FAILED else "was"
        return (
            f"it is not promoted without anyone asking, since promotion {told[0].id} of the same"
            f" configuration {verb} {state}"
        )

    def _promotions(self, candidate: Candidate, *states: PromotionState) -> list[Promotion]:
        return [
            each
            for each in self.store.promotions.promotions(model=self.study.model.name, states=states)
            if Candidate.from_json(each.candidate) == candidate
            and str(each.target) == str(self.schedule.target)
        ]

    def begun(self, promotion_id: int) -> bool:
        return self.store.promotions.promotion(promotion_id).state is not PromotionState.PROPOSED

    def edited_since(self, tonight: Tonight) -> Edited | None:
        target, begun_with = self.schedule.target, self._begun_with
        promotion = self.store.promotions.champion(self.study.model.name, target)
        if promotion is not None and self._elsewhere(promotion) is None:
            return _looked(lambda: edited_since(self.store, promotion, tonight.study))[0]
        if target is not None and begun_with is not None:
            return _looked(lambda: other_than_begun(target, tonight.study, begun_with))[0]
        return None

    def promote(self, promotion_id: int) -> Promotion:
        state = self.store.promotions.promotion(promotion_id).state
        if state in (PromotionState.DONE, PromotionState.FAILED):  # by an earlier attempt
            return self.store.promotions.promotion(promotion_id)
        return promote_now(self.store, promotion_id, by=self.at.by, listen=self.at.listen)


def _looked(look: Callable[[], Edited | None]) -> tuple[Edited | None, str]:
    """What was changed, and why that is not known."""
    try:
        return look(), ""
    except (AutotuneError, OSError) as exc:
        return None, exc.rule if isinstance(exc, AutotuneError) else str(exc)


def _rank(
    seen: tuple[Past, Trial], pasts: Sequence[Past], here: Mapping[str, Any]
) -> tuple[bool, int, int]:
    """On the same hardware first, then the latest, and there the champion's."""
    past, trial = seen
    return not same(past.environment, here, HARDWARE), list(pasts).index(past), trial.number


def _tonight(
    study: Study, record: StudyRecord, trials: Sequence[Trial], decision: Decision
) -> Tonight:
    return Tonight(
        study=study,
        study_id=record.id,
        trials=trials,
        decision=decision,
        why=record.reason,
        held=HELD in (record.environment or {}),
    )


def _found_there(study: Study, target: Target | None) -> bool:
    """Whether what is promoted there is what the study finds in service."""
    if target is None:
        return False
    if study.server.launch is Launch.REMOTE:
        return target.grpc is not None and target.grpc == study.server.grpc
    repository = study.model.repository
    if repository is None or target.repository is None:
        return False
    return repository.resolve() == target.repository.resolve()
