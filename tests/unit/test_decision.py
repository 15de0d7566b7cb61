from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.core.decision import decide
from autotune.core.measurement import Purpose
from autotune.core.pareto import dominates
from autotune.core.sla import Sla
from autotune.core.study import Objective, PickRule
from autotune.core.trial import TrialState
from autotune.core.workload import Workload
from tests.unit.made_trials import made_load, made_measurement, made_trial

SLA = Sla(latency_ms={95.0: 80.0})
OBJECTIVES = tuple(Objective.of(m) for m in ("saturation_qps", "p95_ms", "utilization"))


def decided(*trials, rule=PickRule.CHEAPEST, objectives=OBJECTIVES, **more):
    return decide(trials, SLA, objectives, rule, **more)


def trial(number, **figures):
    return made_trial(number, made_measurement(**figures))


# ------------------------------------------------------------------------------------ the rules
def test_cheapest_takes_the_fewest_instances_though_another_is_faster():
    decision = decided(trial(0, p95=60, instances=1), trial(1, p95=20, instances=2))
    assert decision.pick == 0
    assert decision.runner_up == 1


def test_cheapest_takes_the_least_memory_among_equal_instances():
    decision = decided(trial(0, p95=30, memory=900), trial(1, p95=35, memory=500))
    assert decision.pick == 1


def test_cheapest_does_not_let_a_little_memory_decide():
    decision = decided(trial(0, p95=60, memory=500), trial(1, p95=30, memory=530))
    assert decision.pick == 1


def test_fastest_takes_the_least_of_the_tightest_percentile():
    decision = decided(
        trial(0, p95=30, saturation=300), trial(1, p95=29, instances=4), rule=PickRule.FASTEST
    )
    assert decision.pick == 1


def test_max_throughput_takes_the_highest_saturation():
    decision = decided(
        trial(0, saturation=140), trial(1, saturation=145, p95=79), rule=PickRule.MAX_THROUGHPUT
    )
    assert decision.pick == 1


def test_max_throughput_falls_back_on_what_was_achieved_where_nothing_was_saturated():
    low, high = made_load(ok=990, achieved=99.0, p95=20), made_load(p95=50)
    sla = Sla(latency_ms={95.0: 80.0}, error_rate=0.05)
    trials = [
        made_trial(0, made_measurement(load=low, saturation=None)),
        made_trial(1, made_measurement(load=high, saturation=None)),
    ]
    decision = decide(trials, sla, OBJECTIVES, PickRule.MAX_THROUGHPUT)
    assert decision.pick == 1
    assert "saturation_qps" in decision.unknown


def test_balanced_takes_the_knee():
    decision = decided(
        trial(0, p95=10, saturation=100),
        trial(1, p95=20, saturation=190),
        trial(2, p95=70, saturation=200),
        rule=PickRule.BALANCED,
        objectives=(Objective.of("p95_ms"), Objective.of("saturation_qps")),
    )
    assert decision.pick == 1


def test_a_complete_tie_goes_to_the_lower_number():
    for rule in PickRule:
        assert decided(trial(4), trial(2), trial(3), rule=rule).pick == 2


def test_a_study_without_objectives_is_decided_all_the_same():
    for rule in PickRule:
        assert decided(trial(0), trial(1, instances=2, p95=70), rule=rule, objectives=()).pick == 0


# --------------------------------------------------------------------------- what may be picked
def test_a_trial_that_misses_the_sla_is_never_picked_however_good():
    decision = decided(trial(0, p95=70, instances=4), trial(1, p95=105, saturation=900))
    assert decision.pick == 0
    assert decision.front == (0,)
    assert decision.infeasible_front == (1,)
    assert any("trial 1" in r and "breaks 80 ms by 31%" in r for r in decision.reasons)


@pytest.mark.parametrize("state", [s for s in TrialState if s is not TrialState.OK])
def test_a_trial_that_is_not_ok_is_not_judged(state):
    odd = made_trial(1, made_measurement(p95=1), state=state)
    decision = decided(trial(0), odd)
    assert decision.pick == 0
    assert [j.number for j in decision.judged] == [0]


def test_an_invalid_measurement_is_not_judged():
    odd = made_trial(1, made_measurement(p95=1, invalid=("the generator fell behind",)))
    assert [j.number for j in decided(trial(0), odd).judged] == [0]


