"""Promotions from a stored study to a directory: proposed, decided on, carried out, undone."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.adapters.deploy.directory import DirectoryDeployment
from autotune.adapters.triton.config import read
from autotune.bootstrap import desk_promotions, releases
from autotune.bootstrap.desk_promotions import Promotions
from autotune.bootstrap.promotions import promote_now, propose_now, reject_now, roll_back_now
from autotune.bootstrap.settling import Settling
from autotune.core.errors import AutotuneError, Conflict, InputRefused
from autotune.core.jobs import JobKind
from autotune.core.promotions import Promotion, PromotionState, Target
from autotune.core.schedules import Schedule
from autotune.retune.promote import label_of
from autotune.settings import Settings
from search_spaces.candidate import Candidate
from storage.service import ServiceStore
from tests import onnx_models, promoting
from tests.promoting import put, tree

FOUND = Candidate({"max_batch_size": 1})
BATCHES = (1, 4, 8)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """In production."""
    put(tmp_path / "production", "ocr")
    put(tmp_path / "production", "bystander")
    return tmp_path / "production"


@pytest.fixture
def study(store: ServiceStore, tmp_path: Path) -> str:
    """Trial 1 has batches of 4, trial 2 of 8."""
    put(tmp_path / "models", "ocr")
    return stored(store, {"repository": str(tmp_path / "models"), "name": "ocr"})


def stored(store: ServiceStore, model: dict[str, str], **more: Any) -> str:
    definition = {
        "study": "ocr",
        "model": model,
        "workload": {"target_qps": 20},
        "sla": {"p50_ms": 150},
        "space": {"max_batch_size": list(BATCHES)},
        **more,
    }
    candidates = [Candidate({"max_batch_size": batch}) for batch in BATCHES]
    return str(promoting.stored_study(store, definition, candidates))


@pytest.fixture
def propose(store: ServiceStore, study: str, repository: Path) -> Callable[..., Promotion]:
    def proposed(trial: int = 1, **more: Any) -> Promotion:
        target = Target(repository=repository, shadow_s=0.0)
        options: dict[str, Any] = {"target": target, "why": "better", "by": "ann", **more}
        return propose_now(store, study, trial=trial, **options)

    return proposed


def batch(repository: Path) -> int:
    return int(read(repository / "ocr" / "config.pbtxt").max_batch_size)


# --------------------------------------------------------------------------------------- proposed
def test_a_proposal_shows_the_difference_and_touches_nothing(
    propose: Callable[..., Promotion], repository: Path
) -> None:
    before = tree(repository)
    proposal = propose()
    assert proposal.state is PromotionState.PROPOSED
    assert "-max_batch_size: 1\n+max_batch_size: 4\n" in proposal.diff
    assert tree(repository) == before


def test_a_trial_that_is_in_service_already_is_not_proposed(
    propose: Callable[..., Promotion],
) -> None:
    with pytest.raises(InputRefused, match="in service there already"):
        propose(trial=0)


def test_a_target_that_somebody_has_changed_is_refused_at_the_proposal(
    propose: Callable[..., Promotion], repository: Path
) -> None:
    (repository / "ocr" / "config.pbtxt").write_text(promoting.config("ocr", 2))
    with pytest.raises(InputRefused, match="neither"):
        propose()
    assert propose(anyway=True).state is PromotionState.PROPOSED


def test_weights_that_somebody_has_brought_since_are_not_overwritten(
    propose: Callable[..., Promotion], repository: Path
) -> None:
    (repository / "ocr" / "1" / "weights.bin").write_text("retrained")
    with pytest.raises(InputRefused, match=r"ocr/1/weights\.bin in service is neither"):
        propose()


def test_weights_that_the_last_promotion_brought_may_be_replaced(
    store: ServiceStore, propose: Callable[..., Promotion], repository: Path, tmp_path: Path
) -> None:
    promote_now(store, propose().id, by="bob")
    put(tmp_path / "retrained", "ocr", batch=4, weights="w2")
    study = stored(store, {"repository": str(tmp_path / "retrained"), "name": "ocr"})
    target = Target(repository=repository, shadow_s=0.0)
    proposal = propose_now(store, study, trial=2, target=target, why="", by="ann")
    promote_now(store, proposal.id, by="bob")
    assert (repository / "ocr" / "1" / "weights.bin").read_text() == "w2"


def test_a_live_target_whose_sla_is_to_be_checked_needs_an_http_address(
    propose: Callable[..., Promotion],
) -> None:
    with pytest.raises(InputRefused, match="no such address"):
        propose(target=Target(grpc="localhost:1", shadow_s=5.0))


# ------------------------------------------------------------------------------------ carried out
def test_a_promotion_is_in_service_afterwards_and_every_step_is_told(
    store: ServiceStore, propose: Callable[..., Promotion], repository: Path
) -> None:
    done = promote_now(store, propose().id, by="bob")
    assert done.state is PromotionState.DONE
    assert batch(repository) == 4
    assert store.promotions.champion("ocr", done.target) == done
    steps = store.promotions.audit(subject=f"promotion {done.id}")[::-1]
    assert [(each.who, each.action) for each in steps] == [
        ("ann", "proposed"),
        ("bob", "begun"),
        ("bob", "applied"),
        ("bob", "verified"),
        ("bob", "done"),
    ]
    assert "+max_batch_size: 4" in steps[1].diff


def test_the_release_waits_for_its_approval_and_goes_when_it_is_in_service(
    store: ServiceStore, propose: Callable[..., Promotion], tmp_path: Path
) -> None:
    proposal = propose()
    assert len(list((tmp_path / "service" / "releases").iterdir())) == 1
    promote_now(store, proposal.id, by="bob")
    assert not list((tmp_path / "service" / "releases").iterdir())


def test_a_release_that_is_gone_is_exported_again(
    store: ServiceStore, propose: Callable[..., Promotion], repository: Path, tmp_path: Path
) -> None:
    proposal = propose()
    for folder in (tmp_path / "service" / "releases").iterdir():
        folder.rename(tmp_path / "gone")
    assert promote_now(store, proposal.id, by="bob").state is PromotionState.DONE
    assert batch(repository) == 4


def test_a_champion_is_replaced_by_the_next_and_comes_back_when_that_is_rolled_back(
    store: ServiceStore, propose: Callable[..., Promotion], repository: Path
) -> None:
    before = tree(repository)
    first = promote_now(store, propose().id, by="bob")
    second = promote_now(store, propose(trial=2).id, by="bob")
    assert store.promotions.promotion(first.id).state is PromotionState.SUPERSEDED
    back = roll_back_now(store, second.id, by="eve", why="slow")
    assert (back.state, back.reason, back.decided_by) == (
        PromotionState.ROLLED_BACK,
        "slow",
        "eve",
    )
    champion = store.promotions.champion("ocr")
    assert champion is not None
    assert champion.id == first.id
    assert batch(repository) == 4
    roll_back_now(store, first.id, by="eve")
    assert tree(repository) == before
    assert store.promotions.champion("ocr") is None


def test_below_a_later_promotion_of_the_same_files_nothing_is_rolled_back(
    store: ServiceStore, propose: Callable[..., Promotion], repository: Path
) -> None:
    """To the same repository under another target's name."""
    first = promote_now(store, propose().id, by="bob")
    second = propose(trial=2)
    over = replace(second, target=Target(repository=repository, grpc="gpu1:8001", shadow_s=0.0))
    later = store.promotions.propose(over)
    store.promotions.advance(later, expected=releases.WAITING, state=PromotionState.DONE)
    with pytest.raises(Conflict, match=f"promotion {later} of ocr at .* came after") as refused:
        roll_back_now(store, first.id, by="eve")
    assert f"--target {repository} --target-grpc gpu1:8001" in refused.value.next_step
    assert batch(repository) == 4


