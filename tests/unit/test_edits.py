"""What somebody changed in service since a promotion, and what a night makes of that."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.adapters.triton.config import ModelConfig, parse
from autotune.bootstrap import edits, releases
from autotune.bootstrap.edits import edited_since
from autotune.bootstrap.nightly import _At, _InService, _Work
from autotune.bootstrap.promotions import promote_now, propose_now
from autotune.bootstrap.releases import BRINGS, Contents
from autotune.bootstrap.session import Present
from autotune.core.decision import decide
from autotune.core.errors import InputRefused, ServerFailed
from autotune.core.promotions import Promotion, PromotionState, Step, Target
from autotune.core.records import StudyRecord, StudyState
from autotune.core.schedules import NightRun, Policy, RunState, Schedule
from autotune.core.study import Study
from autotune.core.trial import Trial, TrialState
from autotune.retune.nightly import Tonight
from autotune.retune.past import Past
from autotune.retune.promote import BEGUN, MACHINE
from autotune.studyfile import study_from_options
from search_spaces.candidate import Candidate
from storage.service import ServiceStore
from tests import promoting
from tests.promoting import put
from tests.unit.made_trials import made_measurement

BATCHES = (1, 2, 4)
FOUND = Candidate({"max_batch_size": 1})


@pytest.fixture
def definition(tmp_path: Path) -> dict[str, Any]:
    put(tmp_path / "models", "ocr")
    return {
        "study": "ocr",
        "model": {"repository": str(tmp_path / "models"), "name": "ocr"},
        "workload": {"target_qps": 20},
        "sla": {"p50_ms": 150},
        "space": {"max_batch_size": list(BATCHES)},
    }


@pytest.fixture
def study(definition: dict[str, Any]) -> Study:
    return study_from_options(definition)


@pytest.fixture
def ocr(tmp_path: Path) -> Path:
    """The model's folder in production."""
    return put(tmp_path / "production", "ocr")


@pytest.fixture
def champion(store: ServiceStore, definition: dict[str, Any], ocr: Path) -> Promotion:
    """Batches of 4 are in service."""
    candidates = [Candidate({"max_batch_size": batch}) for batch in BATCHES]
    stored = promoting.stored_study(store, definition, candidates)
    target = Target(repository=ocr.parent, shadow_s=0.0)
    proposal = propose_now(store, str(stored), trial=2, target=target, why="", by="ann")
    done = promote_now(store, proposal.id, by="ann")
    assert done.state is PromotionState.DONE
    return done


def rewrite(ocr: Path, change: Callable[[str], str]) -> None:
    file = ocr / "config.pbtxt"
    file.write_text(change(file.read_text()))


def halved(text: str) -> str:
    assert "max_batch_size: 4" in text
    return text.replace("max_batch_size: 4", "max_batch_size: 2")


# --------------------------------------------------------------------------------- what was changed
def test_what_is_as_it_was_promoted_has_not_been_edited(
    store: ServiceStore, champion: Promotion, study: Study, ocr: Path
) -> None:
    rewrite(ocr, lambda text: f"# only a comment\n{text}")
    (ocr / "labels.txt").write_text("beyond the release\n")
    assert edited_since(store, champion, study) is None


def test_another_value_of_what_is_tuned_is_told_with_its_difference_in_the_spaces_words(
    store: ServiceStore, champion: Promotion, study: Study, ocr: Path
) -> None:
    rewrite(ocr, halved)
    found = edited_since(store, champion, study)
    assert found is not None
    assert found.words == "ocr: max_batch_size is 2, not 4"
    assert "(as it was)" in found.diff
    assert "-max_batch_size: 4\n+max_batch_size: 2\n" in found.diff
    assert found.candidate == Candidate({"max_batch_size": 2})
    assert (found.promotion, found.lasting) == (champion.id, True)


@pytest.mark.parametrize(
    "change",
    [
        lambda text: f'{text}\nparameters {{ key: "depth" value {{ string_value: "3" }} }}\n',
        lambda text: halved(text) + '\ndefault_model_filename: "other.py"\n',
    ],
    ids=["what is not tuned", "both"],
)
def test_what_the_space_cannot_say_is_told_and_has_no_candidate(
    store: ServiceStore,
    champion: Promotion,
    study: Study,
    ocr: Path,
    change: Callable[[str], str],
) -> None:
    rewrite(ocr, change)
    found = edited_since(store, champion, study)
    assert found is not None
    assert found.words
    assert found.candidate is None


