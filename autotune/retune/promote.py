"""A promotion, and its undoing: the order of their steps, each of them in the audit trail.

recover → preflight → apply → verify → shadow check → done; whatever goes wrong once something may
have been changed: restore → failed. A step is noted when it has been taken and before the
promotion's state says so: a process that is killed between the two takes the step again, which none
of them minds, and notes it again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from autotune.core.errors import AutotuneError, InputRefused, Interrupted, LoadFailed
from autotune.core.notices import Event
from autotune.core.promotions import Promotion, PromotionState
from autotune.core.sla import Outcome
from autotune.service_ports import Deployment, PromotionStore, Release

BEGUN, UNDOING, CHECK = "begun", "undoing", "check"
"""Keys of a promotion's detail: whether anything may have been changed; why it is being undone;
what the shadow check found."""
LATEST = 1000
"""How many promotions of a model are looked through for the one that was in service before."""

Tell: TypeAlias = Callable[[Event, str, str, Mapping[str, Any]], object]
"""Send a notice: event, title, text, and all of it as plain data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """What the shadow check came to, in words and as plain data."""

    outcome: Outcome
    words: str
    detail: Mapping[str, Any] = field(default_factory=dict)


class ShadowCheck(Protocol):
    """Measures what is in service beside its traffic, and holds it against the SLA."""

    def check(self) -> Checked:
        """ServerFailed if it is gone; LoadFailed if it could not be measured."""


def label_of(promotion: Promotion) -> str:
    """What the files that it replaces are kept under. The number alone would meet that of another
    database's promotion to the same repository."""
    return f"promotion-{promotion.id}-{promotion.created_at:.0f}"


