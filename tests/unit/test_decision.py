from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.core.comparison import Comparison, Relation
from autotune.core.decision import decide, finalists
from autotune.core.intervals import Interval
from autotune.core.measurement import Purpose
from autotune.core.memory_noise import MemoryNoise
from autotune.core.pareto import dominates
from autotune.core.searched import Searched
from autotune.core.sla import Sla
from autotune.core.study import Objective, PickRule, Robust
from autotune.core.trial import TrialState
from autotune.core.workload import Workload
from tests.unit.made_trials import made_load, made_measurement, made_trial

SLA = Sla(latency_ms={95.0: 80.0})
UNHURRIED = settings(deadline=None, max_examples=60)
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


def test_a_nearest_miss_that_keeps_up_is_not_said_to_fail_at_its_rate():
    fast = made_trial(0, made_measurement(load=made_load(p95=160, achieved=100.4)))
    said = " | ".join(decided(fast).reasons)
    assert "the rate is not what it fails at: it answered 100.0 of 100.0 requests/s" in said


def test_after_a_search_that_was_cut_short_another_candidate_may_meet():
    searched = Searched(tried=1, planned=36, minutes=3.0)
    assert decided(trial(0, p95=88), searched=searched).reasons[2] == (
        "only 1 of 36 candidates was tried within budget.minutes, 3: another may meet the SLA;"
        " raise it to try more"
    )
    assert "36" in decided(made_trial(0, state=TrialState.FAILED), searched=searched).reasons[1]


def test_after_a_whole_search_no_other_candidate_is_spoken_of():
    searched = Searched(tried=36, planned=36, minutes=3.0)
    assert "36" not in " ".join(decided(trial(0, p95=88), searched=searched).reasons)


def test_nothing_measured_decides_nothing():
    decision = decided(made_trial(0, state=TrialState.FAILED))
    assert (decision.pick, decision.nearest_miss, decision.front) == (None, None, ())
    assert decision.without_verdict
    assert decision.reasons == (
        "no trial has a measurement that can be believed: nothing can be decided",
    )


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


def test_the_runner_up_is_told_once_with_what_separates_the_pick_from_it():
    decision = decided(trial(3, p95=60, instances=1), trial(5, p95=30, instances=2))
    assert [r for r in decision.reasons if "trial 5" in r] == [
        "runner-up: trial 5; trial 3 has instances 1 instead of 2, but p95 60.0 ms instead of"
        " 30.0 ms"
    ]


def test_a_runner_up_that_has_nothing_over_the_pick_or_nothing_under_it_says_only_that():
    worse = decided(trial(3, p95=40), trial(5, p95=60)).reasons
    assert "runner-up: trial 5; trial 3 has p95 40.0 ms instead of 60.0 ms" in worse
    same = decided(trial(3, p95=40.0), trial(5, p95=40.4)).reasons
    assert "runner-up: trial 5, which differs by less than 2%" in same


def test_the_configuration_in_service_is_not_told_again_as_the_runner_up():
    decision = decided(trial(0, p95=60, instances=2), trial(1, p95=70, instances=1))
    assert (decision.pick, decision.runner_up) == (1, 0)
    assert not any(reason.startswith("runner-up") for reason in decision.reasons)


def test_what_tempts_and_misses_is_told_once_and_not_of_the_configuration_in_service():
    slow, pick = trial(0, p95=751, saturation=950.0), trial(2, p95=40, instances=2)
    assert not any(r.startswith("trial 0") for r in decided(slow, pick).reasons)
    reasons = decided(slow, trial(3, p95=95, saturation=900.0), pick).reasons
    assert [reason for reason in reasons if reason.startswith("trial 3")] == [
        "trial 3 has saturation 900.0/s (500% more) but p95 95.0 ms breaks 80 ms by 19%"
    ]


def test_to_use_less_of_the_processor_is_no_drawback_of_the_pick():
    busy, missing = trial(5, p95=60, utilization=0.9), trial(6, p95=90, utilization=0.95)
    reasons = decided(trial(3, p95=40, utilization=0.3), busy, missing).reasons
    assert not any("utilization" in reason for reason in reasons)