def test_other_files_than_were_promoted_are_told(
    store: ServiceStore, champion: Promotion, study: Study, ocr: Path
) -> None:
    (ocr / "1" / "weights.bin").unlink()
    (ocr / "1" / "model.py").write_text("# serves otherwise\n")
    found = edited_since(store, champion, study)
    assert found is not None
    assert "ocr/1/weights.bin is gone" in found.words
    assert "ocr/1/model.py has other contents" in found.words
    assert found.candidate is None


def test_a_model_that_is_gone_is_told(
    store: ServiceStore, champion: Promotion, study: Study, ocr: Path
) -> None:
    shutil.rmtree(ocr)
    found = edited_since(store, champion, study)
    assert found is not None
    assert found.words.startswith("ocr is not there any more")
    assert found.candidate is None


def test_what_cannot_be_read_is_refused_and_not_taken_for_an_edit(
    store: ServiceStore, champion: Promotion, study: Study, ocr: Path
) -> None:
    rewrite(ocr, lambda _: "max_batch_size: {")
    with pytest.raises(InputRefused):
        edited_since(store, champion, study)


# --------------------------------------------------------------------------------- on a live server
class Served:
    """A target that has these configurations, completed as a server does."""

    def __init__(self, **configs: str) -> None:
        self.configs = {name: parse(text, name) for name, text in configs.items()}

    def present(self, name: str) -> ModelConfig | None:
        found = self.configs.get(name)
        if found is not None:
            found.instance_group.add(name=f"{name}_0", count=1)
        return found


def batched(size: int) -> str:
    return f"{promoting.config('ocr', size)}dynamic_batching {{ }}\n"


@pytest.mark.parametrize(
    ("config", "batch"),
    [(batched(4), 4), (batched(2), 2), (promoting.config("ocr", 1), 1)],
    ids=["as sent", "another was loaded", "restarted"],
)
def test_what_a_live_server_has_loaded_is_held_against_what_was_sent_to_it(
    store: ServiceStore,
    study: Study,
    monkeypatch: pytest.MonkeyPatch,
    config: str,
    batch: int,
) -> None:
    served = Served(ocr=config)
    monkeypatch.setattr(edits, "place", lambda *_, **__: served)
    sent = Contents(configs={"ocr": batched(4)})
    found = edited_since(store, sent_to_a_server(store, sent), study)
    assert (found is None) is (batch == 4)
    if found is not None:
        assert f"# ocr: max_batch_size is {batch}, not 4\n" in found.diff
        assert found.candidate == Candidate({"max_batch_size": batch})
        assert not found.lasting


def sent_to_a_server(store: ServiceStore, contents: Contents) -> Promotion:
    made = Promotion(
        id=0,
        model="ocr",
        target=Target(grpc="host:8001", shadow_s=0.0),
        study_id=store.trials.create_study("ocr", {}, "digest"),
        trial=2,
        candidate={"max_batch_size": 4},
        state=PromotionState.DONE,
        detail={BRINGS: contents.to_json()},
    )
    return store.promotions.promotion(store.promotions.propose(made))


# -------------------------------------------------------------------------------------- in a night
def in_service(store: ServiceStore, study: Study, target: Target) -> _InService:
    return work_of(store, study, target)._in_service(FOUND)


def work_of(store: ServiceStore, study: Study, target: Target | None) -> _Work:
    return _Work(
        store=store,
        schedule=Schedule(
            id=1, name="nightly", definition=study.definition, cron="0 2 * * *", target=target
        ),
        run=NightRun(
            id=1, schedule_id=1, schedule="nightly", scheduled_for=0.0, state=RunState.RUNNING
        ),
        study=study,
        at=_At(db="", out=Path("out"), by="test", listen=lambda _: None),
        started=lambda _: None,
    )


def test_a_nights_champion_is_what_somebody_has_made_of_it(
    store: ServiceStore, champion: Promotion, study: Study, ocr: Path
) -> None:
    rewrite(ocr, halved)
    found = in_service(store, study, champion.target)
    assert found.champion == Candidate({"max_batch_size": 2})
    assert found.promoted == Candidate({"max_batch_size": 4})
    assert found.measured
    assert found.edited is not None


