"""After the search: the canary, the finals, capacity, the neighbourhood, on fakes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from autotune.core.capacity import capacity_of
from autotune.core.comparison import Relation
from autotune.core.errors import Interrupted, ServerFailed
from autotune.core.evidence import evidence
from autotune.core.measurement import Purpose
from autotune.core.trial import Trial, TrialState
from autotune.ports import OpenLoop
from search_spaces.candidate import Candidate
from tests.fakes import FakeServer, ListSearch
from tests.runner_bench import FOUR, ONE, TWO, Bench

FINALS = {"candidates": 2, "capacity": 0}


@pytest.fixture
def bench(bench: Callable[..., Bench]) -> Callable[..., Bench]:
    return lambda candidates=None, **changes: bench(candidates, **{"finals": FINALS, **changes})


def purposes(trial: Trial) -> Counter[Purpose]:
    return Counter(measured.purpose for measured in trial.measurements)


def die(server: FakeServer) -> None:
    server.running = False
    raise ServerFailed("it died")


def at_stage(b: Bench, stage: str, act: Callable[[FakeServer], None], nth: int = 1) -> None:
    """Do something at the start of the ``nth`` phase of a stage."""
    seen: list[int] = []

    def before(server: FakeServer) -> None:
        if b.steps and b.steps[-1].stage == stage:
            seen.append(1)
            if len(seen) == nth:
                act(server)

    b.load.before = before


# ------------------------------------------------------------------------------------- the finals
def test_the_best_are_measured_again_there_and_back(bench: Any) -> None:
    b = bench()
    b.runner().run()
    finals = [step.text for step in b.steps if step.stage == "finals"]
    assert [text.split(",")[0] for text in finals] == ["trial 1", "trial 2", "trial 2", "trial 1"]


def test_the_runs_of_a_pair_share_their_arrivals_and_no_others(bench: Any) -> None:
    b = bench()
    answer = b.runner().run()
    seeds = [
        [m.traffic.seed for m in trial.of(Purpose.FINAL) if m.traffic is not None]
        for trial in answer.trials[1:]
    ]
    assert sorted(seeds[0]) == sorted(seeds[1])
    assert len(set(seeds[0])) == 2
    assert b.study.seed not in seeds[0]


def test_what_the_finals_came_to_is_stored_and_decided_by(bench: Any) -> None:
    b = bench(pick="fastest")
    answer = b.runner().run()
    stored = b.store.comparisons(b.study_id)
    latency = next(one for one in stored if one.metric == "p95_ms")
    assert (latency.first, latency.second) == (2, 1)
    assert latency.relation is Relation.WORSE
    assert latency.effect > 0.3
    assert answer.decision.comparisons
    assert answer.decision.pick == 2


def test_without_finals_nothing_is_measured_again(bench: Any) -> None:
    b = bench(finals="none")
    answer = b.runner().run()
    assert purposes(answer.trials[1]) == {Purpose.TRIAL: 1, Purpose.CONFIRM: 1}


def test_a_finalist_that_is_not_served_any_more_has_failed_and_is_not_picked(bench: Any) -> None:
    b = bench()
    at_stage(b, "finals", die)
    answer = b.runner().run()
    assert answer.trials[1].state is TrialState.FAILED
    assert "when it was measured again" in answer.trials[1].reason
    assert answer.decision.pick == 2
    assert any("trial 1" in warning for warning in answer.warnings)


def test_an_interrupted_final_goes_on_without_measuring_a_run_twice(bench: Any) -> None:
    b = bench()

    def interrupt(_: FakeServer) -> None:
        raise Interrupted("SIGTERM")

    at_stage(b, "finals", interrupt, nth=3)
    with pytest.raises(Interrupted):
        b.runner().run()
    b.load.before = lambda _: None
    b.load.server = b.server
    b.search = ListSearch([ONE, TWO, FOUR])
    answer = b.runner().run()
    for trial in answer.trials[1:]:
        runs = Counter(m.traffic for m in trial.of(Purpose.FINAL))
        assert set(runs.values()) == {1}
        assert len(runs) == 2
    assert b.store.comparisons(b.study_id)


# ------------------------------------------------------------------------------------- the canary
def test_a_machine_that_is_what_it_was_is_not_spoken_of(bench: Any) -> None:
    answer = bench().runner().run()
    assert answer.warnings == ()
    assert purposes(answer.trials[0])[Purpose.CANARY] == 1


def test_what_a_canary_came_to_is_said(bench: Any) -> None:
    b = bench()
    b.runner().run()
    assert [s.text for s in b.steps if s.stage == "canary"][-1] == "no difference is seen"


def test_a_machine_that_has_changed_puts_all_in_doubt_and_the_best_are_measured_again(
    bench: Any,
) -> None:
    b = bench(sla={"p95_ms": 120.0})

    def slow_down(server: FakeServer) -> None:
        server.service_ms *= 1.25

    at_stage(b, "canary", slow_down)
    answer = b.runner().run()
    first = answer.trials[1].measurements[0]
    assert "the machine changed during the study" in first.invalid_because[0]
    assert answer.trials[1].measurement is not None
    assert answer.trials[1].measurement.started_at > first.started_at
    assert any("were measured again" in warning for warning in answer.warnings)
    assert any(s.stage == "canary" and s.text.startswith("it went from ") for s in b.steps)
    environment = b.store.study("s").environment
    assert environment is not None
    assert environment["warnings"] == list(answer.warnings)
    assert answer.decision.pick == 1


def test_a_neighbour_that_came_by_once_is_no_change_of_the_machine(bench: Any) -> None:
    b = bench(sla={"p95_ms": 500.0})
    came: list[int] = []

    def slow_down_once(server: FakeServer) -> None:
        if b.steps[-1].stage != "canary":
            return
        came.append(1)
        server.service_ms = 25.0 if len(came) <= 2 else 20.0  # the first canary and its burst

    b.load.before = slow_down_once
    answer = b.runner().run()
    assert len(came) == 4
    assert answer.warnings == ()
    assert answer.trials[1].measurements[0].valid


def test_a_study_killed_after_the_doubt_measures_the_best_again_when_it_goes_on(
    bench: Any,
) -> None:
    b = bench(sla={"p95_ms": 120.0})
    slow: list[int] = []

    def slow_down_then_die(server: FakeServer) -> None:
        if b.steps[-1].stage != "canary":
            return
        slow.append(1)
        server.service_ms = 25.0
        if len(slow) == 5:  # two canaries with their bursts, then the first that is taken again
            raise Interrupted("SIGTERM")

    b.load.before = slow_down_then_die
    with pytest.raises(Interrupted):
        b.runner().run()
    assert all(trial.measurement is None for trial in b.store.trials(b.study_id))
    b.load.before = lambda _: None
    b.search = ListSearch([ONE, TWO, FOUR])
    answer = b.runner().run()
    assert answer.decision.pick == 1
    assert any("the machine changed" in warning for warning in answer.warnings)
    assert purposes(answer.trials[1])[Purpose.FINAL] == 2


def test_a_machine_that_does_not_hold_still_is_said_so(bench: Any) -> None:
    b = bench(sla={"p95_ms": 500.0})

    def slow_down(server: FakeServer) -> None:
        if b.steps[-1].stage == "canary" and b.load.plans[-1].first_look_s is not None:
            server.service_ms *= 1.25

    b.load.before = slow_down
    answer = b.runner().run()
    assert any("does not hold still" in warning for warning in answer.warnings)


# ------------------------------------------------------------------------------------ the capacity
def test_the_capacity_of_a_finalist_is_bracketed(bench: Any) -> None:
    b = bench(finals={"candidates": 2, "capacity": 8})
    answer = b.runner().run()
    found = capacity_of(answer.trials[1].measurements, b.study.sla)
    assert found is not None
    # Of the fake's straight spread up to 20 ms / (1 - q / 100), the p95 is 96.7%.
    truth = 100 * (1 - 0.967 * 20 / 80)
    assert found.interval.low <= truth <= found.interval.high
    assert found.qps == pytest.approx(truth, rel=0.1)


def test_where_nothing_meets_the_sla_the_nearest_miss_is_told_what_it_can_take(bench: Any) -> None:
    b = bench([ONE], finals={"candidates": 2, "capacity": 8})
    answer = b.runner().run()
    assert answer.exported_to is None
    found = capacity_of(answer.trials[0].measurements, b.study.sla)
    assert found is not None
    assert found.interval.high < 60
    assert found.qps == pytest.approx(50 * (1 - 0.967 * 20 / 80), rel=0.15)


def test_an_interrupted_search_for_capacity_does_not_compare_the_finalists_again(
    bench: Any,
) -> None:
    b = bench(finals={"candidates": 2, "capacity": 2})

    def interrupt(_: FakeServer) -> None:
        raise Interrupted("SIGTERM")

    at_stage(b, "capacity", interrupt)
    with pytest.raises(Interrupted):
        b.runner().run()
    before = b.store.comparisons(b.study_id)
    b.load.before = lambda _: None
    b.search = ListSearch([ONE, TWO, FOUR])
    b.runner().run()
    assert before
    assert b.store.comparisons(b.study_id) == before


def test_capacity_is_not_searched_for_beyond_the_budget(bench: Any) -> None:
    b = bench(budget={"trials": 30, "minutes": 1.9}, finals={"candidates": 2, "capacity": 20})
    answer = b.runner().run()
    assert sum(purposes(trial)[Purpose.CAPACITY] for trial in answer.trials) < 10
    assert answer.wall_s <= 1.9 * 60


def test_of_a_trial_that_misses_it_is_no_warning_that_its_capacity_was_not_searched_for(
    bench: Any,
) -> None:
    b = bench([ONE], budget={"trials": 30, "minutes": 0.7}, finals={"candidates": 2, "capacity": 9})
    answer = b.runner().run()
    assert purposes(answer.trials[0])[Purpose.CAPACITY] == 3
    assert answer.decision.pick is None
    assert not answer.warnings


def test_the_probes_of_an_interrupted_search_for_capacity_count(bench: Any) -> None:
    b = bench(finals={"candidates": 2, "capacity": 4})

    def interrupt(_: FakeServer) -> None:
        raise Interrupted("SIGTERM")

    at_stage(b, "capacity", interrupt, nth=3)
    with pytest.raises(Interrupted):
        b.runner().run()
    b.load.before = lambda _: None
    b.search = ListSearch([ONE, TWO, FOUR])
    answer = b.runner().run()
    for trial in answer.trials[1:]:
        assert 0 < purposes(trial)[Purpose.CAPACITY] <= 4
        rates = [m.traffic.qps for m in trial.of(Purpose.CAPACITY) if m.traffic is not None]
        assert len(rates) == len(set(rates))


def test_a_server_that_dies_at_a_rate_that_nobody_asked_for_costs_no_candidate_its_place(
    bench: Any,
) -> None:
    b = bench(finals={"candidates": 2, "capacity": 3})
    at_stage(b, "capacity", die)
    answer = b.runner().run()
    assert answer.trials[1].state is TrialState.OK
    assert answer.decision.pick == 1
    assert any("capacity" in warning for warning in answer.warnings)


# ------------------------------------------------------------------------------- the neighbourhood
def test_a_robust_pick_is_measured_at_every_corner_of_the_neighbourhood(bench: Any) -> None:
    b = bench(finals="none", robust={"qps": 0.2, "cv": [1, 2]})
    answer = b.runner().run()
    corners = {
        (round(m.traffic.qps, 6), m.traffic.cv)
        for m in answer.trials[1].of(Purpose.ROBUST)
        if m.traffic is not None
    }
    assert corners == {(qps, cv) for qps in (72.0, 48.0) for cv in (1.0, 2.0)}
    assert answer.decision.pick == 1


def test_a_pick_that_does_not_hold_a_corner_gives_way_to_the_next(bench: Any) -> None:
    b = bench(finals="none", robust={"qps": 0.3})
    answer = b.runner().run()
    assert answer.decision.pick == 2
    probed = answer.trials[1].of(Purpose.ROBUST)
    assert [m.traffic.qps for m in probed if m.traffic] == [pytest.approx(78.0)]


# ------------------------------------------------------------------------------------- comparing
def test_two_stored_trials_are_compared_again_with_arrivals_of_their_own(bench: Any) -> None:
    b = bench()
    answer = b.runner().run()
    runner = b.comparison(answer.trials[1], answer.trials[2])
    before = len(b.load.plans)
    taken = runner.run()
    trials = b.store.trials(b.study_id)
    assert purposes(trials[1])[Purpose.COMPARE] == 2
    assert evidence(trials[1]) == evidence(answer.trials[1])
    assert {one.metric for one in taken} == {"p95_ms", "saturation_qps"}
    assert all((one.first, one.second) == (1, 2) for one in taken)
    assert [one.relation for one in taken] == [Relation.BETTER, Relation.BETTER]
    old = {plan.mode.seed for plan in b.load.plans[:before] if isinstance(plan.mode, OpenLoop)}
    new = [plan.mode.seed for plan in b.load.plans[before:] if isinstance(plan.mode, OpenLoop)]
    assert len(new) == 4
    assert not old & set(new)


def test_a_trial_that_the_finals_leave_on_top_runs_in_turns_too(bench: Any) -> None:
    eight = Candidate({"instances": 8})
    b = bench([ONE, TWO, FOUR, eight], space={"instances": [1, 2, 4, 8]})
    usual_ms = b.server.service_ms

    def slow_in_the_finals(server: FakeServer) -> None:
        slow = b.steps[-1].stage == "finals" and server.applied[-1] in (TWO, FOUR)
        server.service_ms = 300.0 if slow else usual_ms

    b.load.before = slow_in_the_finals
    answer = b.runner().run()
    finals = [step.text.split(",")[0] for step in b.steps if step.stage == "finals"]
    assert answer.decision.pick == 3
    assert finals[4:] == ["trial 3", "trial 1", "trial 1", "trial 3"]
    assert (3, 1) in {(each.first, each.second) for each in b.store.comparisons(b.study_id)}