@pytest.mark.parametrize(
    ("within", "words"),
    [
        ((50.0, 60.0), "in service, which met the SLA: p95"),
        ((60.0, 90.0), "in service, of which it is not known whether it meets the SLA: p95"),
        ((85.0, 95.0), "in service, which did not meet the SLA: p95"),
    ],
)
def test_of_the_configuration_in_service_it_is_told_whether_it_met_the_sla(within, words):
    before = trial(0, p95=sum(within) / 2, instances=2, within={"p95_ms": within})
    assert words in decided(before, trial(1, p95=40)).reasons[1]


ODD = made_measurement(invalid=("the machine changed",))


@pytest.mark.parametrize(
    ("measurements", "state", "reason", "words"),
    [
        ([], TrialState.FAILED, "it does not load", "could not be measured"),
        ([made_measurement()], TrialState.FAILED, "it died", "failed after it was measured"),
        ([ODD], TrialState.OK, "", "was measured, but that is doubted now"),
        ([ODD], TrialState.INVALID, "late", "was measured, but not so that it can be believed"),
        ([], TrialState.RUNNING, "", "was not measured"),
    ],
)
def test_why_no_gain_is_told_is_said_as_it_was(measurements, state, reason, words):
    before = replace(made_trial(0, *measurements, state=state), reason=reason)
    because = reason or ("the machine changed" if measurements else "")
    assert decided(before, trial(1)).reasons[1] == (
        f"the configuration in service {words}, so no gain is told"
        + (f": {because}" if because else "")
    )


@pytest.mark.parametrize(
    ("again", "told"), [((40.0, 79.0), False), ((60.0, 79.0), True), (None, False)]
)
def test_a_machine_is_called_unsteady_only_beyond_the_noise(again, told):
    once = made_measurement(p95=45.0, within={"p95_ms": (41.0, 50.0)})
    ends = {} if again is None else {"p95_ms": again}
    confirmed = made_measurement(p95=70.0, within=ends, purpose=Purpose.CONFIRM)
    reasons = decided(made_trial(0, once, confirmed)).reasons
    assert any("was not steady" in reason for reason in reasons) is told


def test_a_pick_that_is_already_in_service_says_so():
    assert "already the pick" in decided(trial(0), trial(1, instances=2)).reasons[1]


# ---------------------------------------------------------------------------------------- ties
def near(number, p95, share=0.1, saturation=150.0, saturated=0.05, **figures):
    """A trial with an interval of that share of its p95, and of its saturation, on either side."""
    within = {
        "p95_ms": (p95 * (1 - share), p95 * (1 + share)),
        "saturation_qps": (saturation * (1 - saturated), saturation * (1 + saturated)),
    }
    return trial(number, p95=p95, saturation=saturation, within=within, **figures)


def compared(first, second, effect, low, high, relation, metric="p95_ms", at=0.0):
    return Comparison(
        first=first,
        second=second,
        metric=metric,
        effect=effect,
        interval=Interval(low, high),
        relation=relation,
        pairs=2,
        taken_at=at,
    )


TIE = compared(3, 5, -0.012, -0.021, 0.044, Relation.TIE)
BETTER = compared(3, 5, -0.12, -0.16, -0.08, Relation.BETTER)


def test_of_two_that_overlap_the_one_with_fewer_instances_is_the_fastest():
    decision = decided(near(3, 40.0), near(5, 38.0, instances=2), rule=PickRule.FASTEST)
    assert decision.pick == 3
    assert decision.ties == (3, 5)
    assert decision.runner_up == 5
    assert (
        "trials 3 and 5 are a tie (p95 differs by 5.0%, their 95% intervals overlap): the cheaper"
        " is picked, trial 3, with instances 1 instead of 2"
    ) in decision.reasons


def test_of_two_that_are_clear_of_each_other_the_faster_is_picked():
    decision = decided(near(3, 40.0), near(5, 30.0, instances=2), rule=PickRule.FASTEST)
    assert decision.pick == 5
    assert decision.ties == ()


def test_a_tie_run_against_run_goes_to_the_cheaper_and_is_told_with_its_interval():
    trials = near(3, 40.0, 0.01), near(5, 36.0, 0.01, instances=2)
    decision = decided(*trials, rule=PickRule.FASTEST, comparisons=[TIE])
    assert decision.pick == 3
    assert (
        "trials 3 and 5 are a tie (p95 differs by 1.2%, 95% interval −2.1% to +4.4%): the cheaper"
        " is picked, trial 3, with instances 1 instead of 2"
    ) in decision.reasons


