"""What earlier studies tell tonight's: the warm start, and what was seen last."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from autotune.core.records import HELD, StudyState
from autotune.core.schedules import Outcome
from autotune.core.trial import TrialState
from autotune.retune.past import (
    STUDIES,
    kept_by,
    known_trials,
    last_seen,
    looked_back_on,
    worth_asking_first,
)
from search_spaces.candidate import Candidate
from tests.runner_bench import FOUR, ONE, TWO
from tests.unit.test_night import HERE, STUDY, past, trial

OTHER = {**STUDY.definition, "space": {"instances": [1, 8]}}


def candidates(trials: Any) -> list[Candidate]:
    return [each.candidate for each in trials]


def test_of_a_candidate_that_was_measured_often_the_latest_trial_is_known() -> None:
    pasts = [past(trial(0, ONE, 50.0), study_id=9), past(trial(0, ONE, 40.0), trial(1, TWO))]
    known = known_trials(STUDY.definition, pasts, HERE)
    assert set(candidates(known)) == {ONE, TWO}
    one = next(each for each in known if each.candidate == ONE)
    assert one.measurement is not None
    assert one.measurement.metric("p95_ms") == 50.0


@pytest.mark.parametrize("state", [TrialState.RUNNING, TrialState.INVALID])
def test_what_says_nothing_of_its_candidate_is_not_known(state: TrialState) -> None:
    pasts = [past(replace(trial(0, ONE), state=state))]
    assert known_trials(STUDY.definition, pasts, HERE) == []


def test_a_study_that_was_stopped_has_its_trials_known() -> None:
    pasts = [past(trial(0, ONE), state=StudyState.INTERRUPTED)]
    assert candidates(known_trials(STUDY.definition, pasts, HERE)) == [ONE]


@pytest.mark.parametrize("change", [{"model_digest": "b"}, {"cores": 4}, {"gpus": ["A10"]}])
def test_numbers_of_another_model_or_machine_are_not_known(change: dict[str, Any]) -> None:
    assert known_trials(STUDY.definition, [past(trial(0, ONE), **change)], HERE) == []


def test_a_promotion_that_changed_only_what_is_tuned_leaves_them_known() -> None:
    pasts = [past(trial(0, ONE), model_basis="x", model_digest="b")]
    assert known_trials(STUDY.definition, pasts, {**HERE, "model_basis": "x"}) != []


def test_numbers_of_another_question_are_not_known() -> None:
    (old,) = [past(trial(0, ONE))]
    other = replace(old, record=replace(old.record, definition=OTHER))
    assert known_trials(STUDY.definition, [other], HERE) == []


def test_the_best_known_come_first_less_the_champion() -> None:
    known = [trial(0, FOUR, 20.0), trial(1, ONE, 300.0), trial(2, TWO, 40.0)]
    assert worth_asking_first(STUDY, known, champion=ONE)[0] == TWO
    assert TWO not in worth_asking_first(STUDY, known, champion=TWO)


def test_nothing_known_is_nothing_to_ask_first() -> None:
    assert worth_asking_first(STUDY, [], champion=ONE) == ()


def test_a_candidate_was_last_seen_in_the_newest_study_that_measured_it() -> None:
    pasts = [
        past(trial(0, TWO), study_id=9),
        past(trial(0, TWO), trial(3, ONE), study_id=8),
        past(trial(0, ONE), study_id=7),
    ]
    found = last_seen(ONE, STUDY.definition, pasts, HERE)
    assert found is not None
    assert (found[0].record.id, found[1].number) == (8, 3)


def test_on_another_model_it_was_seen_all_the_same() -> None:
    other = [past(trial(0, ONE), model_digest="b")]
    assert last_seen(ONE, STUDY.definition, other, HERE) is not None


def test_of_machines_that_share_a_database_the_one_of_the_same_hardware_is_looked_at() -> None:
    """Where there is none, another one: its hardware is then what has changed."""
    other = past(trial(0, ONE), study_id=9, processor="another")
    mine = past(trial(0, ONE), study_id=8)
    for pasts, study_id in (([other, mine], 8), ([other], 9)):
        found = last_seen(ONE, STUDY.definition, pasts, HERE)
        assert found is not None
        assert found[0].record.id == study_id


def test_a_season_of_nights_that_only_held_hides_no_search() -> None:
    held = [
        past(trial(0, ONE), study_id=n, **{HELD: "it wins"}).record for n in range(500, 100, -1)
    ]
    searched = [past(trial(0, ONE), study_id=n).record for n in range(100, 0, -1)]
    found = looked_back_on([*held, *searched])
    assert [record.id for record in found] == [
        *range(500, 500 - STUDIES, -1),
        *range(100, 100 - STUDIES, -1),
    ]


def test_under_another_workload_it_was_not() -> None:
    old = past(trial(0, ONE))
    workload = {**STUDY.definition["workload"], "target_qps": 10.0}
    changed = {**STUDY.definition, "workload": workload}
    other = replace(old, record=replace(old.record, definition=changed))
    assert last_seen(ONE, STUDY.definition, [other], HERE) is None


@pytest.mark.parametrize(
    ("outcome", "night", "kept"),
    [
        (Outcome.HOLDS, True, ONE),
        (Outcome.ROLLED_BACK, True, ONE),
        (Outcome.PROMOTED, True, TWO),
        (Outcome.BETTER, True, TWO),
        (Outcome.PROPOSED, True, TWO),
        (Outcome.NO_PICK, True, None),
        (None, True, None),
        (None, False, TWO),
    ],
)
def test_what_a_study_left_in_service_follows_from_what_its_night_came_to(
    outcome: Outcome | None, night: bool, kept: Candidate | None
) -> None:
    """One that a night only told of, or proposed, counts once it is the champion."""
    assert kept_by([trial(0, ONE), trial(1, TWO)], 1, outcome, night=night) == kept