def test_what_was_promoted_there_under_another_targets_name_is_known(
    store: ServiceStore, propose: Callable[..., Promotion], repository: Path
) -> None:
    proposal = propose()
    brought = releases.folder_of(Settings.from_environment(), proposal) / "ocr" / "config.pbtxt"
    other = store.promotions.propose(
        replace(proposal, target=Target(repository=repository, grpc="gpu1:8001", shadow_s=0.0))
    )
    store.promotions.advance(other, expected=releases.WAITING, state=PromotionState.DONE)
    shutil.copy(brought, repository / "ocr" / "config.pbtxt")
    assert propose(trial=2).state is PromotionState.PROPOSED


def test_what_is_not_in_service_is_not_rolled_back(
    store: ServiceStore, propose: Callable[..., Promotion]
) -> None:
    with pytest.raises(InputRefused, match="only what is in service"):
        roll_back_now(store, propose().id, by="eve")


def test_what_somebody_changed_after_the_proposal_is_not_overwritten(
    store: ServiceStore, propose: Callable[..., Promotion], repository: Path
) -> None:
    proposal = propose()
    (repository / "ocr" / "config.pbtxt").write_text(promoting.config("ocr", 2))
    with pytest.raises(InputRefused, match="neither"):
        promote_now(store, proposal.id, by="bob")
    assert store.promotions.promotion(proposal.id).state is PromotionState.FAILED
    assert batch(repository) == 2