def test_a_difference_run_against_run_decides_though_the_intervals_overlap():
    trials = near(3, 40.0), near(5, 38.0, instances=2)
    decision = decided(*trials, rule=PickRule.FASTEST, comparisons=[BETTER])
    assert decision.pick == 5
    assert decision.comparisons == (BETTER,)
    assert [reason for reason in decision.reasons if "trial 3" in reason] == [
        "runner-up: trial 3; trial 5 has p95 38.0 ms instead of 40.0 ms, but instances 2 instead"
        " of 1"
    ]


def test_what_was_better_run_against_run_goes_before_what_looked_better_apart():
    trials = near(3, 37.0), near(5, 38.0)
    assert decided(*trials, rule=PickRule.FASTEST).pick == 3
    assert decided(*trials, rule=PickRule.FASTEST, comparisons=[BETTER]).pick == 5


def test_only_the_latest_comparison_of_two_counts():
    earlier = compared(5, 3, 0.3, 0.2, 0.4, Relation.WORSE, at=1.0)
    later = compared(3, 5, -0.01, -0.03, 0.02, Relation.TIE, at=2.0)
    trials = near(3, 40.0), near(5, 38.0, instances=2)
    for comparisons in ([earlier, later], [later, earlier]):
        decision = decided(*trials, rule=PickRule.FASTEST, comparisons=comparisons)
        assert decision.pick == 3
        assert decision.comparisons == (later,)


def test_a_tie_at_equal_cost_leaves_what_runs_now():
    decision = decided(near(0, 40.0), near(5, 38.0))
    assert decision.pick == 0
    assert any(r.endswith("what runs now: to change nothing is cheapest") for r in decision.reasons)


def test_a_tie_at_equal_instances_goes_to_the_one_with_less_memory():
    trials = near(3, 40.0, memory=500), near(5, 38.0, memory=545), near(6, 38.5, memory=560)
    decision = decided(*trials, rule=PickRule.FASTEST)
    assert decision.pick == 3
    assert any(r.endswith("they cost the same, and trial 3, the first of them, is picked")
               for r in decision.reasons)  # fmt: skip
    dearer = near(5, 38.0, memory=900)
    reasons = decided(trials[0], dearer, rule=PickRule.FASTEST).reasons
    assert any(r.endswith("trial 3, with memory 500 MB instead of 900 MB") for r in reasons)


def test_of_two_cheap_ties_the_one_that_is_clearly_better_otherwise_is_picked():
    trials = (
        near(1, 40.0, instances=2),
        near(2, 44.0, saturation=100.0),
        near(3, 46.0, share=0.05),
    )
    assert decided(*trials, rule=PickRule.FASTEST).pick == 3


def test_a_tie_that_is_cheaper_but_clearly_beaten_by_a_third_is_not_picked():
    trials = (
        near(1, 40.0, 0.01, saturation=140.0, instances=2),
        near(2, 44.0, 0.15, saturation=100.0),
        near(3, 46.0, 0.01, saturation=150.0),
    )
    decision = decided(*trials, rule=PickRule.FASTEST)
    assert decision.pick == 1
    assert any(
        r.startswith("trials 1 and 2 are a tie")
        and r.endswith("since what is cheaper is clearly beaten by another")
        for r in decision.reasons
    )


def test_cheapest_knows_no_tie_between_different_numbers_of_instances():
    decision = decided(near(0, 38.0, instances=2), near(5, 40.0, instances=1))
    assert decision.pick == 5
    assert decision.ties == ()


def test_max_throughput_ties_in_saturation():
    trials = near(3, 40.0, saturation=150.0), near(5, 40.0, saturation=155.0, instances=3)
    decision = decided(*trials, rule=PickRule.MAX_THROUGHPUT)
    assert decision.pick == 3
    assert decision.ties == (3, 5)


