from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.core.errors import InputRefused
from autotune.core.intervals import Interval
from autotune.core.measurement import Ended, Purpose
from autotune.core.sla import Outcome, Sla, enough_samples, judge, judge_together
from tests.unit.made_trials import made_load, made_measurement

SLA = Sla(latency_ms={95.0: 80.0}, error_rate=0.001)


def outcomes(measurement, sla=SLA):
    return {f.metric: f.outcome for f in judge(measurement, sla).findings}


def test_a_measurement_within_every_limit_meets_and_says_by_how_much():
    verdict = judge(made_measurement(p95=40.0), SLA)
    assert verdict.meets
    assert verdict.reasons[0] == "p95 40.0 ms meets 80 ms with 50% to spare"


def test_a_latency_exactly_at_its_limit_meets():
    assert judge(made_measurement(p95=80.0), SLA).meets


def test_a_latency_over_its_limit_misses_by_a_share_of_the_limit():
    verdict = judge(made_measurement(p95=100.0), SLA)
    assert verdict.outcome is Outcome.MISSES
    assert verdict.violations[0] == pytest.approx(0.25)
    assert verdict.reasons[0] == "p95 100.0 ms breaks 80 ms by 25%"


def test_too_few_requests_for_the_percentile_leave_it_undecided():
    few = made_measurement(load=made_load(scheduled=199, p95=40.0))
    assert outcomes(few)["p95_ms"] is Outcome.UNDECIDED
    assert judge(few, SLA).outcome is Outcome.UNDECIDED


def test_just_enough_requests_decide():
    assert enough_samples(95.0) == 200
    assert enough_samples(90.0) == 100
    assert judge(made_measurement(load=made_load(scheduled=200, p95=40.0)), SLA).meets


def test_a_miss_is_a_miss_even_on_few_requests():
    few = made_measurement(load=made_load(scheduled=20, p95=200.0))
    assert judge(few, SLA).outcome is Outcome.MISSES


def test_errors_count_against_the_error_rate_though_latencies_are_low():
    verdict = judge(made_measurement(load=made_load(scheduled=1000, ok=995)), SLA)
    findings = {f.metric: f for f in verdict.findings}
    assert findings["p95_ms"].outcome is Outcome.MEETS
    assert findings["error_rate"].outcome is Outcome.MISSES
    assert findings["error_rate"].value == pytest.approx(0.005)


def test_an_error_rate_of_zero_tolerates_no_error():
    sla = Sla(latency_ms={95.0: 80.0}, error_rate=0.0)
    assert judge(made_measurement(), sla).meets
    assert not judge(made_measurement(load=made_load(ok=999)), sla).meets


def test_a_server_that_falls_behind_misses_though_its_latencies_hold():
    behind = judge(made_measurement(load=made_load(p95=40.0, achieved=90.0)), SLA)
    assert behind.outcome is Outcome.MISSES
    assert behind.findings[-1].metric == "achieved"
    assert "falls behind" in behind.reasons[-1]
    assert behind.violations[-1] == pytest.approx((0.98 - 0.902) / 0.98)


def test_two_requests_in_flight_at_the_close_of_a_slow_window_are_not_falling_behind():
    slow = made_measurement(load=made_load(scheduled=50, window_s=50.0, achieved=48 / 50))
    assert outcomes(slow)["achieved"] is Outcome.MEETS


def test_nothing_scheduled_is_undecided_rather_than_met_or_missed():
    nothing = made_measurement(load=made_load(p95=None, scheduled=0))
    verdict = judge(nothing, SLA)
    assert verdict.outcome is Outcome.UNDECIDED
    assert verdict.violations == (1.0, pytest.approx(-1.0), 1.0)


def test_every_limit_is_judged_and_the_worst_decides():
    sla = Sla(latency_ms={50.0: 10.0, 99.0: 500.0})
    verdict = judge(made_measurement(p95=40.0), sla)
    assert [f.metric for f in verdict.findings] == ["p50_ms", "p99_ms", "error_rate", "achieved"]
    assert verdict.tightest is not None
    assert verdict.tightest.metric == "p50_ms"