def test_anyway_it_is_overwritten_and_kept(
    store: ServiceStore, propose: Callable[..., Promotion], repository: Path
) -> None:
    (repository / "ocr" / "config.pbtxt").write_text(promoting.config("ocr", 2))
    done = promote_now(store, propose(anyway=True).id, by="bob", anyway=True)
    assert batch(repository) == 4
    roll_back_now(store, done.id, by="bob")
    assert batch(repository) == 2


def test_a_target_that_is_gone_fails_the_promotion(
    store: ServiceStore, propose: Callable[..., Promotion], repository: Path
) -> None:
    proposal = propose()
    repository.rename(repository.with_name("elsewhere"))
    with pytest.raises(InputRefused, match="does not exist"):
        promote_now(store, proposal.id, by="bob")
    assert store.promotions.promotion(proposal.id).state is PromotionState.FAILED


def test_while_another_is_under_way_a_promotion_waits_as_it_was(
    store: ServiceStore, propose: Callable[..., Promotion], repository: Path
) -> None:
    proposal = propose()
    with (
        DirectoryDeployment(repository, known=None).locked(),
        pytest.raises(AutotuneError, match="another promotion is under way"),
    ):
        promote_now(store, proposal.id, by="bob")
    assert store.promotions.promotion(proposal.id).state is PromotionState.PROPOSED


def test_a_promotion_whose_process_is_gone_is_given_up_by_the_next(
    store: ServiceStore, propose: Callable[..., Promotion], repository: Path
) -> None:
    killed = propose()
    store.promotions.advance(
        killed.id, expected=[PromotionState.PROPOSED], state=PromotionState.APPLYING
    )
    assert promote_now(store, propose(trial=2).id, by="bob").state is PromotionState.DONE
    assert store.promotions.promotion(killed.id).state is PromotionState.FAILED
    assert batch(repository) == 8


def left(store: ServiceStore, proposal: Promotion, repository: Path, **detail: Any) -> None:
    """As a process that is killed after the switch leaves it."""
    folder = releases.folder_of(Settings.from_environment(), proposal)
    DirectoryDeployment(repository, known=None).apply(
        releases.release_at(folder), label=label_of(proposal)
    )
    store.promotions.advance(
        proposal.id,
        expected=[PromotionState.PROPOSED],
        state=PromotionState.APPLYING,
        detail={**proposal.detail, "begun": True, **detail},
    )


def test_what_a_killed_process_left_is_undone_without_anyone_asking(
    store: ServiceStore, propose: Callable[..., Promotion], repository: Path
) -> None:
    before = tree(repository)
    killed = propose()
    left(store, killed, repository)
    assert batch(repository) == 4
    Settling(store).see_to()
    assert store.promotions.promotion(killed.id).state is PromotionState.FAILED
    assert tree(repository) == before
    undone = store.promotions.audit(subject=f"promotion {killed.id}")[0]
    assert (undone.who, undone.action) == ("the service", "undone")
    assert "-max_batch_size: 4\n+max_batch_size: 1\n" in undone.diff