def test_balanced_ties_where_nothing_it_goes_by_is_clear():
    objectives = (Objective.of("p95_ms"), Objective.of("saturation_qps"))
    trials = near(3, 40.0, saturation=150.0), near(5, 39.0, saturation=151.0, instances=3)
    tied = decided(*trials, rule=PickRule.BALANCED, objectives=objectives)
    assert tied.pick == 3
    clear = near(5, 39.0, saturation=190.0, instances=3)
    assert decided(trials[0], clear, rule=PickRule.BALANCED, objectives=objectives).pick == 5


def test_a_tie_in_latency_does_not_win_against_what_is_clearly_better_at_the_same_price():
    trials = near(0, 40.0, saturation=100.0), near(5, 38.0, saturation=150.0)
    decision = decided(*trials, rule=PickRule.FASTEST)
    assert decision.pick == 5
    assert decision.ties == ()


@pytest.mark.parametrize("utilization", [0.0975, 0.05])
def test_a_difference_without_an_interval_does_not_save_a_tie_that_is_clearly_beaten(utilization):
    trials = (
        near(0, 40.0, saturation=100.0, utilization=0.1),
        near(3, 40.0, saturation=150.0, utilization=utilization),
    )
    decision = decided(*trials)
    assert decision.pick == 3
    assert decision.reasons[1].endswith(
        "trial 3 is picked, since trial 0, which costs the same, is clearly beaten otherwise"
    )


def test_two_differences_without_an_interval_are_weighed_and_neither_beats_the_other():
    objectives = tuple(Objective.of(m) for m in ("p95_ms", "utilization", "max_ms"))
    trials = (
        near(0, 40.0, utilization=0.2, load=made_load(p95=40.0, p99=50.0)),
        near(3, 39.0, utilization=0.4, load=made_load(p95=39.0, p99=70.0)),
    )
    decision = decided(*trials, objectives=objectives, rule=PickRule.FASTEST)
    assert (decision.pick, decision.ties) == (0, (0, 3))


def test_what_is_first_by_noise_alone_gives_way_to_what_is_clearly_better_otherwise():
    trials = near(1, 38.0, saturation=100.0), near(2, 38.5, saturation=150.0)
    assert decided(*trials, rule=PickRule.FASTEST).pick == 2


def test_a_pick_within_the_noise_of_the_front_stands_on_it():
    decision = decided(near(0, 40.0), near(5, 38.0), rule=PickRule.FASTEST)
    assert decision.pick == 0
    assert decision.front == (0, 5)


def test_many_ties_are_named_shortly():
    decision = decided(*(near(n, 40.0 - n / 10, instances=1 + n) for n in range(9)),
                       rule=PickRule.FASTEST)  # fmt: skip
    assert decision.ties == tuple(range(9))
    assert any("as are 1, 2, 3, 4, 5 and 2 more:" in reason for reason in decision.reasons)


def test_the_runner_up_is_told_only_what_is_more_than_noise():
    decision = decided(near(1, 40.0, memory=500), near(5, 38.0, memory=900))
    assert "runner-up: trial 5; trial 1 has memory 500 MB instead of 900 MB" in decision.reasons
    same = decided(near(1, 40.0), near(5, 38.0, saturation=155.0), rule=PickRule.MAX_THROUGHPUT)
    assert not any(reason.startswith("runner-up") for reason in same.reasons)


def test_of_a_runner_up_that_is_tied_only_what_the_tie_leaves_out_is_told():
    trials = near(3, 40.0), near(5, 38.0, saturation=300.0, instances=2)
    told = [r for r in decided(*trials, rule=PickRule.FASTEST).reasons if "runner-up" in r]
    assert told == ["runner-up: trial 5; trial 3 has saturation 150.0/s instead of 300.0/s"]


def test_a_gain_within_the_noise_says_so():
    reasons = decided(near(0, 40.0, instances=2), near(5, 38.0)).reasons
    assert any("p95 40.0 ms → 38.0 ms (within the noise)" in reason for reason in reasons)


# ----------------------------------------------------------------------------------- undecided
def test_a_trial_that_straddles_the_limit_is_not_picked_though_it_would_be_cheapest():
    decision = decided(near(0, 75.0), near(1, 40.0, instances=2))
    assert decision.pick == 1
    assert decision.undecided == (0,)


