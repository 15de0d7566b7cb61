"""What a night is wired with: its window, its champion, what is in a promotion's way."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.bootstrap.nightly import _At, _Work, run_night, until
from autotune.core.decision import decide
from autotune.core.errors import InputRefused
from autotune.core.promotions import Promotion, PromotionState, Target
from autotune.core.records import StudyState
from autotune.core.schedules import NightRun, Outcome, RunState, Schedule
from autotune.core.study import Launch
from autotune.core.trial import Trial, TrialState
from autotune.retune.nightly import Tonight, WindowOver
from search_spaces.candidate import Candidate
from storage.service import ServiceStore
from tests.runner_bench import FOUR, ONE, TWO, study
from tests.unit.made_trials import made_measurement

STUDY = study()
TARGET = Target(repository=Path("/models"))
SCHEDULE = Schedule(id=1, name="nightly", definition=STUDY.definition, cron="0 2 * * *")


# ------------------------------------------------------------------------------------ the window
def test_the_end_of_the_window_interrupts_whatever_is_done_in_it() -> None:
    before = signal.getsignal(signal.SIGALRM)
    with pytest.raises(WindowOver, match="maintenance window was over"), until(time.time() + 0.05):
        time.sleep(30)
    assert signal.getsignal(signal.SIGALRM) is before


def test_what_ends_before_the_window_does_is_not_interrupted_later() -> None:
    with until(time.time() + 0.1):
        pass
    time.sleep(0.2)


def test_a_window_that_is_over_already_interrupts_at_once() -> None:
    with pytest.raises(WindowOver), until(time.time() - 5):
        time.sleep(30)


def test_without_a_window_nothing_interrupts() -> None:
    before = signal.getsignal(signal.SIGALRM)
    with until(None):
        assert signal.getsignal(signal.SIGALRM) is before


# ---------------------------------------------------------------------------------- the champion
@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceStore]:
    made = ServiceStore(str(tmp_path_factory.mktemp("wired") / "autotune.db"))
    yield made
    made.close()


def work(store: ServiceStore, **changes: Any) -> _Work:
    options: dict[str, Any] = {
        "schedule": replace(SCHEDULE, target=TARGET),
        "study": STUDY,
        "run": NightRun(
            id=1, schedule_id=1, schedule="nightly", scheduled_for=0.0, state=RunState.RUNNING
        ),
    }
    return _Work(
        store=store,
        at=_At(db="", out=Path("out"), by="test", listen=lambda _: None),
        started=lambda _: None,
        **{**options, **changes},
    )


def promoted(
    store: ServiceStore,
    candidate: Candidate,
    state: PromotionState = PromotionState.DONE,
    model: str = "m",
    target: Target = TARGET,
) -> int:
    made = Promotion(
        id=0,
        model=model,
        target=target,
        study_id=store.trials.create_study("s", STUDY.definition, STUDY.digest),
        trial=1,
        candidate=candidate.to_json(),
        state=PromotionState.PROPOSED,
    )
    number = store.promotions.propose(made)
    if state is not PromotionState.PROPOSED:
        store.promotions.advance(number, expected=(PromotionState.PROPOSED,), state=state)
    return number


def named(model: str) -> Any:
    """A study of a model of its own, so that the tests' promotions are apart."""
    return replace(STUDY, model=replace(STUDY.model, name=model))


def test_what_was_promoted_last_is_the_champion(store: ServiceStore) -> None:
    promoted(store, TWO, model="a")
    assert work(store, study=named("a"))._in_service(ONE).champion == TWO


def test_where_nothing_was_promoted_it_is_what_is_found(store: ServiceStore) -> None:
    assert work(store, study=named("never"))._in_service(ONE).champion is None


def test_a_promotion_to_another_place_is_not_this_schedules_champion(store: ServiceStore) -> None:
    promoted(store, TWO, model="b", target=Target(repository=Path("/elsewhere")))
    assert work(store, study=named("b"))._in_service(ONE).champion is None


def test_a_promotion_of_a_wider_space_is_told_in_the_words_of_this_one(
    store: ServiceStore,
) -> None:
    wider = Candidate({"instances": 4, "max_batch_size": 8})
    promoted(store, wider, model="c")
    assert work(store, study=named("c"))._in_service(ONE).champion == FOUR


