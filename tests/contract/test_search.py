"""What every search owes: see `autotune.ports.Search`."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.adapters.search import GridSearch, OptunaSearch, RandomSearch
from autotune.core.study import Objective
from autotune.core.trial import TrialState
from autotune.ports import Search, TrialOutcome
from search_spaces.candidate import Candidate
from search_spaces.space import parse_space

CORES = 4
OBJECTIVES = (Objective.of("saturation_qps"), Objective.of("p95_ms"))
BASELINE = Candidate({"max_batch_size": 1, "instances": 1, "queue_delay_us": 0})
SPACE = parse_space(
    {
        "max_batch_size": [1, 2, 4, 8],
        "instances": [1, 2, 4, 6],
        "queue_delay_us": {"values": [0, 1000], "when": {"max_batch_size": {"above": 1}}},
        "preferred_batch_sizes": {
            "values": [None, [4], [16]],
            "when": {"max_batch_size": {"above": 2}, "queue_delay_us": 0},
        },
        "prune": [{"product": ["instances"], "above": "cores", "because": "one core each"}],
    },
    "small",
)
CONTINUOUS = parse_space(
    {
        "max_batch_size": {"range": [1, 64], "scale": "log"},
        "parameters.share": {"range": [0.1, 0.9]},
        "server.buffer-threads": [1, 2],
    },
    "continuous",
)
Make = Callable[..., Search]


@pytest.fixture(params=[GridSearch, RandomSearch, OptunaSearch], ids=lambda c: c.__name__)
def make(request) -> Make:
    def search(space=SPACE, *, baseline=BASELINE, seed=7, cores=CORES):
        return request.param(
            space, baseline=baseline, objectives=OBJECTIVES, seed=seed, cores=cores
        )

    return search


def outcome(candidate: Candidate) -> TrialOutcome:
    batch, instances = candidate["max_batch_size"], candidate.get("instances", 1)
    p95 = 20.0 + 3 * batch / instances
    return TrialOutcome(
        state=TrialState.OK,
        values=(40.0 * instances + batch, p95),
        violations=((p95 - 30) / 30, -1.0, 0.0),
    )


def walk(search: Search, most: int = 200) -> list[Candidate]:
    asked: list[Candidate] = []
    while len(asked) < most and (candidate := search.ask()) is not None:
        asked.append(candidate)
        search.tell(candidate, outcome(candidate))
    return asked


def payable() -> set[Candidate]:
    return {c for c in SPACE.candidates() if SPACE.pruned(c, CORES) is None}


def test_the_configuration_in_service_comes_first(make):
    assert make().ask() == BASELINE


def test_a_baseline_outside_the_space_comes_first_all_the_same(make):
    odd = Candidate({"max_batch_size": 96, "instances": 9, "parameters.mode": "x"})
    search = make(baseline=odd)
    assert search.ask() == odd
    search.tell(odd, outcome(odd))
    assert SPACE.contains(search.ask())


def test_a_baseline_that_a_prune_rule_takes_out_comes_first_all_the_same(make):
    heavy = Candidate({"max_batch_size": 1, "instances": 6})
    assert SPACE.pruned(heavy, CORES) is not None
    assert make(baseline=heavy).ask() == heavy


def test_every_candidate_that_can_pay_is_suggested_once_and_then_none(make):
    search = make()
    asked = walk(search)
    assert search.ask() is None
    assert len(set(asked)) == len(asked)
    same_as_baseline = SPACE.project(BASELINE)
    assert set(asked[1:]) == payable() - {same_as_baseline}


def test_what_a_prune_rule_takes_out_is_listed_with_its_reason(make):
    listed = dict(make().pruned)
    assert set(listed) == set(SPACE.candidates()) - payable()
    assert any("one core each" in reason for reason in listed.values())
    assert any("preferred batch size 16" in reason for reason in listed.values())


def test_asking_again_without_telling_gives_the_same_answer(make):
    search = make()
    search.tell(BASELINE, outcome(BASELINE))
    assert search.ask() == search.ask()


def test_what_is_being_measured_is_not_suggested_beside_it(make):
    search = make()
    pending: list[Candidate] = []
    for _ in range(4):
        pending.append(search.ask(pending))
    assert pending[0] == BASELINE
    assert len(set(pending)) == 4
    search.tell(pending[2], outcome(pending[2]))
    others = [pending[0], pending[1], pending[3]]
    assert search.ask(others) not in {*pending, SPACE.project(BASELINE)}


def test_where_all_that_is_left_is_being_measured_nothing_is_suggested(make):
    search = make()
    *told, last, before_it = walk(make())
    for candidate in told:
        search.tell(candidate, outcome(candidate))
    assert search.ask([last, before_it]) is None
    assert search.ask([last]) == before_it


def test_the_same_seed_gives_the_same_walk(make):
    assert walk(make(seed=3), most=14) == walk(make(seed=3), most=14)


@pytest.mark.parametrize("done", [0, 1, 5, 12])
def test_a_resumed_search_goes_on_as_if_it_had_never_stopped(make, done):
    whole = walk(make(), most=16)
    resumed = make()
    for candidate in whole[:done]:
        resumed.tell(candidate, outcome(candidate))
    assert walk(resumed, most=16 - done) == whole[done:]


@pytest.mark.parametrize("state", [TrialState.FAILED, TrialState.INVALID, TrialState.PRUNED])
def test_a_trial_without_a_measurement_is_learnt_and_not_suggested_again(make, state):
    search = make()
    asked = []
    for _ in range(12):
        candidate = search.ask()
        asked.append(candidate)
        search.tell(candidate, TrialOutcome(state=state, values=(None, None), violations=None))
    assert len(set(asked)) == 12


@pytest.mark.parametrize("state", [TrialState.FAILED, TrialState.PRUNED])
def test_a_search_goes_on_among_what_memory_rules_out_and_asks_for_none_of_it_again(make, state):
    search = make()
    asked = []
    while len(asked) < 12 and (candidate := search.ask()) is not None:
        asked.append(candidate)
        fits = candidate.get("instances", 1) <= 2
        told = TrialOutcome(state=state, values=(None, None), violations=None, infeasible=True)
        search.tell(candidate, outcome(candidate) if fits else told)
    assert len(set(asked)) == 12


def test_an_objective_that_is_unknown_does_not_stop_the_search(make):
    search = make()
    for number in range(14):
        candidate = search.ask()
        known = outcome(candidate)
        values = (None, known.values[1] if number % 3 else None)
        search.tell(
            candidate,
            TrialOutcome(state=TrialState.OK, values=values, violations=(0.5, float("nan"), 0.0)),
        )
    assert search.ask() is not None


def test_a_history_from_elsewhere_is_taken_in_before_the_first_question(make):
    search = make()
    foreign = Candidate({"max_batch_size": 4, "instances": 2, "queue_delay_us": 1000})
    search.tell(foreign, outcome(foreign))
    assert search.ask() == BASELINE
    assert foreign not in walk(search)


def recalled(search: Search, *candidates: Candidate, first=()) -> Search:
    search.recall([(candidate, outcome(candidate)) for candidate in candidates], first)
    return search


def some(count: int) -> list[Candidate]:
    return [c for c in SPACE.candidates() if SPACE.pruned(c, CORES) is None][3 : 3 + count]


def test_what_earlier_studies_measured_is_no_trial_and_is_suggested_all_the_same(make):
    search = recalled(make(), *some(10))
    assert search.ask() == BASELINE
    assert set(walk(search)[1:]) == payable() - {SPACE.project(BASELINE)}


def test_what_is_to_come_first_does_right_after_the_configuration_in_service(make):
    first = some(3)[::-1]
    search = recalled(make(), *some(10), first=first)
    assert walk(search, most=4) == [BASELINE, *first]


def test_nothing_outside_the_space_or_ruled_out_is_asked_first(make):
    odd = Candidate({"max_batch_size": 96, "instances": 1, "queue_delay_us": 0})
    ruled_out = Candidate({"max_batch_size": 1, "instances": 6})
    search = recalled(make(), first=[odd, ruled_out, BASELINE, *some(1)])
    assert walk(search, most=2) == [BASELINE, *some(1)]


def test_a_resumed_search_that_had_something_recalled_goes_on_as_if_it_had_never_stopped(make):
    whole = walk(recalled(make(), *some(10), first=some(2)), most=12)
    resumed = recalled(make(), *some(10), first=some(2))
    for candidate in whole[:5]:
        resumed.tell(candidate, outcome(candidate))
    assert walk(resumed, most=7) == whole[5:]


def test_a_continuous_space_never_repeats_a_candidate(make):
    asked = walk(make(CONTINUOUS), most=30)
    assert len(set(asked)) == 30
    assert all(CONTINUOUS.contains(candidate) for candidate in asked[1:])


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(-5, 2**40), kind=st.sampled_from([GridSearch, RandomSearch, OptunaSearch]))
def test_any_seed_suggests_only_new_candidates_of_the_space(seed, kind):
    search = kind(SPACE, baseline=BASELINE, objectives=OBJECTIVES, seed=seed, cores=CORES)
    asked = walk(search, most=12)
    assert len(set(asked)) == 12
    assert set(asked[1:]) <= payable()