def test_where_some_are_undecided_and_none_meets_the_first_reason_says_which_and_what_to_do():
    decision = decided(near(0, 100.0), near(1, 82.0), near(2, 81.0, instances=2))
    assert decision.pick is None
    assert decision.nearest_miss == 2
    assert decision.reasons[0] == (
        "no candidate is known to meet the SLA, so none is cheapest; trial 2 is undecided: p95"
        " 81.0 ms (95% interval 73–89) straddles 80 ms: raise workload.measure_max_s, or lower"
        " the rate"
    )


def test_an_undecided_trial_is_nearer_than_one_that_misses_by_less():
    unsure = near(1, 84.0)
    decision = decided(near(0, 81.0, 0.01), unsure)
    assert decision.nearest_miss == 1
    assert decision.distance == pytest.approx(0.05)


def test_a_pick_whose_confirmation_is_unsure_says_so():
    within = {"p95_ms": (65.0, 90.0)}
    unsure = made_measurement(p95=75.0, within=within, purpose=Purpose.CONFIRM)
    sure = made_measurement(p95=70.0, within={"p95_ms": (65.0, 75.0)})
    decision = decided(made_trial(0, sure, unsure))
    assert decision.pick == 0
    assert any(
        r.startswith("not contradicted by its exported files, though not sure by them alone: p95")
        for r in decision.reasons
    )


def test_a_pick_that_is_out_by_a_probe_says_where():
    out = made_trial(
        0,
        made_measurement(p95=40.0),
        made_measurement(p95=160.0, purpose=Purpose.ROBUST, qps=36.0, cv=2.0),
    )
    assert "at 36/s, cv 2, p95 160.0 ms breaks 80 ms by 100%" in decided(out).reasons[0]


# --------------------------------------------------------------------------- robust, capacity
def robust(p95, qps, cv, within=None):
    ends = {} if within is None else {"p95_ms": within}
    return made_measurement(p95=p95, purpose=Purpose.ROBUST, qps=qps, cv=cv, within=ends)


def test_a_robust_pick_says_over_what_and_where_the_margin_is_least():
    probes = robust(50.0, 24.0, 1.0), robust(60.0, 24.0, 2.0), robust(72.0, 36.0, 2.0)
    decision = decided(made_trial(0, made_measurement(p95=40.0), *probes))
    assert (
        "holds 80 ms from 24 to 36 requests/s at cv 1 to 2; least margin 10% at 36/s, cv 2"
    ) in decision.reasons


def test_a_robust_pick_says_where_it_is_not_sure():
    probe = robust(75.0, 36.0, 2.0, within=(65.0, 90.0))
    reasons = decided(made_trial(0, made_measurement(p95=40.0), probe)).reasons
    assert any("; not sure at 36/s, cv 2: p95 75.0 ms (95% interval" in r for r in reasons)


def test_a_pick_that_was_to_be_robust_and_was_not_probed_says_so():
    asked = decided(trial(0), robust=Robust(qps=0.2))
    assert any(reason.startswith("not shown to be robust") for reason in asked.reasons)
    assert not any("robust" in reason for reason in decided(trial(0)).reasons)


def test_capacity_is_told_against_the_peak():
    runs = [
        made_measurement(p95=40.0, qps=120.0, saturation=200.0),
        made_measurement(p95=78.0, qps=150.0, saturation=None, purpose=Purpose.CAPACITY),
        made_measurement(p95=84.0, qps=156.0, saturation=None, purpose=Purpose.CAPACITY),
    ]
    decision = decided(made_trial(0, *runs), workload=Workload(target_qps=100.0))
    told = next(r for r in decision.reasons if "highest rate" in r)
    assert told.startswith("trial 0: the highest rate that holds the SLA is 152.0/s (150.0–156.0)")
    assert told.endswith(", 1.5 times your peak")


def test_the_nearest_miss_tells_its_capacity_too():
    runs = [
        made_measurement(p95=100.0, qps=120.0),
        made_measurement(p95=60.0, qps=90.0, purpose=Purpose.CAPACITY),
    ]
    decision = decided(made_trial(0, *runs), workload=Workload(target_qps=100.0))
    assert any("trial 0: the highest rate that holds the SLA is 1" in r for r in decision.reasons)