def test_what_the_space_cannot_say_leaves_what_was_promoted_to_be_measured(
    store: ServiceStore, champion: Promotion, study: Study, ocr: Path
) -> None:
    (ocr / "1" / "weights.bin").write_text("others")
    found = in_service(store, study, champion.target)
    assert found.champion == Candidate({"max_batch_size": 4})
    assert not found.measured
    assert found.edited is not None


def test_where_the_study_finds_its_model_in_the_target_the_edit_is_measured_as_found(
    store: ServiceStore, champion: Promotion, study: Study, ocr: Path
) -> None:
    (ocr / "1" / "weights.bin").write_text("others")
    there = replace(study, model=replace(study.model, repository=ocr.parent))
    found = in_service(store, there, champion.target)
    assert found.champion is None
    assert found.measured
    assert found.edited is not None


def test_where_nothing_was_promoted_the_target_is_held_against_what_the_study_finds(
    store: ServiceStore, study: Study, ocr: Path
) -> None:
    """Not the files: the target's model may be another version."""
    target = Target(repository=ocr.parent, shadow_s=0.0)
    (ocr / "1" / "weights.bin").write_text("others")
    assert in_service(store, study, target) == _InService(promoted=FOUND)
    (ocr / "config.pbtxt").write_text(batched(2))
    found = in_service(store, study, target)
    assert found.edited is not None
    assert found.edited.told.startswith(f"what is in service at {target} is not what the study")
    assert (found.edited.promotion, found.champion) == (None, TWO)
    other = Target(repository=ocr.parent.parent, shadow_s=0.0)
    assert in_service(store, study, other) == _InService(promoted=FOUND)  # it has no such model


FOUR, TWO = Candidate({"max_batch_size": 4}), Candidate({"max_batch_size": 2})


def measured_in(study: Study, study_id: int, *candidates: Candidate) -> Past:
    record = StudyRecord(
        id=study_id,
        name="ocr",
        state=StudyState.DONE,
        definition=study.definition,
        digest=study.digest,
        created_at=0.0,
    )
    trials = [
        Trial(
            number=number,
            candidate=candidate,
            state=TrialState.OK,
            measurements=(made_measurement(),),
        )
        for number, candidate in enumerate(candidates)
    ]
    return Past(record=record, trials=trials, kept=None)


def test_an_edit_is_held_against_what_was_promoted_until_a_night_has_measured_the_edit(
    store: ServiceStore, study: Study
) -> None:
    last_night = measured_in(study, 7, FOUR, TWO)
    service = _InService(champion=TWO, promoted=FOUR, measured=True)
    work = work_of(store, study, Target(repository=Path("/models")))

    def before(*pasts: Past) -> tuple[int, int]:
        found = work._before(TWO, pasts, {}, service)
        assert found is not None
        return found[0].record.id, found[1].number

    assert before(last_night) == (7, 0)
    assert before(measured_in(study, 8, TWO), last_night) == (8, 0)


def test_a_model_that_is_tuned_where_it_is_served_is_held_against_what_was_found_before(
    store: ServiceStore, study: Study
) -> None:
    """There is no target, and nothing was promoted."""
    work = work_of(store, study, None)
    found = work._in_service(TWO, [measured_in(study, 8, FOUR, TWO), measured_in(study, 7, TWO)])
    assert (found.champion, found.promoted, found.measured) == (None, FOUR, True)
    assert found.edited is not None
    assert found.edited.told == (
        f"what is in service at {study.model.repository} is not what the study before found there:"
        " max_batch_size is 2, not 4"
    )
    assert work._in_service(FOUR, [measured_in(study, 8, FOUR, TWO)]) == _InService()
    assert work._in_service(FOUR) == _InService()
    taken = replace(measured_in(study, 8, FOUR, TWO), kept=TWO)  # its pick, put there by hand
    assert work._in_service(TWO, [taken]) == _InService()


