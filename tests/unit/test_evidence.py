from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.core.evidence import estimate, evidence
from autotune.core.intervals import Interval
from autotune.core.measurement import Purpose
from tests.unit.made_trials import made_load, made_measurement, made_trial

OTHERS = [p for p in Purpose if p not in {Purpose.TRIAL, Purpose.CANARY, Purpose.FINAL}]


def p95(value, low, high, *, seed=None):
    return made_measurement(
        p95=value,
        within={"p95_ms": (low, high)},
        qps=None if seed is None else 100.0,
        seed=seed or 0,
    )


def pooled(*measurements):
    found = estimate(measurements, "p95_ms")
    assert found is not None
    assert found.interval is not None
    return found


# ---------------------------------------------------------------------------- what is evidence
def test_the_last_valid_measurement_of_the_search_is_the_evidence():
    first, last = made_measurement(p95=10), made_measurement(p95=20)
    odd = made_measurement(p95=30, invalid=("late",))
    assert evidence(made_trial(0, first, last, odd)) == (last,)


def test_a_canary_which_is_cut_short_does_not_replace_the_search():
    search, canary = made_measurement(), made_measurement(p95=20, purpose=Purpose.CANARY)
    assert evidence(made_trial(0, search, canary)) == (search,)


def test_the_last_canary_is_evidence_where_the_search_is_not_believed():
    odd = made_measurement(invalid=("the machine changed",))
    early, late = (made_measurement(p95=p, purpose=Purpose.CANARY) for p in (20.0, 21.0))
    assert evidence(made_trial(0, odd, early, late)) == (late,)


def test_the_finals_stand_beside_what_the_search_measured_last():
    early, search = made_measurement(p95=9), made_measurement(p95=10)
    finals = tuple(made_measurement(p95=p, purpose=Purpose.FINAL) for p in (20.0, 22.0))
    odd = made_measurement(purpose=Purpose.FINAL, invalid=("late",))
    trial = made_trial(0, early, search, finals[0], odd, finals[1])
    assert evidence(trial) == (search, *finals)


@pytest.mark.parametrize("purpose", OTHERS)
def test_what_was_measured_for_something_else_is_no_evidence(purpose):
    search, other = made_measurement(), made_measurement(p95=20, purpose=purpose)
    assert evidence(made_trial(0, search, other)) == (search,)


def test_a_purpose_gives_its_valid_measurements_in_order():
    taken = [made_measurement(p95=p, purpose=Purpose.FINAL) for p in (1.0, 2.0)]
    odd = replace(taken[0], invalid_because=("late",))
    trial = made_trial(0, made_measurement(), taken[0], odd, taken[1])
    assert trial.of(Purpose.FINAL) == tuple(taken)


# ------------------------------------------------------------------------------------- pooling
def test_one_measurement_says_what_it_says():
    found = pooled(p95(40.0, 35.0, 50.0))
    assert (found.value, found.interval) == (40.0, Interval(35.0, 50.0))


def test_two_that_agree_are_surer_by_the_root_of_two():
    found = pooled(p95(40.0, 36.0, 400 / 9), p95(40.0, 36.0, 400 / 9))
    assert found.value == pytest.approx(40.0)
    assert math.log(found.interval.high / 40) == pytest.approx(math.log(10 / 9) / math.sqrt(2))


def test_the_surer_of_two_counts_for_more():
    found = pooled(p95(40.0, 39.0, 41.0), p95(44.0, 30.0, 60.0))
    assert 40.0 < found.value < 40.2


def test_two_that_disagree_are_not_made_surer_by_being_two():
    found = pooled(p95(40.0, 39.0, 41.0), p95(60.0, 58.5, 61.5))
    assert found.interval.low < 41.0
    assert found.interval.high > 58.5


def test_the_same_arrivals_twice_make_nothing_surer():
    once, again, apart = (p95(40.0, 36.0, 44.0, seed=seed) for seed in (1, 1, 2))
    same = pooled(once, again)
    other = pooled(once, apart)
    assert (same.interval.low, same.interval.high) == pytest.approx((36.0, 44.0))
    assert other.interval.high < 43.0


def test_what_has_no_interval_is_left_aside_where_another_has_one():
    found = pooled(p95(40.0, 36.0, 44.0), made_measurement(p95=90.0))
    assert found.value == pytest.approx(40.0)


def test_without_any_interval_it_is_the_mean():
    found = estimate([made_measurement(p95=40.0), made_measurement(p95=50.0)], "p95_ms")
    assert found is not None
    assert (found.value, found.interval) == (45.0, None)


def test_an_error_rate_is_that_of_all_requests_together():
    loads = [made_load(scheduled=1000, ok=990), made_load(scheduled=9000, ok=9000)]
    found = estimate([made_measurement(load=load) for load in loads], "error_rate")
    assert found is not None
    assert found.value == pytest.approx(0.001)


def test_what_no_measurement_knows_is_unknown():
    assert estimate([made_measurement(saturation=None)] * 2, "saturation_qps") is None
    assert estimate([], "p95_ms") is None
    assert estimate([], "error_rate") is None


MEASURED = st.builds(
    lambda value, below, above, seed: p95(value, value / below, value * above, seed=seed),
    st.floats(1, 1e4),
    st.floats(1.0, 3.0),
    st.floats(1.0, 3.0),
    st.sampled_from([None, 1, 2]),
)


@settings(deadline=None)
@given(st.lists(MEASURED, min_size=1, max_size=5))
def test_a_pooled_value_lies_in_its_interval_and_among_the_values(measurements):
    found = pooled(*measurements)
    values = [m.metric("p95_ms") for m in measurements]
    assert min(values) * (1 - 1e-9) <= found.value <= max(values) * (1 + 1e-9)
    assert found.interval.low <= found.value * (1 + 1e-9)
    assert found.value <= found.interval.high * (1 + 1e-9)