def test_a_promotion_outside_of_the_space_is_the_champion_all_the_same(
    store: ServiceStore,
) -> None:
    odd = Candidate({"instances": 3})
    promoted(store, odd, model="d")
    assert work(store, study=named("d"))._in_service(ONE).champion == odd


def test_where_the_study_finds_its_model_in_the_target_what_is_found_is_the_champion(
    store: ServiceStore,
) -> None:
    promoted(store, TWO, model="e")
    here = named("e")
    here = replace(here, model=replace(here.model, repository=Path("/models"), onnx=None))
    assert work(store, study=here)._in_service(ONE).champion is None


def test_so_it_is_on_a_live_server_that_is_tuned_itself(store: ServiceStore) -> None:
    live = Target(grpc="host:8001", shadow_s=0)
    promoted(store, TWO, model="f", target=live)
    here = named("f")
    server = replace(here.server, launch=Launch.REMOTE, grpc="host:8001", http="host:8000")
    schedule = replace(SCHEDULE, target=live)
    assert (
        work(store, study=replace(here, server=server), schedule=schedule)._in_service(ONE).champion
        is None
    )
    assert work(store, study=here, schedule=schedule)._in_service(ONE).champion == TWO


# ------------------------------------------------------------------------------- what is in its way
@pytest.mark.parametrize(
    ("states", "words"),
    [
        ([PromotionState.REJECTED], "was rejected"),
        ([PromotionState.FAILED, PromotionState.FAILED], "has failed"),
        ([PromotionState.FAILED], ""),
        ([PromotionState.DONE], ""),
    ],
)
def test_what_was_rejected_or_failed_twice_is_not_promoted_by_itself(
    store: ServiceStore, states: list[PromotionState], words: str
) -> None:
    model = "-".join(map(str, states))
    for state in states:
        promoted(store, TWO, state, model=model)
    told = work(store, study=named(model)).barred(TWO)
    assert words in told
    assert bool(told) is bool(words)
    assert work(store, study=named(model)).barred(FOUR) == ""


def test_a_proposal_that_waits_already_is_not_made_twice(store: ServiceStore) -> None:
    waiting = promoted(store, TWO, PromotionState.PROPOSED, model="g")
    assert work(store, study=named("g")).propose(tonight(TWO), 1, "why") == waiting


def tonight(pick: Candidate) -> Tonight:
    return Tonight(
        study=STUDY,
        study_id=1,
        trials=[Trial(number=1, candidate=pick, state=TrialState.OK)],
        decision=decide([], STUDY.sla, STUDY.objectives, STUDY.pick),
        why="",
        held=False,
    )


# --------------------------------------------------------------------------------------- the past
def test_studies_of_the_same_model_are_the_past_with_what_their_nights_kept(
    tmp_path: Path,
) -> None:
    store = ServiceStore(str(tmp_path / "autotune.db"))
    schedule_id = store.schedules.add(SCHEDULE)
    for at, outcome in ((1.0, Outcome.HOLDS), (2.0, None)):
        study_id = store.trials.create_study("s", STUDY.definition, STUDY.digest)
        store.trials.begin_trial(study_id, 0, ONE)
        store.trials.add_measurement(study_id, 0, made_measurement())
        store.trials.end_trial(study_id, 0, TrialState.OK)
        store.trials.set_study_state(study_id, StudyState.DONE)
        run_id = store.schedules.due(schedule_id, at)
        assert run_id is not None
        store.schedules.update_run(run_id, study_id=study_id, state=RunState.DONE, outcome=outcome)
    other = {**STUDY.definition, "model": {"onnx": "/other.onnx", "name": "other"}}
    store.trials.create_study("t", other, "digest")
    pasts = work(store)._pasts(None)
    assert [past.kept for past in pasts] == [None, ONE]
    assert len(work(store)._pasts(pasts[0].record.id)) == 1
    store.close()


def test_a_run_whose_schedule_is_gone_has_failed_though_there_be_a_new_one_of_its_name(
    tmp_path: Path,
) -> None:
    db = str(tmp_path / "autotune.db")
    store = ServiceStore(db)
    run_id = store.schedules.due(store.schedules.add(SCHEDULE), 1.0)
    store.schedules.remove("nightly")
    store.schedules.add(SCHEDULE)
    assert run_id is not None
    with pytest.raises(InputRefused, match="the schedule was removed"):
        run_night(run_id, db=db, out=tmp_path, by="test", listen=lambda _: None)
    assert store.schedules.run(run_id).state is RunState.FAILED
    store.close()
