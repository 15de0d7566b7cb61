"""The order of a promotion's steps, over fakes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from autotune.core.errors import (
    AutotuneError,
    ExportFailed,
    InputRefused,
    Interrupted,
    LoadFailed,
    ServerFailed,
)
from autotune.core.notices import Event
from autotune.core.promotions import AuditEntry, Promotion, PromotionState, Step, Target
from autotune.core.sla import Outcome
from autotune.retune import promote as module
from autotune.retune.promote import BEGUN, CHECK, Checked, Promoter
from autotune.service_ports import Release

HERE = Target(repository=Path("/models"), shadow_s=0.0)


@dataclass
class FakePromotions:
    """A PromotionStore in memory."""

    held: dict[int, Promotion] = field(default_factory=dict)
    trail: list[AuditEntry] = field(default_factory=list)
    clock: float = 0.0

    def propose(self, promotion: Promotion, *, step: Step | None = None) -> int:
        made = replace(promotion, id=len(self.held) + 1)
        self.held[made.id] = made
        return made.id

    def promotion(self, promotion_id: int) -> Promotion:
        return self.held[promotion_id]

    def promotions(
        self,
        *,
        model: str | None = None,
        states: Sequence[PromotionState] = (),
        limit: int = 100,
    ) -> Sequence[Promotion]:
        found = [each for each in self.held.values() if each.state in states]
        return [each for each in found if model in (None, each.model)][-limit:]

    def advance(
        self,
        promotion_id: int,
        *,
        expected: Sequence[PromotionState],
        state: PromotionState,
        by: str | None = None,
        reason: str | None = None,
        kept: str | None = None,
        detail: Mapping[str, Any] | None = None,
        step: Step | None = None,
    ) -> Promotion:
        before = self.held[promotion_id]
        if before.state not in expected:
            raise InputRefused(f"promotion {promotion_id} is {before.state}")
        self.clock += 1
        changes: dict[str, Any] = {"reason": reason, "kept": kept, "detail": detail}
        if by is not None:
            changes["decided_by"] = by
        if state is PromotionState.DONE:
            changes["applied_at"] = self.clock
        given = {name: value for name, value in changes.items() if value is not None}
        self.held[promotion_id] = replace(before, state=state, **given)
        return self.held[promotion_id]

    def champion(self, model: str, target: Target | None = None) -> Promotion | None:
        done = [each for each in self.held.values() if each.state is PromotionState.DONE]
        return done[-1] if done else None

    def note(
        self,
        who: str,
        action: str,
        subject: str,
        *,
        why: str = "",
        diff: str = "",
        detail: Mapping[str, Any] | None = None,
    ) -> None:
        self.trail.append(
            AuditEntry(
                id=len(self.trail),
                at=0,
                who=who,
                action=action,
                subject=subject,
                why=why,
                diff=diff,
            )
        )

    def models(self) -> Sequence[str]:
        return sorted({each.model for each in self.held.values()})

    def alone(self, target: Target) -> AbstractContextManager[None]:
        return nullcontext()

    def audit(
        self, *, subject: str | None = None, subjects: Collection[str] = (), limit: int = 200
    ) -> Sequence[AuditEntry]:
        return self.trail[-limit:]

    @property
    def actions(self) -> list[str]:
        return [entry.action for entry in self.trail]


@dataclass
class FakeDeployment:
    """Says what it was asked; ``fails`` raises at the named calls."""

    fails: dict[str, BaseException] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    changed: bool = False

    def _called(self, name: str) -> None:
        self.calls.append(name)
        if name in self.fails:
            raise self.fails[name]

    def preflight(self, release: Release) -> str:
        self._called("preflight")
        return "-a\n+b\n"

    def before(self, release: Release) -> Mapping[str, Any]:
        return {"models": "as found"}

    def apply(self, release: Release, *, label: str) -> str:
        self.changed = True
        self._called("apply")
        return f"/kept/{label}"

    def verify(self, release: Release) -> None:
        self._called("verify")

    def undoing(self, kept: str, before: Mapping[str, Any]) -> str:
        return "-b\n+a\n" if self.changed else ""

    def restore(self, kept: str, before: Mapping[str, Any]) -> None:
        assert not self.changed or before == {"models": "as found"}
        self._called("restore")
        self.changed = False

    def recover(self) -> None:
        self._called("recover")


@dataclass
class FakeShadow:
    found: Checked | BaseException

    def check(self) -> Checked:
        if isinstance(self.found, BaseException):
            raise self.found
        return self.found


@dataclass
class Bench:
    """One promotion, approved, with what it meets."""

    store: FakePromotions = field(default_factory=FakePromotions)
    deployment: FakeDeployment = field(default_factory=FakeDeployment)
    shadow: FakeShadow | None = None
    told: list[Event] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    released: BaseException | None = None

    def proposal(self, state: PromotionState, **more: Any) -> int:
        promotion = Promotion(
            id=0,
            model="ocr",
            target=HERE,
            study_id=1,
            trial=2,
            candidate={},
            state=state,
            **more,
        )
        return self.store.propose(promotion)

    def _tell(self, event: Event, title: str, text: str, payload: Mapping[str, Any]) -> None:
        self.told.append(event)
        self.texts.append(f"{title}\n{text}")

    def _release(self) -> Release:
        if self.released is not None:
            raise self.released
        return Release(repository=Path("/release"), names=("ocr",))

    @property
    def promoter(self) -> Promoter:
        return Promoter(
            store=self.store,
            deployment=self.deployment,
            release=self._release,
            shadow=self.shadow,
            tell=self._tell,
            by="ann",
            say=lambda _: None,
        )

    def promote(self, state: PromotionState = PromotionState.APPROVED, **more: Any) -> Promotion:
        return self.promoter.promote(self.proposal(state, **more))


def checked(outcome: Outcome) -> FakeShadow:
    return FakeShadow(Checked(outcome=outcome, words="as measured", detail={"probe_qps": 5.0}))


# ---------------------------------------------------------------------------------------- the way
def test_the_steps_come_in_their_order_and_the_check_is_kept() -> None:
    bench = Bench(shadow=checked(Outcome.MEETS))
    done = bench.promote()
    assert bench.deployment.calls == ["recover", "preflight", "apply", "verify"]
    assert bench.store.actions == ["begun", "applied", "verified", "checked: meets", "done"]
    assert (done.state, done.reason) == (PromotionState.DONE, "as measured")
    assert done.detail[CHECK] == {"outcome": "meets", "probe_qps": 5.0}
    assert bench.told == []
    assert done.kept.startswith("/kept/promotion-1-")


def test_who_promotes_what_nobody_approved_has_decided_it() -> None:
    assert Bench().promote(PromotionState.PROPOSED).decided_by == "ann"
    assert Bench().promote(PromotionState.APPROVED, decided_by="bob").decided_by == "bob"


@pytest.mark.parametrize(
    "state", [PromotionState.DONE, PromotionState.REJECTED, PromotionState.FAILED]
)
def test_what_has_come_to_an_end_is_not_promoted(state: PromotionState) -> None:
    bench = Bench()
    with pytest.raises(InputRefused):
        bench.promote(state)
    assert not bench.deployment.calls


# --------------------------------------------------------------------------------- what is undone
@pytest.mark.parametrize(
    ("fails", "shadow"),
    [
        ({"verify": ServerFailed("serves something else")}, None),
        ({"verify": ExportFailed("other files")}, None),
        ({}, checked(Outcome.MISSES)),
        ({}, FakeShadow(ServerFailed("the server died"))),
    ],
    ids=["not served", "other files", "misses", "died"],
)
def test_what_does_not_hold_in_service_is_undone(
    fails: dict[str, BaseException], shadow: FakeShadow | None
) -> None:
    bench = Bench(deployment=FakeDeployment(fails=fails), shadow=shadow)
    failed = bench.promote()
    assert failed.state is PromotionState.FAILED
    assert failed.reason.endswith("what was in service before is again")
    assert bench.deployment.calls[-1] == "restore"
    assert bench.told == [Event.ROLLED_BACK]


def test_the_check_that_undid_it_is_kept() -> None:
    failed = Bench(shadow=checked(Outcome.MISSES)).promote()
    assert failed.detail[CHECK] == {"outcome": "misses", "probe_qps": 5.0}


@pytest.mark.parametrize(
    "shadow",
    [
        checked(Outcome.UNDECIDED),
        FakeShadow(LoadFailed("the load generator died")),
        FakeShadow(InputRefused("the file of inputs is gone")),
    ],
    ids=["undecided", "not measured", "cannot be asked"],
)
def test_what_is_undecided_stays_and_is_told_by_a_notice(shadow: FakeShadow) -> None:
    bench = Bench(shadow=shadow)
    done = bench.promote()
    assert done.state is PromotionState.DONE
    assert done.reason
    assert "checked: undecided" in bench.store.actions
    assert bench.told == [Event.UNDECIDED]
    assert f"Why: {done.reason}." in bench.texts[0]
    assert "Next: watch it; `autotune rollback ocr` undoes it" in bench.texts[0]


def test_what_cannot_be_undone_is_told_with_both_reasons() -> None:
    fails: dict[str, BaseException] = {
        "verify": ServerFailed("serves something else"),
        "restore": ExportFailed("it is not kept any more"),
    }
    bench = Bench(deployment=FakeDeployment(fails=fails))
    failed = bench.promote()
    assert failed.state is PromotionState.FAILED
    assert failed.reason == (
        "serves something else; and it could not be undone: it is not kept any more"
    )
    assert bench.told == [Event.FAILURE]


@pytest.mark.parametrize("step", ["verify", "apply"])
def test_where_a_server_does_not_answer_it_is_left_and_undone_when_it_does(step: str) -> None:
    """Told once, however often it is tried in vain."""
    gone: dict[str, BaseException] = {
        step: ServerFailed("serves something else"),
        "restore": ServerFailed("no answer"),
    }
    bench = Bench(deployment=FakeDeployment(fails=gone))
    left = bench.promote()
    assert left.state is PromotionState.APPLYING
    assert left.reason == "serves something else; and it could not be undone: no answer"
    bench.promoter.promote(1)
    assert bench.told == [Event.FAILURE]
    assert bench.store.actions.count("could not be undone") == 1
    bench.deployment.fails.clear()
    failed = bench.promoter.promote(1)
    assert failed.state is PromotionState.FAILED
    assert bench.told == [Event.FAILURE, Event.ROLLED_BACK]
    assert (bench.store.trail[-1].action, bench.store.trail[-1].diff) == ("undone", "-b\n+a\n")


def test_what_can_never_be_undone_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_TRIES", 2)
    gone: dict[str, BaseException] = {
        "verify": ServerFailed("serves something else"),
        "restore": ServerFailed("no answer"),
    }
    bench = Bench(deployment=FakeDeployment(fails=gone))
    bench.promote()
    assert bench.promoter.promote(1).state is PromotionState.FAILED


def test_what_is_undone_is_in_the_trail_with_the_difference_that_it_made() -> None:
    bench = Bench(deployment=FakeDeployment(fails={"apply": ServerFailed("it does not load")}))
    bench.promote()
    steps = [(each.action, each.diff) for each in bench.store.trail]
    assert steps == [("begun", "-a\n+b\n"), ("undone", "-b\n+a\n"), ("failed", "")]


@pytest.mark.parametrize("step", ["verify", "apply"])
def test_a_signal_undoes_it_and_passes(step: str) -> None:
    bench = Bench(deployment=FakeDeployment(fails={step: Interrupted("stopped by SIGTERM")}))
    with pytest.raises(Interrupted):
        bench.promote()
    assert bench.deployment.calls[-1] == "restore"
    assert bench.store.held[1].state is PromotionState.FAILED
    assert "stopped by SIGTERM" in bench.store.held[1].reason


# ------------------------------------------------------------------------- what is not even begun
def test_what_is_refused_before_anything_is_touched_fails_and_passes() -> None:
    bench = Bench(deployment=FakeDeployment(fails={"preflight": InputRefused("changed by hand")}))
    with pytest.raises(InputRefused):
        bench.promote()
    assert bench.deployment.calls == ["recover", "preflight"]
    assert bench.store.held[1].reason == "changed by hand"
    assert bench.store.actions == ["failed"]
    assert bench.told == [Event.FAILURE]


def test_what_could_not_be_applied_fails_with_the_servers_words() -> None:
    bench = Bench(deployment=FakeDeployment(fails={"apply": ServerFailed("no", value="bad file")}))
    failed = bench.promote()
    assert (failed.state, failed.reason) == (PromotionState.FAILED, "no (bad file)")


# ---------------------------------------------------------------------------------------- killed
def test_one_that_was_begun_is_gone_on_with_without_being_looked_at_again() -> None:
    """What is in service by now may be its own."""
    bench = Bench()
    done = bench.promote(PromotionState.APPLYING, detail={BEGUN: True})
    assert done.state is PromotionState.DONE
    assert bench.deployment.calls == ["recover", "apply", "verify"]
    assert bench.store.actions[0] == "taken up again"


def test_one_that_was_begun_and_has_no_release_any_more_is_undone() -> None:
    bench = Bench(released=ExportFailed("the model is gone"))
    failed = bench.promote(PromotionState.APPLYING, detail={BEGUN: True})
    assert failed.state is PromotionState.FAILED
    assert bench.deployment.calls == ["recover", "restore"]


def test_one_that_was_being_undone_is_undone() -> None:
    bench = Bench(shadow=checked(Outcome.MISSES), deployment=Dying(at=["restore"]))
    with suppress(Killed):
        bench.promote()
    assert bench.store.held[1].state is PromotionState.APPLYING
    failed = bench.promoter.promote(1)
    assert failed.state is PromotionState.FAILED
    assert "misses its SLA" in failed.reason
    promoted = ["recover", "preflight", "apply", "verify", "restore"]
    assert bench.deployment.calls == [*promoted, "recover", "restore"]


class Killed(BaseException):
    """What nobody catches."""


@dataclass
class Dying(FakeDeployment):
    """Ends the process at the named calls, the first time."""

    at: list[str] = field(default_factory=list)

    def _called(self, name: str) -> None:
        super()._called(name)
        if name in self.at:
            self.at.remove(name)
            raise Killed


# --------------------------------------------------------------------------------------- rollback
def test_a_rollback_that_fails_leaves_the_promotion_in_service_and_is_told() -> None:
    bench = Bench(deployment=FakeDeployment(fails={"restore": ServerFailed("gone")}))
    done = bench.proposal(PromotionState.DONE, kept="/kept/it")
    with pytest.raises(AutotuneError, match="gone"):
        bench.promoter.roll_back(done, "slow")
    assert bench.store.held[done].state is PromotionState.DONE
    assert bench.store.actions == ["rollback begun", "rollback failed"]


def test_a_rollback_is_in_the_trail_with_the_difference_that_it_made() -> None:
    bench = Bench()
    bench.promote()
    bench.promoter.roll_back(1, "slow")
    steps = [(each.action, each.why, each.diff) for each in bench.store.trail[-2:]]
    back = "-b\n+a\n"
    assert steps == [("rollback begun", "slow", back), ("rolled back", "slow", back)]
    assert bench.told == [Event.ROLLED_BACK]