def test_what_the_windows_saved_is_told():
    load = made_load(window_s=4.0)
    decision = decided(
        made_trial(0, made_measurement(load=load, qps=100)),
        workload=Workload(target_qps=100, measure_s=12),
    )
    assert decision.reasons[-1].endswith("instead of 12 s at a fixed 12 s each")


# ----------------------------------------------------------------------------------- finalists
def test_finalists_are_the_pick_and_what_is_tied_with_it():
    trials = near(0, 40.0), near(1, 41.0), near(2, 20.0, instances=2), near(3, 70.0, 0.01)
    assert finalists(decided(*trials), 4) == (0, 1)


def test_cheapest_sends_nothing_dearer_to_the_finals_before_its_ties():
    trials = near(0, 40.0), near(1, 41.0, instances=2), near(2, 42.0)
    assert finalists(decided(*trials), 3) == (0, 2)


def test_there_are_no_more_finalists_than_asked_for():
    assert len(finalists(decided(*(near(n, 40.0 + n / 10) for n in range(6))), 3)) == 3


def test_the_runner_up_is_a_finalist_where_nothing_else_is():
    assert finalists(decided(near(0, 40.0), near(1, 20.0, instances=2)), 2) == (0, 1)


def test_an_undecided_trial_that_would_be_the_pick_is_a_finalist():
    trials = near(0, 75.0), near(1, 40.0, instances=2), near(2, 79.0, instances=3)
    assert finalists(decided(*trials), 3) == (1, 0)


def test_where_none_meets_the_undecided_are_the_finalists_by_the_rule():
    trials = near(0, 81.0, instances=2), near(1, 82.0), near(2, 200.0)
    assert finalists(decided(*trials), 3) == (1, 0)


def test_a_lone_trial_is_its_own_final():
    assert finalists(decided(near(0, 40.0)), 2) == (0,)
    assert finalists(decided(near(0, 200.0)), 2) == ()


def test_an_objective_that_turns_a_metrics_direction_is_followed() -> None:
    trials = [trial(0, p95=10.0, instances=1), trial(1, p95=10.0, instances=2)]
    most = (Objective.of("instances", maximize=True),)
    assert decide(trials, SLA, most, PickRule.BALANCED).pick == 1