@pytest.mark.parametrize(
    ("state", "here", "later", "silent"),
    [
        (PromotionState.ROLLED_BACK, True, True, True),
        (PromotionState.DONE, True, True, True),
        (PromotionState.DONE, True, False, False),
        (PromotionState.DONE, False, True, False),
        (PromotionState.PROPOSED, True, True, False),
    ],
    ids=["undone since", "promoted since", "before that study", "elsewhere", "only proposed"],
)
def test_what_autotune_has_changed_there_since_is_no_edit(
    store: ServiceStore,
    study: Study,
    tmp_path: Path,
    state: PromotionState,
    here: bool,
    later: bool,
    silent: bool,
) -> None:
    """Under another target's name: the schedule's own has nothing in service."""
    made = Promotion(
        id=0,
        model="ocr",
        target=Target(
            repository=study.model.repository if here else tmp_path, grpc="host:8001", shadow_s=0.0
        ),
        study_id=store.trials.create_study("ocr", {}, "digest"),
        trial=2,
        candidate=FOUR.to_json(),
        state=PromotionState.PROPOSED if state is PromotionState.PROPOSED else PromotionState.DONE,
    )
    past = measured_in(study, 8, FOUR)
    number = store.promotions.propose(made)
    at = store.promotions.promotion(number).applied_at or 0.0
    if state is PromotionState.ROLLED_BACK:
        store.promotions.advance(
            number,
            expected=(PromotionState.DONE,),
            state=state,
            detail={BEGUN: True},
            step=Step(who="ann", action="rolled back"),
        )
        at = store.promotions.audit(limit=1)[0].at
    then = replace(past.record, created_at=at if later else at + 1.0)
    work = work_of(store, study, Target(repository=study.model.repository, shadow_s=0.0))
    found = work._in_service(TWO, [replace(past, record=then)])
    assert (found.edited is None) is silent


@pytest.mark.parametrize("promoted", [True, False])
def test_what_is_changed_while_a_night_runs_is_seen_before_it_would_promote(
    store: ServiceStore, study: Study, ocr: Path, promoted: bool, request: Any
) -> None:
    """Where the study finds its model in the target, and would take the edit for its own."""
    number = request.getfixturevalue("champion").id if promoted else None
    there = replace(study, model=replace(study.model, repository=ocr.parent))
    work = work_of(store, there, Target(repository=ocr.parent, shadow_s=0.0))
    work.schedule = replace(work.schedule, policy=Policy.AUTO)
    work._plan(Present(found=FOUND, environment={}), lambda _: None, None)
    night = Tonight(
        study=there,
        study_id=1,
        trials=(),
        decision=decide([], there.sla, there.objectives, there.pick),
        why="",
        held=False,
    )
    assert work.edited_since(night) is None
    rewrite(ocr, lambda text: f'{text}\ndefault_model_filename: "other.py"\n')
    found = work.edited_since(night)
    assert found is not None
    assert (found.promotion, found.candidate) == (number, None)
    assert "default_model_filename" in found.diff
    rewrite(ocr, lambda _: "max_batch_size: {")
    assert work.edited_since(night) is None


def test_a_target_that_cannot_be_looked_at_is_told_and_what_was_promoted_is_measured(
    store: ServiceStore, champion: Promotion, study: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_: Any, **__: Any) -> Any:
        raise ServerFailed("no live Triton answers at host:8001")

    monkeypatch.setattr(edits, "place", gone)
    found = in_service(store, study, champion.target)
    assert found.unseen == "no live Triton answers at host:8001"
    assert found.champion == Candidate({"max_batch_size": 4})


def test_a_directory_of_the_same_path_on_another_machine_is_not_taken_for_this_one(
    store: ServiceStore, champion: Promotion, study: Study, ocr: Path, monkeypatch: Any
) -> None:
    """By the traces that the promotion has left beside the directory, which a shared one has."""
    detail = {**champion.detail, MACHINE: "gpu-b"}
    done = (PromotionState.DONE,)
    store.promotions.advance(champion.id, expected=done, state=done[0], detail=detail)
    monkeypatch.setattr(releases, "is_shared", lambda _: True)
    assert in_service(store, study, champion.target).unseen == ""
    shutil.rmtree(ocr.parent.with_name(f"{ocr.parent.name}.autotune"))
    found = in_service(store, study, champion.target)
    assert (found.champion, found.edited) == (None, None)
    assert "was made by gpu-b, to another directory of the same path" in found.unseen