def subject_of(promotion: Promotion) -> str:
    """Its name in the audit trail."""
    return f"promotion {promotion.id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Promoter:
    """Takes the steps, as ``by``. ``release`` has the files made; ``shadow`` is None where no check
    was asked for. Whoever calls it holds the target's lock."""

    store: PromotionStore
    deployment: Deployment
    release: Callable[[], Release]
    shadow: ShadowCheck | None
    tell: Tell
    by: str
    say: Callable[[str], None]

    # ------------------------------------------------------------------------------- promotion
    def promote(self, promotion_id: int) -> Promotion:
        """Put it into service, or go on with it where a killed process left it; DONE or FAILED.

        InputRefused passes, with nothing touched, and so does Interrupted, after what was in
        service before has been put back.
        """
        waiting = (PromotionState.PROPOSED, PromotionState.APPROVED, PromotionState.APPLYING)
        before = self.store.promotion(promotion_id)
        promotion = self.store.advance(
            promotion_id,
            expected=waiting,
            state=PromotionState.APPLYING,
            by=self.by if before.state is PromotionState.PROPOSED else None,
        )
        if before.state is PromotionState.APPLYING:
            self._note(promotion, "taken up again", "its process had been ended half-way")
        if promotion.detail.get(UNDOING):
            self.deployment.recover()
            return self._undo(promotion, str(promotion.detail[UNDOING]))
        try:
            self.deployment.recover()
            release = self.release()
            if not promotion.detail.get(BEGUN):
                promotion = self._looked_at(promotion, release)
            promotion = self._applied(promotion, release)
        except AutotuneError as error:
            failed = self._abandon(promotion, _words(error))
            if isinstance(error, InputRefused):
                raise
            return failed
        except BaseException as error:
            self._abandon(promotion, _words(error))
            raise
        return self._held(promotion, release)

    def give_up(self, promotion: Promotion) -> Promotion:
        """One that is under way though its process is gone: what was in service before it is
        again, and it has FAILED."""
        self.deployment.recover()
        return self._undo(promotion, "its process was ended half-way")

    def _looked_at(self, promotion: Promotion, release: Release) -> Promotion:
        self.say(f"looking at {promotion.target}")
        diff = self.deployment.preflight(release)
        self._note(promotion, "begun", promotion.why, diff=diff)
        return self._keep(promotion, {BEGUN: True})

    def _applied(self, promotion: Promotion, release: Release) -> Promotion:
        """All or nothing: where this raises, what was in service before is."""
        self.say(f"putting trial {promotion.trial} into service at {promotion.target}")
        kept = self.deployment.apply(release, label=label_of(promotion))
        self._note(promotion, "applied", detail={"kept": kept})
        return self.store.advance(
            promotion.id,
            expected=(PromotionState.APPLYING,),
            state=PromotionState.APPLYING,
            kept=kept,
        )

    def _held(self, promotion: Promotion, release: Release) -> Promotion:
        """Done if it is what is served, and keeps its SLA; else undone."""
        try:
            self.deployment.verify(release)
            self._note(promotion, "verified")
            checked = self._checked(promotion)
        except AutotuneError as error:
            return self._undo(promotion, _words(error))
        except BaseException as error:
            self._undo(promotion, _words(error))
            raise
        if checked is not None:
            promotion = self._keep(promotion, {CHECK: dict(checked.detail)})
        if checked is not None and checked.outcome is Outcome.MISSES:
            return self._undo(promotion, f"it misses its SLA in service: {checked.words}")
        words = "" if checked is None else checked.words
        self._note(promotion, "done", words)
        return self.store.advance(
            promotion.id,
            expected=(PromotionState.APPLYING,),
            state=PromotionState.DONE,
            reason=words,
        )

    def _checked(self, promotion: Promotion) -> Checked | None:
        """One that could not be measured is undecided: that is no fault of what is in service."""
        if self.shadow is None:
            return None
        self.say("checking its SLA beside the live traffic")
        try:
            checked = self.shadow.check()
        except LoadFailed as error:
            words = f"its SLA could not be checked: {_words(error)}"
            checked = Checked(outcome=Outcome.UNDECIDED, words=words)
        self._note(promotion, f"checked: {checked.outcome}", checked.words, detail=checked.detail)
        return checked

    def _undo(self, promotion: Promotion, why: str) -> Promotion:
        """Put back what was in service before; the promotion has FAILED."""
        promotion = self._keep(promotion, {UNDOING: why})
        self.say(f"putting back what was in service: {why}")
        if (wrong := self._restored(promotion)) is not None:
            return self._fail(promotion, f"{why}; and it could not be undone: {wrong}")
        self._note(promotion, "undone", why)
        failed = self._failed(promotion, f"{why}; what was in service before is again")
        self._told(Event.ROLLED_BACK, failed, "was rolled back")
        return failed

    def _abandon(self, promotion: Promotion, why: str) -> Promotion:
        """After an error before it was in service; a killed process may have put it there."""
        wrong = self._restored(promotion) if promotion.detail.get(BEGUN) else None
        beside = "" if wrong is None else f"; and it could not be undone: {wrong}"
        return self._fail(promotion, why + beside)

    def _restored(self, promotion: Promotion) -> str | None:
        """Why what was in service before is not; None where it is."""
        try:
            self.deployment.restore(label_of(promotion))
        except AutotuneError as error:
            return _words(error)
        return None

    def _fail(self, promotion: Promotion, why: str) -> Promotion:
        self._note(promotion, "failed", why)
        failed = self._failed(promotion, why)
        self._told(Event.FAILURE, failed, "failed")
        return failed

    def _failed(self, promotion: Promotion, why: str) -> Promotion:
        return self.store.advance(
            promotion.id,
            expected=(PromotionState.APPLYING,),
            state=PromotionState.FAILED,
            reason=why,
        )

    # -------------------------------------------------------------------------------- rollback
    def roll_back(self, promotion_id: int, why: str) -> Promotion:
        """Put back what a promotion that is in service replaced; the one before it is the champion
        again."""
        promotion = self.store.promotion(promotion_id)
        if promotion.state is not PromotionState.DONE:
            raise InputRefused(
                f"promotion {promotion.id} is {promotion.state}: only what is in service can be"
                " rolled back",
                next_step="`autotune history MODEL` shows what is.",
            )
        self._note(promotion, "rollback begun", why)
        self.say(f"putting back what promotion {promotion.id} replaced at {promotion.target}")
        try:
            self.deployment.recover()
            self.deployment.restore(promotion.kept or label_of(promotion))
        except BaseException as error:
            self._note(promotion, "rollback failed", _words(error))
            raise
        self._note(promotion, "rolled back", why, diff=promotion.diff)
        before = self._before(promotion)
        rolled_back = self.store.advance(
            promotion.id,
            expected=(PromotionState.DONE,),
            state=PromotionState.ROLLED_BACK,
            by=self.by,
            reason=why or "rolled back",
        )
        if before is not None:
            words = f"in service again: promotion {promotion.id} was rolled back"
            self._note(before, "in service again", words)
            self.store.advance(
                before.id,
                expected=(PromotionState.SUPERSEDED,),
                state=PromotionState.DONE,
                reason=words,
            )
        self._told(Event.ROLLED_BACK, rolled_back, "was rolled back")
        return rolled_back

    def _before(self, promotion: Promotion) -> Promotion | None:
        """What it had superseded: the latest before it that was in service there."""
        superseded = self.store.promotions(
            model=promotion.model, states=(PromotionState.SUPERSEDED,), limit=LATEST
        )
        there = [
            each
            for each in superseded
            if str(each.target) == str(promotion.target)
            and (each.applied_at or 0.0) < (promotion.applied_at or 0.0)
            and each.applied_at is not None
        ]
        return max(there, key=lambda each: each.applied_at or 0.0, default=None)

    # ----------------------------------------------------------------------------------- words
    def _keep(self, promotion: Promotion, detail: Mapping[str, Any]) -> Promotion:
        return self.store.advance(
            promotion.id,
            expected=(PromotionState.APPLYING,),
            state=PromotionState.APPLYING,
            detail={**promotion.detail, **detail},
        )

    def _note(
        self,
        promotion: Promotion,
        action: str,
        why: str = "",
        *,
        diff: str = "",
        detail: Mapping[str, Any] | None = None,
    ) -> None:
        about = {"model": promotion.model, "target": str(promotion.target), **(detail or {})}
        self.store.note(self.by, action, subject_of(promotion), why=why, diff=diff, detail=about)

    def _told(self, event: Event, promotion: Promotion, what: str) -> None:
        title = f"{promotion.model}: promotion {promotion.id} {what}"
        payload = {
            "promotion": promotion.id,
            "model": promotion.model,
            "target": str(promotion.target),
            "study": promotion.study_id,
            "trial": promotion.trial,
            "state": str(promotion.state),
            "reason": promotion.reason,
        }
        self.tell(event, title, promotion.reason, payload)


def _words(error: BaseException) -> str:
    if isinstance(error, AutotuneError | Interrupted):
        value = "" if error.value is None else f" ({error.value})"
        return f"{error.rule}{value}"
    return f"{type(error).__name__}: {error}"
