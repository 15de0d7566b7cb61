import numpy as np
import pytest

from autotune.core.comparison import Relation, compare_latency, compare_rates, relation
from autotune.core.errors import InputRefused
from autotune.core.intervals import Estimate, Interval
from autotune.core.measurement import RequestSamples
from tests.benchmarks.comparing import compared
from tests.benchmarks.queues import Queue

QUEUE = Queue(load=0.6)


def _samples(latency_s: list[float] | np.ndarray) -> RequestSamples:
    scheduled = np.arange(len(latency_s)) / 100
    done = scheduled + np.asarray(latency_s)
    return RequestSamples(
        scheduled_s=scheduled, sent_s=scheduled, done_s=done, ok=~np.isnan(np.asarray(latency_s))
    )


def _noisy(scale: float, seed: int, count: int = 400) -> RequestSamples:
    return _samples(scale * np.random.default_rng(seed).gamma(25.0, 0.001, count))


def _compare(*runs: tuple[RequestSamples, RequestSamples], percentile: float = 95.0):
    return compare_latency(3, 5, percentile, runs, timeout_s=2.0, taken_at=9.0)


def test_equal_runs_tie_with_no_effect():
    comparison = _compare((_noisy(1.0, 1), _noisy(1.0, 1)))
    assert comparison.effect == 0
    assert comparison.relation is Relation.TIE


def test_the_faster_second_is_better_and_the_slower_is_worse():
    faster = _compare((_noisy(1.0, 1), _noisy(0.5, 2)))
    slower = _compare((_noisy(0.5, 2), _noisy(1.0, 1)))
    assert (faster.relation, slower.relation) == (Relation.BETTER, Relation.WORSE)
    assert faster.effect == pytest.approx(-0.5, abs=0.05)


def test_a_comparison_names_its_trials_its_metric_and_its_pairs():
    comparison = _compare(*[(_noisy(1.0, 1), _noisy(1.0, 2))] * 2)
    assert (comparison.first, comparison.second, comparison.metric) == (3, 5, "p95_ms")
    assert (comparison.pairs, comparison.taken_at) == (2, 9.0)


def test_the_interval_holds_the_effect():
    comparison = _compare((_noisy(1.0, 1), _noisy(1.3, 2)))
    assert comparison.interval.low < comparison.effect < comparison.interval.high


def test_the_same_runs_always_give_the_same_answer():
    runs = (_noisy(1.0, 1), _noisy(1.2, 2))
    assert _compare(runs) == _compare(runs)


def test_runs_of_different_lengths_are_compared_over_their_common_beginning():
    long = np.concatenate([np.full(100, 0.02), np.full(300, 9.0)])
    assert _compare((_samples([0.02] * 100), _samples(long))).effect == 0


def test_failures_count_with_their_time_out():
    failing = np.full(100, 0.02)
    failing[::5] = np.nan
    comparison = _compare((_samples([0.02] * 100), _samples(failing)))
    assert comparison.effect == pytest.approx(2.0 / 0.02 - 1)


def test_a_real_but_meaningless_difference_is_a_tie():
    assert relation("p95_ms", -0.019, Interval(-0.02, -0.018)) is Relation.TIE


def test_a_pair_with_hardly_a_request_is_left_out():
    pair = (_noisy(1.0, 1), _noisy(1.0, 2))
    assert _compare(pair, (_samples([1.0]), _samples([2.0]))) == _compare(pair)


def test_a_comparison_without_requests_is_refused():
    with pytest.raises(InputRefused, match="at least 20 requests"):
        _compare((_samples([0.1]), _samples([0.1])))


def test_what_both_members_met_together_takes_no_part_in_their_difference():
    shared = np.repeat(np.random.default_rng(5).gamma(2.0, 0.01, 40), 30)
    paired = _compare((_samples(shared), _samples(1.01 * shared)))
    apart = _compare((_samples(shared), _samples(1.01 * shared[::-1])))
    assert paired.interval.high - paired.interval.low < 0.15
    assert apart.interval.high - apart.interval.low > 2 * (
        paired.interval.high - paired.interval.low
    )


def test_pairs_that_disagree_widen_the_interval():
    agreeing = [(_noisy(1.0, n), _noisy(1.2, n)) for n in range(4)]
    disagreeing = [(_noisy(1.0, n), _noisy(1.0 + 0.1 * n, n)) for n in range(4)]
    narrow, wide = _compare(*agreeing).interval, _compare(*disagreeing).interval
    assert wide.high - wide.low > 1.5 * (narrow.high - narrow.low)


def test_runs_of_one_configuration_hardly_ever_differ():
    relations = [compared(QUEUE, 0.0, 0.01, seed).relation for seed in range(1, 21)]
    assert relations.count(Relation.TIE) >= 19


def test_a_tenth_more_service_time_is_found():
    relations = [compared(QUEUE, 0.10, 0.01, seed).relation for seed in range(1, 21)]
    assert relations.count(Relation.WORSE) >= 18


def _rate(value: float, half: float = 1.0) -> Estimate:
    return Estimate(value, Interval(value - half, value + half))


def test_the_higher_rate_is_better():
    pairs = [(_rate(100.0), _rate(120.0)), (_rate(102.0), _rate(121.0))]
    comparison = compare_rates(1, 2, "saturation_qps", pairs, taken_at=0.0)
    assert comparison.relation is Relation.BETTER
    assert comparison.effect == pytest.approx(0.19, abs=0.01)


def test_rates_within_each_others_intervals_tie():
    pairs = [(_rate(100.0, 8.0), _rate(106.0, 8.0))]
    comparison = compare_rates(1, 2, "saturation_qps", pairs, taken_at=0.0)
    assert comparison.relation is Relation.TIE


def test_a_rate_without_an_interval_is_taken_for_a_rough_one():
    rough = compare_rates(1, 2, "saturation_qps", [(Estimate(100), Estimate(110))], taken_at=0.0)
    assert rough.relation is Relation.TIE


def test_rates_that_are_not_known_are_refused():
    with pytest.raises(InputRefused, match="rates above 0"):
        compare_rates(1, 2, "saturation_qps", [(Estimate(0.0), _rate(1.0))], taken_at=0.0)