def test_a_candidate_that_fails_its_confirmation_does_not_meet():
    failed = made_measurement(p95=90, purpose=Purpose.CONFIRM)
    decision = decided(made_trial(0, made_measurement(p95=20), failed), trial(1, instances=2))
    assert decision.pick == 1
    assert decision.meeting == (1,)


def test_a_candidate_that_holds_in_its_confirmation_is_picked_and_says_so():
    held = made_measurement(p95=41, purpose=Purpose.CONFIRM)
    decision = decided(made_trial(0, made_measurement(p95=40), held))
    assert decision.pick == 0
    assert any(r.startswith("confirmed") and "41.0 ms" in r for r in decision.reasons)


def test_an_undecided_trial_is_not_picked():
    few = made_trial(1, made_measurement(load=made_load(scheduled=100, p95=10)))
    decision = decided(trial(0, instances=3), few)
    assert decision.pick == 0
    assert decision.undecided == (1,)


# ------------------------------------------------------------------------------ unknown metrics
def test_an_objective_unknown_of_every_trial_is_left_out_and_reported():
    decision = decided(trial(0, utilization=None), trial(1, utilization=None, instances=2))
    assert decision.pick == 0
    assert decision.unknown == ("utilization",)
    assert decision.reasons[-1] == "not compared, since unknown: utilization"


def test_a_trial_that_lacks_what_others_know_is_not_on_the_front():
    decision = decided(trial(0, utilization=None), trial(1, instances=2))
    assert decision.front == (1,)
    assert any("trial 0 meets the SLA too but cannot be" in r for r in decision.reasons)


def test_trials_that_each_lack_something_else_are_compared_by_what_all_know():
    decision = decided(trial(0, utilization=None), trial(1, saturation=None, instances=2))
    assert decision.pick == 0
    assert set(decision.unknown) == {"saturation_qps", "utilization"}


# ------------------------------------------------------------------------------ none meets it
def test_where_none_meets_the_nearest_miss_is_told_with_its_limit_and_distance():
    decision = decided(trial(0, p95=751), trial(1, p95=88), trial(2, p95=100))
    assert decision.pick is None
    assert decision.nearest_miss == 1
    assert decision.distance == pytest.approx(0.1)
    assert "trial 1 comes nearest: p95 88.0 ms breaks 80 ms by 10%" in decision.reasons[0]


def test_the_distance_is_that_of_the_worst_broken_term():
    errors = made_trial(0, made_measurement(load=made_load(p95=81, ok=900)))
    decision = decided(errors, trial(1, p95=160))
    assert decision.nearest_miss == 0
    assert decision.distance == pytest.approx(0.1 - 0.001)


def test_a_nearest_miss_that_fell_behind_tells_the_rate_it_reached():
    behind = made_trial(0, made_measurement(load=made_load(p95=20, achieved=60.0)))
    decision = decided(behind)
    assert "60.0 of 100.0 offered requests/s" in decision.reasons[0]


def test_nothing_measured_decides_nothing():
    decision = decided(made_trial(0, state=TrialState.FAILED))
    assert (decision.pick, decision.nearest_miss, decision.front) == (None, None, ())
    assert decision.reasons == ("no trial was measured: nothing can be decided",)


def test_only_undecided_trials_say_what_is_wanting():
    few = made_trial(0, made_measurement(load=made_load(scheduled=100, p95=10)))
    decision = decided(few)
    assert decision.pick is None
    assert "at least 200 are needed" in decision.reasons[0]


# ------------------------------------------------------------------------------------ the words
def test_the_pick_says_what_it_keeps_at_which_rate_and_the_gain():
    decision = decided(
        trial(0, p95=751, saturation=74),
        trial(1, p95=35.2, instances=2, saturation=145),
        workload=Workload(target_qps=83.4, headroom=1.2),
    )
    assert decision.reasons[0] == (
        "trial 1 is picked (cheapest): p95 35.2 ms meets 80 ms with 56% to spare"
        " at 100.08 requests/s (1.2 × 83.4)"
    )
    assert "p95 751.0 ms → 35.2 ms" in decision.reasons[1]
    change = next(c for c in decision.gain if c.metric == "saturation_qps")
    assert change.relative == pytest.approx(71 / 74)


