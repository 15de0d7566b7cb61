"""What every PromotionStore does."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.core.errors import Busy, InputRefused
from autotune.core.promotions import Promotion, PromotionState, Step, Target
from autotune.service_ports import PromotionStore
from storage.service import ServiceStore
from tests.contract.conftest import Clock

HERE, THERE = Target(repository=Path("models")), Target(grpc="triton:8001", http="triton:8000")
PROPOSAL = Promotion(
    id=0,
    model="ocr",
    target=HERE,
    study_id=4,
    trial=7,
    candidate={"instances": 2, "max_batch_size": 8},
    state=PromotionState.PROPOSED,
    why="31% cheaper",
    diff="--- a\n+++ b\n",
    schedule_id=3,
    created_by="schedule nightly",
    detail={"comparisons": [1.5]},
)
WAITING = (PromotionState.PROPOSED, PromotionState.APPROVED)


@pytest.fixture
def promotions(service: ServiceStore) -> PromotionStore:
    return service.promotions


@pytest.fixture
def others(again: ServiceStore) -> PromotionStore:
    return again.promotions


def _done(promotions: PromotionStore, promotion: Promotion = PROPOSAL) -> int:
    promotion_id = promotions.propose(promotion)
    promotions.advance(promotion_id, expected=WAITING, state=PromotionState.DONE)
    return promotion_id


# ----------------------------------------------------------------------------------- proposals
@pytest.mark.parametrize("target", [HERE, THERE], ids=["directory", "live"])
def test_a_proposal_comes_back_as_it_was_made(
    promotions: PromotionStore, others: PromotionStore, target: Target
) -> None:
    made = replace(PROPOSAL, target=target)
    promotion_id = promotions.propose(made)
    assert others.promotion(promotion_id) == replace(made, id=promotion_id, created_at=1000.0)


def test_a_proposal_supersedes_the_older_one_for_its_model_and_target_alone(
    promotions: PromotionStore,
) -> None:
    older = promotions.propose(PROPOSAL)
    elsewhere = promotions.propose(replace(PROPOSAL, target=THERE))
    another = promotions.propose(replace(PROPOSAL, model="other"))
    newer = promotions.propose(replace(PROPOSAL, target=replace(HERE, shadow_s=5.0)))
    assert promotions.promotion(older).state is PromotionState.SUPERSEDED
    assert promotions.promotion(older).reason == f"superseded by promotion {newer}"
    left = promotions.promotions(states=[PromotionState.PROPOSED])
    assert [promotion.id for promotion in left] == [newer, another, elsewhere]


def test_a_proposal_leaves_what_was_decided_already(promotions: PromotionStore) -> None:
    approved = promotions.propose(PROPOSAL)
    promotions.advance(approved, expected=WAITING, state=PromotionState.APPROVED, by="me")
    promotions.propose(PROPOSAL)
    assert promotions.promotion(approved).state is PromotionState.APPROVED


def test_promotions_are_listed_newest_first_by_model_by_state_and_up_to_a_limit(
    promotions: PromotionStore,
) -> None:
    older, newer = promotions.propose(PROPOSAL), promotions.propose(PROPOSAL)
    other = promotions.propose(replace(PROPOSAL, model="other"))
    assert [promotion.id for promotion in promotions.promotions()] == [other, newer, older]
    assert [promotion.id for promotion in promotions.promotions(model="ocr")] == [newer, older]
    superseded = promotions.promotions(states=[PromotionState.SUPERSEDED])
    assert [promotion.id for promotion in superseded] == [older]
    assert [promotion.id for promotion in promotions.promotions(limit=1)] == [other]


# ------------------------------------------------------------------------------------- advance
def test_a_promotion_goes_from_state_to_state_and_keeps_what_it_is_told(
    promotions: PromotionStore, clock: Clock
) -> None:
    promotion_id = promotions.propose(PROPOSAL)
    clock.at = 1010.0
    promotions.advance(
        promotion_id, expected=[PromotionState.PROPOSED], state=PromotionState.APPROVED, by="ann"
    )
    clock.at = 1020.0
    promotions.advance(
        promotion_id,
        expected=[PromotionState.APPROVED],
        state=PromotionState.APPLYING,
        kept=".autotune/3",
    )
    clock.at = 1030.0
    done = promotions.advance(
        promotion_id,
        expected=[PromotionState.APPLYING],
        state=PromotionState.DONE,
        reason="in service",
        detail={"shadow": {"p95_ms": 12.5}},
    )
    assert done == promotions.promotion(promotion_id)
    assert done == replace(
        PROPOSAL,
        id=promotion_id,
        created_at=1000.0,
        state=PromotionState.DONE,
        decided_by="ann",
        decided_at=1010.0,
        applied_at=1030.0,
        kept=".autotune/3",
        reason="in service",
        detail={"shadow": {"p95_ms": 12.5}},
    )


def test_what_one_has_rejected_another_cannot_approve(
    promotions: PromotionStore, others: PromotionStore
) -> None:
    promotion_id = promotions.propose(PROPOSAL)
    promotions.advance(
        promotion_id, expected=[PromotionState.PROPOSED], state=PromotionState.REJECTED, by="ann"
    )
    with pytest.raises(InputRefused, match=r"is rejected by ann: it cannot become approved"):
        others.advance(
            promotion_id, expected=[PromotionState.PROPOSED], state=PromotionState.APPROVED, by="b"
        )
    with pytest.raises(InputRefused, match=r"is already rejected by ann"):
        others.advance(
            promotion_id, expected=[PromotionState.PROPOSED], state=PromotionState.REJECTED, by="b"
        )
    assert others.promotion(promotion_id).decided_by == "ann"


def test_of_many_who_decide_at_once_one_does(
    promotions: PromotionStore, others: PromotionStore
) -> None:
    promotion_id = promotions.propose(PROPOSAL)

    def decide(store: PromotionStore, state: PromotionState) -> bool:
        try:
            store.advance(promotion_id, expected=[PromotionState.PROPOSED], state=state, by="x")
        except InputRefused:
            return False
        return True

    with ThreadPoolExecutor(6) as pool:
        asked = [
            pool.submit(decide, store, state)
            for store in (promotions, others)
            for state in (PromotionState.APPROVED, PromotionState.REJECTED) * 2
        ]
        assert sum(each.result(timeout=60) for each in asked) == 1


def test_an_unknown_promotion_is_refused(promotions: PromotionStore) -> None:
    with pytest.raises(InputRefused, match="no such promotion"):
        promotions.promotion(9)
    with pytest.raises(InputRefused, match="no such promotion"):
        promotions.advance(9, expected=WAITING, state=PromotionState.DONE)


def test_of_many_proposals_at_once_one_is_left(
    promotions: PromotionStore, others: PromotionStore
) -> None:
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda store: store.propose(PROPOSAL), (promotions, others) * 4, timeout=60))
    assert len(promotions.promotions(states=[PromotionState.PROPOSED])) == 1


def test_a_target_is_one_process_s_at_a_time_whatever_else_the_two_change(
    promotions: PromotionStore, others: PromotionStore
) -> None:
    both = replace(THERE, repository=HERE.repository)
    for held, asked in ((HERE, both), (both, THERE)):
        with promotions.alone(held):
            with others.alone(replace(THERE, grpc="elsewhere:8001")):
                pass
            with pytest.raises(Busy, match="under way at"), others.alone(asked):
                pass
        with others.alone(asked):
            pass


# ------------------------------------------------------------------------------------ champion
def test_the_champion_is_the_one_in_service_and_supersedes_the_last(
    promotions: PromotionStore, clock: Clock
) -> None:
    assert promotions.champion("ocr") is None
    first = _done(promotions)
    clock.at += 1
    second = _done(promotions)
    champion = promotions.champion("ocr", HERE)
    assert champion is not None
    assert (champion.id, champion.applied_at) == (second, 1001.0)
    assert promotions.promotion(first).state is PromotionState.SUPERSEDED


def test_what_is_superseded_keeps_its_reason_and_the_trail_says_by_what(
    promotions: PromotionStore, clock: Clock
) -> None:
    first = _done(promotions, replace(PROPOSAL, reason="p95 meets"))
    clock.at += 1
    second = _done(promotions)
    words = f"superseded by promotion {second}"
    assert promotions.promotion(first).reason == f"p95 meets; {words}"
    (step,) = promotions.audit(subject=f"promotion {first}")
    assert (step.who, step.action, step.why) == (PROPOSAL.created_by, "superseded", words)


def test_each_target_has_its_own_champion(promotions: PromotionStore, clock: Clock) -> None:
    here = _done(promotions)
    clock.at += 1
    there = _done(promotions, replace(PROPOSAL, target=THERE))
    found = [promotions.champion("ocr", target) for target in (HERE, THERE, None)]
    assert [None if each is None else each.id for each in found] == [here, there, there]
    assert promotions.champion("other") is None
    assert promotions.champion("ocr", Target(grpc="elsewhere:8001")) is None


def test_after_a_rollback_the_one_before_is_the_champion_again(
    promotions: PromotionStore, clock: Clock
) -> None:
    """The latest that was in service there, and no proposal that was superseded as one."""
    never = promotions.propose(PROPOSAL)
    _done(promotions, replace(PROPOSAL, target=THERE))
    oldest, old, new = (_done(promotions) for _ in range(3))
    clock.at += 1
    back = {"expected": [PromotionState.DONE], "state": PromotionState.ROLLED_BACK}
    promotions.advance(new, by="eve", **back)
    champion = promotions.champion("ocr", HERE)
    assert champion is not None
    assert (champion.id, champion.applied_at) == (old, clock.at)
    assert champion.reason == f"in service again: promotion {new} was rolled back"
    step = promotions.audit(subject=f"promotion {old}")[0]
    assert (step.who, step.action, step.why) == ("eve", "in service again", champion.reason)
    for each in (old, oldest):
        promotions.advance(each, **back)
    assert promotions.champion("ocr", HERE) is None
    assert promotions.promotion(never).state is PromotionState.SUPERSEDED


# --------------------------------------------------------------------------------------- audit
def test_the_audit_tells_who_did_what_when_and_why_newest_first(
    promotions: PromotionStore, others: PromotionStore, clock: Clock
) -> None:
    promotions.note("ann", "approved", "promotion 3", why="looks good", diff="+x", detail={"a": 1})
    clock.at = 1001.0
    promotions.note("bob", "paused", "schedule nightly")
    latest, first = others.audit()
    assert (first.at, first.who, first.action, first.subject) == (
        1000.0,
        "ann",
        "approved",
        "promotion 3",
    )
    assert (first.why, first.diff, first.detail) == ("looks good", "+x", {"a": 1})
    assert (latest.at, latest.who, latest.why, latest.detail) == (1001.0, "bob", "", {})
    assert [entry.who for entry in others.audit(subject="promotion 3")] == ["ann"]
    assert [entry.who for entry in others.audit(limit=1)] == ["bob"]
    assert len(others.audit(subjects=["promotion 3", "schedule nightly"])) == 2


def test_a_step_is_in_the_trail_with_the_change_that_it_made_or_neither_is(
    promotions: PromotionStore,
) -> None:
    promotion = promotions.propose(PROPOSAL, step=Step(who="ann", action="proposed", diff="+x"))
    rejected = PromotionState.REJECTED
    no = Step(who="bob", action="rejected", why="not now")
    promotions.advance(promotion, expected=WAITING, state=rejected, step=no)
    with pytest.raises(InputRefused):
        promotions.advance(promotion, expected=WAITING, state=rejected, step=no)
    steps = promotions.audit(subject=f"promotion {promotion}")
    assert [(each.who, each.action, each.why, each.diff) for each in steps] == [
        ("bob", "rejected", "not now", ""),
        ("ann", "proposed", "", "+x"),
    ]
    assert promotions.models() == ["ocr"]