def test_the_tightest_metric_is_the_one_with_the_least_limit():
    assert Sla(latency_ms={99.0: 200.0, 95.0: 80.0}).tightest_metric == "p95_ms"
    assert Sla(latency_ms={95.0: 80.0, 99.0: 80.0}).tightest_metric == "p99_ms"


@pytest.mark.parametrize(
    "kwargs",
    [
        {"latency_ms": {}},
        {"latency_ms": {97.0: 10.0}},
        {"latency_ms": {95.0: 0.0}},
        {"latency_ms": {95.0: float("nan")}},
        {"latency_ms": {95.0: 10.0}, "error_rate": 1.0},
        {"latency_ms": {95.0: 10.0}, "min_achieved": 1.5},
    ],
)
def test_an_sla_that_cannot_be_held_is_refused(kwargs):
    with pytest.raises(InputRefused):
        Sla(**kwargs)


@settings(deadline=None)
@given(p95=st.floats(0.1, 1e5), limit=st.floats(0.1, 1e5), ok=st.integers(0, 1000))
def test_a_verdict_meets_exactly_when_no_term_is_violated(p95, limit, ok):
    measurement = made_measurement(load=made_load(p95=p95, ok=ok))
    verdict = judge(measurement, Sla(latency_ms={95.0: limit}))
    assert verdict.meets == all(violation <= 0 for violation in verdict.violations)


# ---------------------------------------------------------------------------------- intervals
def within(low, high, p95=70.0, **more):
    return made_measurement(p95=p95, within={"p95_ms": (low, high)}, **more)


def test_an_interval_below_the_limit_meets_and_is_shown():
    verdict = judge(within(65.0, 80.0), SLA)
    assert verdict.meets
    assert verdict.reasons[0] == "p95 70.0 ms (65–80) meets 80 ms with 12% to spare"
    assert verdict.findings[0].interval == Interval(65.0, 80.0)


def test_an_interval_above_the_limit_misses():
    verdict = judge(within(81.0, 110.0, p95=100.0), SLA)
    assert verdict.outcome is Outcome.MISSES
    assert verdict.reasons[0] == "p95 100.0 ms (81–110) breaks 80 ms by 25%"


@pytest.mark.parametrize("value", [70.0, 80.0, 90.0])
def test_an_interval_across_the_limit_is_undecided_wherever_its_value_lies(value):
    verdict = judge(within(65.0, 101.0, p95=value), SLA)
    assert verdict.outcome is Outcome.UNDECIDED
    assert verdict.reasons[0] == (
        f"p95 {value:.1f} ms (95% interval 65–101) straddles 80 ms: raise workload.measure_max_s"
    )


def test_what_is_undecided_after_the_finals_asks_for_more_of_them():
    runs = [within(65.0, 101.0, p95=75.0, purpose=p) for p in (Purpose.TRIAL, Purpose.FINAL)]
    assert judge_together(runs, SLA).reasons[0].endswith("straddles 80 ms: raise finals.rounds")
    few = made_measurement(load=made_load(scheduled=100), purpose=Purpose.FINAL)
    assert judge(few, SLA).reasons[0].endswith("are needed: raise finals.rounds")


def test_what_a_search_is_told_comes_from_the_value_and_not_from_the_interval():
    assert judge(within(65.0, 101.0, p95=90.0), SLA).violations[0] == pytest.approx(0.125)
    assert judge(within(65.0, 101.0, p95=60.0), SLA).violations[0] == pytest.approx(-0.25)


def test_an_interval_stands_in_for_the_least_number_of_requests():
    few = made_load(scheduled=100, p95=40.0)
    assert judge(within(35.0, 60.0, load=few), SLA).meets


def test_one_undecided_percentile_leaves_the_whole_undecided():
    sla = Sla(latency_ms={95.0: 80.0, 99.0: 100.0})
    wide = {"p95_ms": (38.0, 45.0), "p99_ms": (45.0, 120.0)}
    verdict = judge(made_measurement(p95=40.0, within=wide), sla)
    assert [f.outcome for f in verdict.findings[:2]] == [Outcome.MEETS, Outcome.UNDECIDED]
    assert verdict.outcome is Outcome.UNDECIDED


