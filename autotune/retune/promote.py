"""A promotion, and its undoing: the order of their steps, each of them in the audit trail.

recover → preflight → apply → verify → shadow check → done; whatever goes wrong once something may
have been changed: restore → failed. A step is noted when it has been taken and before the
promotion's state says so: a process that is killed between the two takes the step again, which none
of them minds, and notes it again.

Where a server does not answer, what was in service before cannot be put back there: the promotion
is then left APPLYING, and it is tried again (`Promoter.promote`, `Promoter.give_up`) until it can.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from autotune.core.errors import (
    AutotuneError,
    InputRefused,
    Interrupted,
    LoadFailed,
    ServerFailed,
)
from autotune.core.notices import Event
from autotune.core.promotions import Promotion, PromotionState
from autotune.core.sla import Outcome
from autotune.service_ports import Deployment, PromotionStore, Release

BEGUN, BEFORE, MACHINE = "begun", "before", "machine"
UNDOING, BACK, TRIES, CHECK = "undoing", "back", "tries", "check"
"""Keys of a promotion's detail: whether anything may have been changed, how the target was found
before that, and on which machine; why it is being undone, what that changes, and how often it could
not be; what the shadow check found."""
MOST_TRIES = 1000
"""How often what was in service before is put back, in vain, before the promotion is given up."""

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


def unsure(promotion: Promotion) -> bool:
    """Whether its check in service left open whether it keeps its SLA there."""
    return (promotion.detail.get(CHECK) or {}).get("outcome") == Outcome.UNDECIDED


@dataclass(frozen=True, slots=True, kw_only=True)
class Promoter:
    """Takes the steps, as ``by``, on ``machine``. ``release`` has the files made; ``shadow`` is
    None where no check was asked for. Whoever calls it holds the target's lock."""

    store: PromotionStore
    deployment: Deployment
    release: Callable[[], Release]
    shadow: ShadowCheck | None
    tell: Tell
    by: str
    say: Callable[[str], None]
    machine: str = ""

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
            detail={**before.detail, MACHINE: self.machine},
        )
        if promotion.detail.get(UNDOING):
            return self.give_up(promotion)
        if before.state is PromotionState.APPLYING:
            self._note(promotion, "taken up again", "its process had been ended half-way")
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
        again, and it has FAILED; or it is left as it is, where a server does not answer."""
        self.deployment.recover()
        why = promotion.detail.get(UNDOING) or "its process was ended half-way"
        return self._undo(promotion, str(why))

    def _looked_at(self, promotion: Promotion, release: Release) -> Promotion:
        self.say(f"looking at {promotion.target}")
        diff = self.deployment.preflight(release)
        before = dict(self.deployment.before(release))
        self._note(promotion, "begun", promotion.why, diff=diff)
        return self._keep(promotion, {BEGUN: True, BEFORE: before})

    def _applied(self, promotion: Promotion, release: Release) -> Promotion:
        """Where this raises, something may be in service."""
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
            found = {**checked.detail, "outcome": str(checked.outcome)}
            promotion = self._keep(promotion, {CHECK: found})
        if checked is not None and checked.outcome is Outcome.MISSES:
            return self._undo(promotion, f"it misses its SLA in service: {checked.words}")
        words = "" if checked is None else checked.words
        self._note(promotion, "done", words)
        done = self.store.advance(
            promotion.id,
            expected=(PromotionState.APPLYING,),
            state=PromotionState.DONE,
            reason=words,
        )
        if unsure(done):
            what = "is in service, and whether it keeps its SLA there is not sure"
            self._told(
                Event.UNDECIDED,
                done,
                what,
                f"watch it; `autotune rollback {done.model}` undoes it; ",
            )
        return done

    def _checked(self, promotion: Promotion) -> Checked | None:
        """One that could not be measured, or whose requests cannot be made any more, is undecided:
        that is no fault of what is in service."""
        if self.shadow is None:
            return None
        self.say("checking its SLA beside the live traffic")
        try:
            checked = self.shadow.check()
        except (LoadFailed, InputRefused) as error:
            words = f"its SLA could not be checked: {_words(error)}"
            checked = Checked(outcome=Outcome.UNDECIDED, words=words)
        self._note(promotion, f"checked: {checked.outcome}", checked.words, detail=checked.detail)
        return checked

    def _undo(self, promotion: Promotion, why: str) -> Promotion:
        """Put back what was in service before; the promotion has FAILED."""
        back = promotion.detail.get(BACK) or self._would_put_back(promotion)
        promotion = self._keep(promotion, {UNDOING: why, BACK: back})
        self.say(f"putting back what was in service: {why}")
        if (wrong := self._restored(promotion)) is not None:
            words = f"{why}; and it could not be undone: {_words(wrong)}"
            unanswered = isinstance(wrong, ServerFailed)
            return self._left(promotion, words) if unanswered else self._fail(promotion, words)
        self._note(promotion, "undone", why, diff=back)
        failed = self._failed(promotion, f"{why}; what was in service before is again")
        self._told(Event.ROLLED_BACK, failed, "was rolled back")
        return failed

    def _left(self, promotion: Promotion, why: str) -> Promotion:
        """What was before is put back when the server answers; that it does not is told once."""
        tries = int(promotion.detail.get(TRIES, 0)) + 1
        if tries >= MOST_TRIES:
            return self._fail(promotion, f"{why} (tried {tries} times)")
        if tries == 1:
            self._note(promotion, "could not be undone", why)
        left = self.store.advance(
            promotion.id,
            expected=(PromotionState.APPLYING,),
            state=PromotionState.APPLYING,
            reason=why,
            detail={**promotion.detail, TRIES: tries},
        )
        if tries == 1:
            self._told(Event.FAILURE, left, "could not be undone")
        return left

    def _abandon(self, promotion: Promotion, why: str) -> Promotion:
        """After an error before it was in service: a step that was taken in part, or by a process
        that was killed, may have changed something."""
        if not promotion.detail.get(BEGUN):
            return self._fail(promotion, why)
        back = self._would_put_back(promotion)
        wrong = self._restored(promotion)
        if wrong is None:
            if back:
                self._note(promotion, "undone", why, diff=back)
            return self._fail(promotion, why)
        words = f"{why}; and it could not be undone: {_words(wrong)}"
        if isinstance(wrong, ServerFailed):
            return self._left(self._keep(promotion, {UNDOING: why, BACK: back}), words)
        return self._fail(promotion, words)

    def _would_put_back(self, promotion: Promotion) -> str:
        """The difference that it makes, as far as that can be told."""
        try:
            return self.deployment.undoing(*_kept(promotion))
        except AutotuneError:
            return ""

    def _restored(self, promotion: Promotion) -> AutotuneError | None:
        """Why what was in service before is not; None where it is."""
        try:
            self.deployment.restore(label_of(promotion), _kept(promotion)[1])
        except AutotuneError as error:
            return error
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
        self.say(f"putting back what promotion {promotion.id} replaced at {promotion.target}")
        try:
            self.deployment.recover()
            back = self._would_put_back(promotion)
            self._note(promotion, "rollback begun", why, diff=back)
            self.deployment.restore(*_kept(promotion))
        except BaseException as error:
            self._note(promotion, "rollback failed", _words(error))
            raise
        self._note(promotion, "rolled back", why, diff=back)
        rolled_back = self.store.advance(
            promotion.id,
            expected=(PromotionState.DONE,),
            state=PromotionState.ROLLED_BACK,
            by=self.by,
            reason=why or "rolled back",
        )
        self._told(Event.ROLLED_BACK, rolled_back, "was rolled back")
        return rolled_back

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

    def _told(self, event: Event, promotion: Promotion, what: str, then: str = "") -> None:
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
        text = (
            f"What: trial {promotion.trial} of study {promotion.study_id}, at {promotion.target}.\n"
            f"Why: {promotion.reason}.\n"
            f"Next: {then}`autotune history {promotion.model}` has every step, and what is in"
            " service."
        )
        self.tell(event, title, text, payload)


def _kept(promotion: Promotion) -> tuple[str, Mapping[str, Any]]:
    """Where what it replaced is, and how the target was found besides."""
    return promotion.kept or label_of(promotion), promotion.detail.get(BEFORE) or {}


def _words(error: BaseException) -> str:
    if isinstance(error, AutotuneError | Interrupted):
        value = "" if error.value is None else f" ({error.value})"
        return f"{error.rule}{value}"
    return f"{type(error).__name__}: {error}"