def test_what_a_process_or_a_job_is_at_is_left_alone(
    store: ServiceStore, propose: Callable[..., Promotion], repository: Path
) -> None:
    proposal = propose()
    left(store, proposal, repository)
    with store.promotions.alone(proposal.target):
        Settling(store).see_to()
    job = store.jobs.submit(JobKind.PROMOTE, "p", {"promotion": proposal.id}, by="ann")
    Settling(store).see_to()
    assert store.promotions.promotion(proposal.id).state is PromotionState.APPLYING
    store.jobs.cancel(job)
    Settling(store).see_to()
    assert store.promotions.promotion(proposal.id).state is PromotionState.FAILED


def test_what_cannot_be_settled_is_tried_again_after_a_while(
    store: ServiceStore, propose: Callable[..., Promotion], repository: Path
) -> None:
    proposal, clock = propose(), [0.0]
    left(store, proposal, repository)
    settling = Settling(store, now=lambda: clock[0])
    with store.promotions.alone(proposal.target):
        settling.see_to()
    settling.see_to()
    assert store.promotions.promotion(proposal.id).state is PromotionState.APPLYING
    clock[0] = 61.0
    settling.see_to()
    assert store.promotions.promotion(proposal.id).state is PromotionState.FAILED


def test_what_was_left_on_another_machine_is_undone_where_its_traces_are(
    store: ServiceStore,
    propose: Callable[..., Promotion],
    repository: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A directory of the same name is another one there, or one that both have."""
    monkeypatch.setattr(releases, "is_shared", lambda _: True)
    before = tree(repository)
    killed = propose()
    left(store, killed, repository, machine="another")
    repository.rename(tmp_path / "theirs")
    repository.with_name("production.autotune").rename(tmp_path / "theirs.autotune")
    shutil.copytree(tmp_path / "models", repository)
    Settling(store).see_to()
    done = promote_now(store, propose(trial=2).id, by="bob")
    assert (done.state, batch(repository)) == (PromotionState.DONE, 8)
    assert store.promotions.promotion(killed.id).state is PromotionState.APPLYING
    shutil.rmtree(repository)
    (tmp_path / "theirs").rename(repository)
    shutil.rmtree(repository.with_name("production.autotune"))
    (tmp_path / "theirs.autotune").rename(repository.with_name("production.autotune"))
    Settling(store).see_to()
    assert store.promotions.promotion(killed.id).state is PromotionState.FAILED
    assert tree(repository) == before


def test_in_the_repository_that_the_study_measured_a_killed_promotion_is_gone_on_with(
    store: ServiceStore, study: str, tmp_path: Path
) -> None:
    """The study's model has changed by then, and could not be exported again."""
    models = tmp_path / "models"
    target = Target(repository=models, shadow_s=0.0)
    proposal = propose_now(store, study, trial=1, target=target, why="", by="ann")
    left(store, proposal, models)
    done = promote_now(store, proposal.id, by="bob")
    assert done.state is PromotionState.DONE
    roll_back_now(store, done.id, by="bob")
    assert batch(models) == 1


# ---------------------------------------------------------------------------- what serves it there
@pytest.mark.parametrize(
    ("backend", "brought"), [("onnxruntime", "onnxruntime"), ("python", "python")]
)
def test_a_bare_onnx_file_is_promoted_in_the_form_that_the_target_serves(
    store: ServiceStore, repository: Path, tmp_path: Path, backend: str, brought: str
) -> None:
    study = stored(store, {"onnx": str(onnx_models.linear(tmp_path / "ocr.onnx")), "name": "ocr"})
    there = promoting.config("ocr").replace('"python"', f'"{backend}"')
    (repository / "ocr" / "config.pbtxt").write_text(there)
    target = Target(repository=repository, shadow_s=0.0)
    with pytest.raises(InputRefused, match="neither"):  # nobody knows who put that there
        propose_now(store, study, trial=1, target=target, why="", by="ann")
    proposal = propose_now(store, study, trial=1, target=target, why="", by="ann", anyway=True)
    promote_now(store, proposal.id, by="ann", anyway=True)
    assert read(repository / "ocr" / "config.pbtxt").backend == brought


# --------------------------------------------------------------------------------------- the desk
def test_an_approval_queues_the_promotion(
    store: ServiceStore, propose: Callable[..., Promotion]
) -> None:
    proposal = propose()
    job = Promotions(store).approve(proposal.id, by="ann")
    assert (job.kind, dict(job.payload), job.devices) == (
        JobKind.PROMOTE,
        {"promotion": proposal.id},
        (),
    )
    approved = store.promotions.promotion(proposal.id)
    assert (approved.state, approved.decided_by) == (PromotionState.APPROVED, "ann")


def test_an_approval_whose_job_cannot_be_queued_is_none(
    store: ServiceStore, propose: Callable[..., Promotion]
) -> None:
    proposal = propose()
    broken: list[Any] = [object()]
    with pytest.raises(AttributeError):
        store.approve(proposal, title="t", devices=broken, subject="s", by="ann")
    assert store.promotions.promotion(proposal.id).state is PromotionState.PROPOSED
    assert "approved" not in [entry.action for entry in store.promotions.audit()]


def test_what_one_has_rejected_another_cannot_approve(
    store: ServiceStore, propose: Callable[..., Promotion], tmp_path: Path
) -> None:
    proposal = propose()
    reject_now(store, proposal.id, why="not now", by="ann")
    with pytest.raises(InputRefused, match="rejected by ann"):
        Promotions(store).approve(proposal.id, by="bob")
    assert not list((tmp_path / "service" / "releases").iterdir())


def test_a_live_target_is_a_device_and_so_is_this_machine_for_its_check(
    store: ServiceStore, propose: Callable[..., Promotion]
) -> None:
    live = Target(grpc="gpu1:8001", http="gpu1:8000", shadow_s=10)
    made = store.promotions.propose(replace(propose(), target=live))
    devices = Promotions(store).approve(made, by="ann").devices
    assert devices == ("gpu1:8001", "here/cpu")


def test_a_rollback_is_queued_for_the_champion(
    store: ServiceStore, propose: Callable[..., Promotion]
) -> None:
    done = promote_now(store, propose().id, by="bob")
    job = Promotions(store).roll_back("ocr", why="slow", by="ann")
    assert (job.kind, dict(job.payload)) == (
        JobKind.ROLLBACK,
        {"promotion": done.id, "why": "slow"},
    )


def test_where_nothing_was_promoted_nothing_is_rolled_back(
    store: ServiceStore, propose: Callable[..., Promotion]
) -> None:
    propose()
    with pytest.raises(InputRefused, match="nothing of ocr that was promoted is in service"):
        Promotions(store).roll_back("ocr", why="", by="ann")
    with pytest.raises(InputRefused, match="no such model"):
        Promotions(store).roll_back("ocrr", why="", by="ann")


def test_a_models_history_is_its_own_however_much_was_done_about_others(
    store: ServiceStore, propose: Callable[..., Promotion], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(desk_promotions, "LOOKED_THROUGH", 2)
    proposal = propose()
    for number in range(3):
        store.promotions.propose(replace(proposal, model=f"other{number}"))
        store.promotions.note("ann", "paused", "schedule another")
    found = Promotions(store).history("ocr")
    assert [(each.action, each.subject) for each in found.audit] == [("proposed", "promotion 1")]
    assert Promotions(store).models() == ["ocr", "other0", "other1", "other2"]


def test_a_models_history_has_its_champions_nights_and_steps(
    store: ServiceStore, propose: Callable[..., Promotion], study: str
) -> None:
    done = promote_now(store, propose().id, by="bob")
    propose(trial=2)
    definition = store.trials.study(study).definition
    schedule = store.schedules.add(
        Schedule(id=0, name="nightly", definition=definition, cron="0 2 * * *")
    )
    store.schedules.due(schedule, 1000.0)
    found = Promotions(store).history("ocr")
    assert [each.id for each in found.champions] == [done.id]
    assert [run.schedule for run in found.nights] == ["nightly"]
    assert {entry.subject for entry in found.audit} == {"promotion 1", "promotion 2"}
    assert Promotions(store).models() == ["ocr"]
    (line,) = Promotions(store).lines()
    assert (line.model, line.champion, line.last, line.nights) == ("ocr", done, found.nights[0], 1)
