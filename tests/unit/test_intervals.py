import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from autotune.core.intervals import (
    Interval,
    autocorrelation_time,
    percentile_interval,
    percentile_intervals,
    rate_interval,
    share_interval,
)
from tests.benchmarks.queues import Queue


def _autoregressive(coefficient: float, count: int, seed: int = 1) -> np.ndarray:
    noise = np.random.default_rng(seed).normal(size=count)
    values = np.empty(count)
    value = 0.0
    for place, step in enumerate(noise):
        value = coefficient * value + step
        values[place] = value
    return values


def _covered(queue: Queue, *, seeds: range, requests: int, percentile: float = 95.0) -> float:
    truth = queue.true_percentiles_ms([percentile], requests=300_000)[0]
    held = 0
    for seed in seeds:
        values = queue.latencies_ms(seed=seed, warmup_s=10.0, measure_s=requests / queue.qps)
        interval = percentile_interval(values, percentile)
        assert interval is not None
        held += interval.low <= truth <= interval.high
    return held / len(seeds)


@pytest.mark.parametrize("load", [0.5, 0.7, 0.85])
def test_a_nominal_95_percent_interval_holds_the_true_p95_of_a_queue_nearly_that_often(load):
    covered = _covered(Queue(load=load, service_cv=0.5), seeds=range(1, 101), requests=1200)
    assert 0.90 <= covered <= 0.99


def test_it_holds_behind_a_batcher_too():
    covered = _covered(Queue(load=0.7, batch=8), seeds=range(1, 41), requests=1200)
    assert covered >= 0.90


def test_the_interval_of_independent_values_is_little_wider_than_the_binomial_one():
    values = np.random.default_rng(1).exponential(size=5000)
    interval = percentile_interval(values, 95.0)
    assert interval is not None
    # An order statistic's relative standard error: sqrt(p / (n (1 - p))) / ln(20), some 2%.
    assert 0.03 < interval.relative_half_width < 0.08


def test_dependence_makes_the_interval_wider():
    independent = percentile_interval(np.exp(_autoregressive(0.0, 3000)), 90.0)
    dependent = percentile_interval(np.exp(_autoregressive(0.9, 3000)), 90.0)
    assert independent is not None
    assert dependent is not None
    assert dependent.relative_half_width > 2 * independent.relative_half_width


def test_a_higher_level_gives_a_wider_interval():
    values = np.random.default_rng(2).exponential(size=1000)
    usual, strict = (percentile_interval(values, 95.0, level=level) for level in (0.95, 0.99))
    assert usual is not None
    assert strict is not None
    assert strict.low <= usual.low
    assert usual.high < strict.high


def test_the_upper_end_may_lie_beyond_what_was_seen():
    values = np.random.default_rng(3).exponential(size=40)
    interval = percentile_interval(values, 99.0)
    assert interval is not None
    assert interval.high > values.max()


def test_equal_values_leave_no_doubt():
    assert percentile_interval(np.full(100, 7.0), 95.0) == Interval(7.0, 7.0)


def test_too_few_values_have_no_interval():
    assert percentile_interval(np.ones(19), 95.0) is None
    assert percentile_intervals(np.ones(19), (50.0, 95.0)) == {}
    assert share_interval(np.ones(19, dtype=bool)) is None


@given(
    arrays.arrays(np.float64, st.integers(20, 300), elements=st.floats(0.1, 1e4)),
    st.sampled_from([50.0, 90.0, 95.0, 99.0]),
)
def test_whatever_the_latencies_the_interval_holds_their_percentile(values, percentile):
    interval = percentile_interval(values, percentile)
    assert interval is not None
    assert interval.low <= np.percentile(values, percentile, method="inverted_cdf")
    assert interval.high >= np.percentile(values, percentile, method="inverted_cdf")
    assert math.isfinite(interval.high)


@pytest.mark.parametrize("coefficient", [0.0, 0.5, 0.9])
def test_the_autocorrelation_time_of_an_autoregressive_series_is_found(coefficient):
    found = np.mean([autocorrelation_time(_autoregressive(coefficient, 4000, s)) for s in range(8)])
    assert found == pytest.approx((1 + coefficient) / (1 - coefficient), rel=0.15)


def test_the_autocorrelation_time_of_a_long_series_is_that_of_all_of_it():
    found = autocorrelation_time(_autoregressive(0.9, 50_000))
    assert found == pytest.approx(19, rel=0.2)


def test_a_series_that_never_changes_has_no_dependence():
    assert autocorrelation_time(np.full(50, 3.0)) == 1


def test_a_steady_rate_is_known_exactly():
    interval = rate_interval(np.arange(0.05, 10, 0.1), 10.0)
    assert interval is not None
    assert (interval.low, interval.high) == (pytest.approx(10), pytest.approx(10))


def test_the_interval_of_a_random_rate_holds_it_nearly_always():
    rng = np.random.default_rng(4)
    held = 0
    for _ in range(200):
        interval = rate_interval(np.sort(rng.uniform(0, 10, rng.poisson(500))), 10.0)
        assert interval is not None
        held += interval.low <= 50 <= interval.high
    assert 0.90 <= held / 200 <= 0.99


def test_a_handful_of_events_has_no_rate_interval():
    assert rate_interval(np.arange(10.0), 10.0) is None


@pytest.mark.parametrize(("every", "low", "high"), [(4, 0.2, 0.3), (10**6, 0.0, 0.02)])
def test_the_interval_of_a_share_holds_it(every, low, high):
    happened = np.random.default_rng(5).permutation(np.arange(1000) % every == 0)
    interval = share_interval(happened)
    assert interval is not None
    assert low <= interval.low <= happened.mean() <= interval.high <= high


def test_a_share_of_everything_or_nothing_ends_at_its_bound():
    nothing, everything = (share_interval(np.full(100, value)) for value in (False, True))
    assert nothing is not None
    assert everything is not None
    assert (nothing.low, everything.high) == (0, 1)


def test_what_happens_in_bursts_tells_less_of_its_share():
    scattered = np.random.default_rng(6).permutation(np.arange(1000) < 100)
    burst = np.arange(1000) < 100
    narrow, wide = share_interval(scattered), share_interval(burst)
    assert narrow is not None
    assert wide is not None
    assert wide.low < narrow.low


def test_the_relative_half_width_is_that_of_the_middle():
    assert Interval(90.0, 110.0).relative_half_width == pytest.approx(0.1)
    assert Interval(0.0, 0.0).relative_half_width == math.inf


@pytest.mark.parametrize(("other", "overlaps"), [((5, 7), True), ((6.5, 7), False), ((1, 2), True)])
def test_intervals_that_share_a_value_overlap(other, overlaps):
    assert Interval(2.0, 6.0).overlaps(Interval(*other)) is overlaps