def test_two_measurements_decide_together_what_neither_decides_alone():
    runs = [within(64.0, 82.0, qps=100.0, seed=seed) for seed in (1, 2)]
    assert judge(runs[0], SLA).outcome is Outcome.UNDECIDED
    assert judge_together(runs, SLA).meets


def test_requests_of_several_measurements_count_together():
    few = [made_measurement(load=made_load(scheduled=100, p95=40.0))] * 2
    assert judge_together(few, SLA).meets


def test_errors_of_several_measurements_count_together():
    loads = [made_load(scheduled=1000, ok=999), made_load(scheduled=1000, ok=995)]
    verdict = judge_together([made_measurement(load=load) for load in loads], SLA)
    assert {f.metric: f.value for f in verdict.findings}["error_rate"] == pytest.approx(0.003)


def test_a_load_that_was_given_up_because_it_fell_behind_misses_however_short_it_was():
    behind = made_load(p95=40.0, scheduled=100, ok=100, achieved=9.9, ended=Ended.FELL_BEHIND)
    verdict = judge(made_measurement(load=behind), SLA)
    assert verdict.outcome is Outcome.MISSES
    assert verdict.findings[-1].outcome is Outcome.MISSES
    assert verdict.reasons[-1].endswith("the requests in flight grew all the time, it falls behind")
    assert verdict.violations[-1] > 0


@settings(deadline=None)
@given(
    value=st.floats(0.1, 1e5),
    limit=st.floats(0.1, 1e5),
    below=st.floats(1.0, 5.0),
    above=st.floats(1.0, 5.0),
)
def test_an_interval_decides_only_where_it_is_clear_of_the_limit(value, limit, below, above):
    low, high = value / below, value * above
    verdict = judge(within(low, high, p95=value), Sla(latency_ms={95.0: limit}))
    expected = Outcome.UNDECIDED
    if high <= limit:
        expected = Outcome.MEETS
    elif low > limit:
        expected = Outcome.MISSES
    assert verdict.findings[0].outcome is expected


# -------------------------------------------------------------------------------------- accuracy
ACCURATE = Sla(latency_ms={95.0: 80.0}, accuracy_drop=0.01)


def test_an_accuracy_that_drops_less_than_allowed_meets_and_says_what_is_left():
    verdict = judge(made_measurement(accuracy_drop=0.004), ACCURATE)
    assert verdict.meets
    assert "accuracy drop 0.4% meets 1% with 60% to spare" in verdict.reasons


def test_an_accuracy_that_drops_more_than_allowed_misses_though_all_else_holds():
    verdict = judge(made_measurement(accuracy_drop=0.023), ACCURATE)
    assert verdict.outcome is Outcome.MISSES
    (broken,) = (f for f in verdict.findings if f.outcome is Outcome.MISSES)
    assert broken.reason.startswith("accuracy drop 2.3% breaks 1%: ")
    assert verdict.violations[-2] == pytest.approx(1.3)


def test_an_accuracy_that_is_unknown_is_undecided_and_holds_off_a_pick():
    verdict = judge(made_measurement(), ACCURATE)
    assert verdict.outcome is Outcome.UNDECIDED
    assert any(reason.startswith("accuracy is unknown") for reason in verdict.reasons)
    assert verdict.broken


def test_an_sla_that_says_nothing_of_accuracy_does_not_judge_it():
    assert judge(made_measurement(accuracy_drop=0.9), SLA).meets


@pytest.mark.parametrize("sla", [SLA, ACCURATE])
def test_the_findings_are_the_limits_in_their_order_and_then_the_achieved_rate(sla):
    """The search names its constraints by the limits, and is told the findings' violations."""
    found = [finding.metric for finding in judge(made_measurement(), sla).findings]
    assert found == [*(limit.metric for limit in sla.limits), "achieved"]


@pytest.mark.parametrize("share", [-0.01, 1.01])
def test_an_accuracy_drop_is_a_share(share):
    with pytest.raises(InputRefused, match="accuracy_drop"):
        Sla(latency_ms={95.0: 80.0}, accuracy_drop=share)
