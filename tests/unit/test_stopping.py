import dataclasses
from collections.abc import Callable, Mapping

import numpy as np
import pytest

from autotune.core.intervals import Interval
from autotune.core.measured_intervals import intervals_of, saturation_interval
from autotune.core.measurement import Ended, LoadResult
from autotune.core.sla import Sla
from autotune.core.stopping import StopRule
from tests.benchmarks.queues import Queue, load_of

QUEUE = Queue(qps=100.0, load=0.5, service_cv=0.1)


def _phase(queue: Queue = QUEUE, *, seconds: float = 6.0, seed: int = 1) -> LoadResult:
    scheduled, done = queue.phase(seed=seed, warmup_s=3.0, measure_s=seconds)
    return load_of(scheduled, done, window_s=seconds)


def _rule(
    limit_ms: float = 1000.0,
    *,
    nominal_s: float = 12.0,
    contender: Callable[[Mapping[str, Interval]], bool] = lambda _: False,
    percentile: float = 95.0,
) -> StopRule:
    return StopRule(
        sla=Sla(latency_ms={percentile: limit_ms}), nominal_s=nominal_s, contender=contender
    )


def _with_errors(load: LoadResult, every: int) -> LoadResult:
    assert load.samples is not None
    ok = load.samples.ok.copy()
    ok[::every] = False
    return dataclasses.replace(
        load, ok=int(ok.sum()), samples=dataclasses.replace(load.samples, ok=ok)
    )


def test_a_window_that_clearly_meets_and_is_no_contender_is_decided():
    assert _rule()(_phase()) is Ended.DECIDED


def test_a_contender_that_clearly_meets_goes_on():
    assert _rule(contender=lambda _: True)(_phase()) is None


def test_a_contender_that_clearly_meets_is_decided_at_the_nominal_time():
    assert _rule(contender=lambda _: True, nominal_s=6.0)(_phase()) is Ended.DECIDED


def test_a_contender_is_decided_early_when_its_latency_is_known_well():
    flat = np.arange(600) / 100
    load = load_of(flat, flat + 0.02, window_s=6.0)
    assert _rule(contender=lambda _: True)(load) is Ended.DECIDED


def test_the_contender_is_asked_with_intervals_by_metric_name():
    asked: list[Mapping[str, Interval]] = []

    def contender(intervals: Mapping[str, Interval]) -> bool:
        asked.append(intervals)
        return False

    load = _phase()
    _rule(contender=contender)(load)
    assert load.latency is not None
    assert asked[0]["p95_ms"].low <= load.latency.at(95.0) <= asked[0]["p95_ms"].high
    assert asked[0]["achieved_qps"].low <= 100 <= asked[0]["achieved_qps"].high


def test_a_window_that_straddles_its_limit_goes_on_beyond_the_nominal_time():
    load = _phase()
    assert load.latency is not None
    assert _rule(load.latency.at(95.0), nominal_s=3.0)(load) is None


@pytest.mark.parametrize(
    ("contender", "ended"), [(False, Ended.OUTCLASSED), (True, None)], ids=["no", "yes"]
)
def test_a_window_that_straddles_its_limit_goes_on_for_a_contender_alone(contender, ended):
    load = _phase()
    assert load.latency is not None
    rule = _rule(load.latency.at(95.0), contender=lambda _: contender)
    assert rule(load) is None  # whose verdict is wanted whoever it is
    assert dataclasses.replace(rule, outclassed_ends=True)(load) is ended


def test_a_window_far_above_its_limit_is_hopeless():
    assert _rule(3.0)(_phase()) is Ended.HOPELESS


def test_one_of_several_limits_broken_beyond_doubt_is_hopeless():
    rule = dataclasses.replace(_rule(), sla=Sla(latency_ms={50.0: 1000.0, 99.0: 6.0}))
    assert rule(_phase()) is Ended.HOPELESS


def test_more_than_the_server_can_take_falls_behind():
    load = _phase(Queue(qps=100.0, load=1.4), seconds=8.0)
    assert _rule(1e5)(load) is Ended.FELL_BEHIND


def test_many_errors_are_hopeless():
    assert _rule(percentile=50.0)(_with_errors(_phase(), 10)) is Ended.HOPELESS


def test_one_error_more_than_allowed_is_neither_hopeless_nor_good_enough():
    assert _rule()(_with_errors(_phase(), 500)) is None


def test_a_percentile_is_not_decided_on_fewer_requests_than_it_needs():
    assert _rule(percentile=99.0)(_phase(seconds=8.0)) is None


@pytest.mark.parametrize("seconds", [0.05, 0.15])
def test_a_handful_of_requests_decides_nothing(seconds):
    assert _rule(3.0)(_phase(seconds=seconds)) is None


def test_without_raw_samples_nothing_is_decided():
    assert _rule(3.0)(dataclasses.replace(_phase(), samples=None)) is None


def test_unanswered_requests_enter_the_interval_with_their_time_out():
    scheduled = np.arange(200) / 100
    done = scheduled + np.where(np.arange(200) % 3 == 0, 60.0, 0.01)
    load = load_of(scheduled, done, window_s=2.0, timeout_s=4.0)
    assert intervals_of(load, timeout_s=4.0)["p95_ms"].high >= 4000


def test_a_load_without_samples_has_no_intervals():
    load = dataclasses.replace(_phase(), samples=None)
    assert intervals_of(load, timeout_s=10.0) == {}
    assert saturation_interval(load) is None


def test_the_achieved_rate_counts_from_the_windows_first_answer():
    scheduled = np.arange(1000) / 100
    load = load_of(scheduled, scheduled + 2.0, window_s=10.0)
    interval = intervals_of(load, timeout_s=10.0)["achieved_qps"]
    assert interval.low == pytest.approx(100, rel=0.02)


def test_the_saturation_interval_covers_the_rate_of_completions():
    scheduled = np.arange(1000) / 100
    interval = saturation_interval(load_of(scheduled, scheduled + 0.005, window_s=10.0))
    assert interval is not None
    assert interval.low <= 100 <= interval.high
