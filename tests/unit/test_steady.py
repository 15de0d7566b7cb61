import numpy as np
import pytest

from autotune.core.steady import growth_qps, steady
from tests.benchmarks.queues import Queue


def test_noise_is_steady():
    assert steady(np.random.default_rng(1).gamma(4.0, 5.0, 400))


def test_a_short_start_up_transient_that_is_over_is_steady():
    latencies = np.random.default_rng(2).gamma(4.0, 5.0, 400)
    latencies[:60] += np.linspace(300.0, 0.0, 60)
    assert steady(latencies)


def test_latencies_that_keep_growing_are_not_steady():
    noise = np.random.default_rng(3).gamma(4.0, 5.0, 400)
    assert not steady(noise + np.linspace(0.0, 500.0, 400))


def test_a_transient_longer_than_the_first_half_is_not_steady():
    latencies = np.random.default_rng(4).gamma(4.0, 5.0, 400)
    latencies[:250] += 200.0
    assert not steady(latencies)


@pytest.mark.parametrize("count", [0, 1, 19])
def test_fewer_than_twenty_requests_are_never_called_steady(count):
    assert not steady(np.full(count, 10.0))


def test_equal_latencies_are_steady():
    assert steady(np.full(20, 10.0))


def _alarms(queue: Queue, seeds: range, until_s: float) -> int:
    alarms = 0
    for seed in seeds:
        scheduled, done = queue.phase(seed=seed, warmup_s=2.0, measure_s=until_s)
        seen = np.where(done <= until_s, done, np.nan)
        growth = growth_qps(scheduled, seen, until_s)
        alarms += growth is not None and growth.low > 0.02 * queue.qps
    return alarms


@pytest.mark.parametrize("servers", [1, 2])
def test_a_stable_queue_is_hardly_ever_called_growing(servers):
    queue = Queue(qps=100.0, load=0.9, servers=servers, service_cv=0.1)
    assert _alarms(queue, range(100), 12.0) <= 1


def test_more_than_the_server_can_take_is_found_within_some_seconds():
    queue = Queue(qps=100.0, load=1.1, service_cv=0.1)
    assert _alarms(queue, range(20), 20.0) >= 18


def test_what_is_in_flight_already_when_the_window_opens_is_no_growth():
    # Every answer takes 300 ms, so the first requests seem to pile up.
    scheduled = np.arange(200) / 100
    done = scheduled + 0.3
    growth = growth_qps(scheduled, np.where(done <= 2.0, done, np.nan), 2.0)
    assert growth is not None
    assert abs(growth.low) < 1
    assert abs(growth.high) < 1


def test_a_server_that_stops_answering_is_found_growing():
    scheduled = np.arange(400) / 100
    done = np.where(scheduled < 1.0, scheduled + 0.01, np.nan)
    growth = growth_qps(scheduled, done, 4.0)
    assert growth is not None
    assert growth.low > 50


def test_nothing_is_said_of_growth_before_the_first_answers():
    scheduled = np.arange(100) / 100
    assert growth_qps(scheduled, np.full(100, np.nan), 1.0) is None


def test_nothing_is_said_of_growth_from_a_few_requests():
    scheduled = np.arange(10) / 10
    assert growth_qps(scheduled, scheduled + 0.01, 1.0) is None