def test_the_runner_up_is_told_with_what_separates_it():
    decision = decided(trial(0, p95=60, instances=1), trial(1, p95=30, instances=2))
    assert (
        "runner-up: trial 1 has p95 30.0 ms (50% less), but instances 2 instead of 1"
        in decision.reasons
    )


def test_a_pick_that_is_already_in_service_says_so():
    assert "already the pick" in decided(trial(0), trial(1, instances=2)).reasons[1]


# ------------------------------------------------------------------------------------ properties
FIGURES = st.fixed_dictionaries({
    "p95": st.sampled_from([10.0, 40.0, 41.0, 79.0, 81.0, 200.0]),
    "saturation": st.sampled_from([None, 50.0, 100.0, 101.0]),
    "utilization": st.sampled_from([None, 0.2, 0.9]),
    "memory": st.sampled_from([None, 100.0, 105.0, 121.0, 300.0]),
    "instances": st.integers(1, 3),
})  # fmt: skip
TRIALS = st.lists(FIGURES, max_size=7).map(
    lambda rows: [trial(number, **row) for number, row in enumerate(rows)]
)
RULES = st.sampled_from(list(PickRule))
METRIC_SETS = st.lists(
    st.sampled_from(["saturation_qps", "p95_ms", "utilization", "memory_mb", "instances"]),
    unique=True,
).flatmap(
    lambda names: st.tuples(
        *[st.booleans().map(lambda m, n=name: Objective.of(n, maximize=m)) for name in names]
    )
)


@given(TRIALS, RULES, METRIC_SETS)
def test_the_pick_meets_the_sla_and_no_other_that_meets_it_dominates_it(trials, rule, objectives):
    decision = decide(trials, SLA, objectives, rule)
    meeting = [decision.of(number) for number in decision.meeting]
    assert (decision.pick is None) == (not meeting)
    if not meeting:
        return
    assert decision.pick in decision.front
    assert set(decision.front) <= set(decision.meeting)
    columns = [d.column(meeting) for d in decision.dimensions]
    points = {j.number: [c[i] for c in columns] for i, j in enumerate(meeting)}
    maximize = [d.maximize for d in decision.dimensions]
    assert not any(dominates(p, points[decision.pick], maximize) for p in points.values())


@given(TRIALS, RULES, METRIC_SETS, st.randoms(use_true_random=False))
def test_the_order_of_the_trials_does_not_matter(trials, rule, objectives, random):
    shuffled = random.sample(trials, len(trials))
    one, other = (decide(t, SLA, objectives, rule) for t in (trials, shuffled))
    assert one.to_json() == other.to_json()


@given(TRIALS)
def test_cheapest_never_uses_more_instances_than_any_fully_known_trial_that_meets(trials):
    decision = decide(trials, SLA, (), PickRule.CHEAPEST)
    pick = decision.of(decision.pick)
    if pick is None:
        return
    known = [
        j for j in map(decision.of, decision.meeting) if all(
            d.column([j])[0] is not None for d in decision.dimensions
        )
    ]  # fmt: skip
    assert pick.metric("instances") == min(j.metric("instances") for j in known)


@given(TRIALS, RULES, METRIC_SETS)
def test_a_decision_is_plain_data(trials, rule, objectives):
    data = decide(trials, SLA, objectives, rule).to_json()
    assert json.loads(json.dumps(data, allow_nan=False)) == data
    assert all(isinstance(reason, str) and reason for reason in data["reasons"])
    assert data["reasons"]


@given(TRIALS, RULES)
def test_a_dominated_addition_does_not_change_the_pick(trials, rule):
    before = decide(trials, SLA, OBJECTIVES, rule)
    pick = before.of(before.pick)
    if pick is None or rule is PickRule.BALANCED:
        return
    if any(d.column([before.of(n)])[0] is None for n in before.meeting for d in before.dimensions):
        return
    if set(before.unknown):
        return
    worse = trial(99, p95=79.9, saturation=1.0, utilization=0.01, memory=1e4, instances=9)
    assert decide([*trials, worse], SLA, OBJECTIVES, rule).pick == before.pick