# ------------------------------------------------------------------------------------ properties
FIGURES = st.fixed_dictionaries({
    "p95": st.sampled_from([10.0, 40.0, 41.0, 79.0, 81.0, 200.0]),
    "saturation": st.sampled_from([None, 50.0, 100.0, 101.0]),
    "utilization": st.sampled_from([None, 0.2, 0.9]),
    "memory": st.sampled_from([None, 80.0, 130.0, 180.0, 400.0]),
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


@UNHURRIED
@given(TRIALS, RULES, METRIC_SETS)
def test_the_pick_meets_the_sla_and_nothing_on_the_front_dominates_it(trials, rule, objectives):
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
    reach = {i: MemoryNoise().reach for i, d in enumerate(decision.dimensions) if d.noisy}
    on_front = [points[number] for number in decision.front]
    assert not any(dominates(p, points[decision.pick], maximize, reach) for p in on_front)


@UNHURRIED
@given(TRIALS, RULES, METRIC_SETS, st.randoms(use_true_random=False))
def test_the_order_of_the_trials_does_not_matter(trials, rule, objectives, random):
    shuffled = random.sample(trials, len(trials))
    one, other = (decide(t, SLA, objectives, rule) for t in (trials, shuffled))
    assert one.to_json() == other.to_json()


@UNHURRIED
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


@UNHURRIED
@given(TRIALS, RULES, METRIC_SETS)
def test_a_decision_is_plain_data(trials, rule, objectives):
    data = decide(trials, SLA, objectives, rule).to_json()
    assert json.loads(json.dumps(data, allow_nan=False)) == data
    assert all(isinstance(reason, str) and reason for reason in data["reasons"])
    assert data["reasons"]


@UNHURRIED
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


# ---------------------------------------------------------------------- properties, with intervals
NEAR = st.builds(
    near,
    st.just(0),
    st.sampled_from([10.0, 40.0, 41.0, 70.0, 79.0, 85.0, 200.0]),
    st.sampled_from([0.01, 0.05, 0.2]),
    st.sampled_from([50.0, 100.0, 103.0]),
    memory=st.sampled_from([80.0, 130.0, 180.0, 400.0]),
    instances=st.integers(1, 3),
)
NEARS = st.lists(NEAR, min_size=1, max_size=7).map(
    lambda rows: [made_trial(number, *row.measurements) for number, row in enumerate(rows)]
)
COMPARED = st.lists(
    st.builds(
        lambda pair, relation, at: compared(
            *pair, *{
                Relation.BETTER: (-0.2, -0.3, -0.1),
                Relation.WORSE: (0.2, 0.1, 0.3),
                Relation.TIE: (0.0, -0.1, 0.1),
            }[relation], relation, at=at,
        ),
        st.tuples(st.integers(0, 6), st.integers(0, 6)).filter(lambda pair: pair[0] != pair[1]),
        st.sampled_from(list(Relation)),
        st.sampled_from([0.0, 1.0, 2.0]),
    ),
    max_size=6,
    unique_by=lambda c: (frozenset((c.first, c.second)), c.taken_at),
)  # fmt: skip


@UNHURRIED
@given(NEARS, RULES, METRIC_SETS, COMPARED, st.randoms(use_true_random=False))
def test_neither_the_order_of_trials_nor_that_of_comparisons_matters(
    trials, rule, objectives, comparisons, random
):
    one = decide(trials, SLA, objectives, rule, comparisons=comparisons)
    shuffled = random.sample(trials, len(trials))
    again = random.sample(comparisons, len(comparisons))
    assert one.to_json() == decide(shuffled, SLA, objectives, rule, comparisons=again).to_json()


@UNHURRIED
@given(NEARS, RULES, METRIC_SETS, COMPARED)
def test_a_pick_meets_the_sla_with_its_whole_interval(trials, rule, objectives, comparisons):
    decision = decide(trials, SLA, objectives, rule, comparisons=comparisons)
    pick = decision.of(decision.pick)
    assert (pick is None) == (not decision.meeting)
    if pick is not None:
        assert pick.estimate("p95_ms").interval.high <= 80.0
        assert pick.number in decision.front


@UNHURRIED
@given(NEARS, COMPARED)
def test_cheapest_is_never_dearer_than_another_that_meets_ties_or_not(trials, comparisons):
    decision = decide(trials, SLA, (), PickRule.CHEAPEST, comparisons=comparisons)
    pick = decision.of(decision.pick)
    if pick is not None:
        meeting = [decision.of(number) for number in decision.meeting]
        assert pick.metric("instances") == min(j.metric("instances") for j in meeting)


@UNHURRIED
@given(NEARS, COMPARED)
def test_a_tie_of_the_fastest_that_is_cheaper_than_the_pick_is_passed_over_for_one_that_beats_it(
    trials, comparisons
):
    """Say, one with the same instances and less memory, which itself is clearly slower than the
    best and so no tie."""
    decision = decide(trials, SLA, (), PickRule.FASTEST, comparisons=comparisons)
    if decision.ties:
        assert decision.pick in decision.ties
        cost = {
            n: (decision.of(n).metric("instances"), decision.of(n).metric("memory_mb"))
            for n in decision.meeting
        }
        others = [cost[n] for n in decision.meeting if n not in decision.ties]
        for tie in decision.ties:
            fewer = cost[tie][0] < cost[decision.pick][0]
            no_more = MemoryNoise().reach(cost[tie][1])
            beaten = any(o[0] <= cost[tie][0] and o[1] <= no_more for o in others)
            assert not fewer or beaten


@UNHURRIED
@given(NEARS, RULES, METRIC_SETS, COMPARED, st.integers(2, 8))
def test_finalists_are_open_to_the_pick_and_begin_with_it(
    trials, rule, objectives, comparisons, count
):
    decision = decide(trials, SLA, objectives, rule, comparisons=comparisons)
    found = finalists(decision, count)
    assert len(set(found)) == len(found) <= count
    assert set(found) <= {*decision.meeting, *decision.undecided}
    if decision.pick is not None:
        assert found[0] == decision.pick
        assert len(found) > 1 or decision.runner_up is None
