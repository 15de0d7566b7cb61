import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.core.capacity import Capacity, Probe, capacity, capacity_of, next_rate, probes_of
from autotune.core.intervals import Estimate, Interval
from autotune.core.measurement import Measurement, Purpose, Traffic
from autotune.core.sla import Outcome, Sla
from tests.unit.made_trials import made_load, made_measurement

LIMIT = 40.0
SLA = Sla(latency_ms={95.0: LIMIT})


def _probe(qps: float, p95: float, half: float = 1.0, saturation: float | None = None) -> Probe:
    interval = Interval(p95 - half, p95 + half)
    outcome = Outcome.UNDECIDED
    if interval.high <= LIMIT:
        outcome = Outcome.MEETS
    elif interval.low > LIMIT:
        outcome = Outcome.MISSES
    return Probe(
        qps=qps,
        outcome=outcome,
        estimate=Estimate(p95, interval),
        limit=LIMIT,
        saturation_qps=saturation,
    )


def _served(qps: float, most: float = 150.0, service: float = 10.0) -> Probe:
    """As a queue would have it: the latency grows without bound towards what it can take."""
    p95 = service / (1 - qps / most) if qps < most else 1e4
    return _probe(qps, p95, half=0.01 * p95, saturation=most)


def _searched(first: float, most: float, budget: int) -> list[Probe]:
    probes = [_served(first, most)]
    while len(probes) <= budget and (rate := next_rate(probes)) is not None:
        probes.append(_served(rate, most))
    return probes


@given(first=st.floats(10.0, 200.0), most=st.floats(60.0, 500.0))
def test_a_few_probes_find_the_rate_at_which_the_limit_is_crossed(first, most):
    found = capacity(_searched(first, most, budget=12))
    assert found is not None
    assert found.qps == pytest.approx(0.75 * most, rel=0.05)
    assert found.interval.low <= 0.75 * most <= found.interval.high


def test_five_probes_come_within_a_twentieth_from_a_target_with_much_to_spare():
    found = capacity(_searched(40.0, 150.0, budget=5))
    assert found is not None
    assert found.qps == pytest.approx(112.5, rel=0.05)


def test_no_probe_asks_for_nothing():
    assert next_rate([]) is None
    assert capacity([]) is None


def test_where_the_target_is_met_the_next_rate_lies_between_it_and_the_saturation():
    rate = next_rate([_probe(40.0, 10.0, saturation=160.0)])
    assert rate == pytest.approx(80.0)


def test_where_the_saturation_is_not_known_the_rate_is_raised_step_by_step():
    assert next_rate([_probe(40.0, 10.0)]) == pytest.approx(60.0)


def test_a_target_that_meets_at_its_saturation_is_probed_beyond_it():
    rate = next_rate([_probe(100.0, 10.0, saturation=98.0)])
    assert rate is not None
    assert rate > 100


def test_where_the_target_is_missed_the_search_goes_below_it():
    rate = next_rate([_probe(100.0, 90.0)])
    assert rate is not None
    assert rate < 100


def test_a_search_that_meets_nowhere_ends():
    probes = [_probe(100.0, 90.0)]
    while (rate := next_rate(probes)) is not None:
        probes.append(_probe(rate, 80.0))
    assert len(probes) < 15
    found = capacity(probes)
    assert found is not None
    assert found.at_most
    assert found.interval.low == 0


def test_a_narrow_bracket_ends_the_search():
    assert next_rate([_probe(100.0, 38.0), _probe(104.0, 43.0)]) is None


def test_the_point_lies_where_the_latency_crosses_the_limit():
    found = capacity([_probe(100.0, 20.0), _probe(121.0, 80.0)])
    assert found is not None
    assert found.qps == pytest.approx(110.0)
    assert found.interval == Interval(100.0, 121.0)


def test_an_undecided_probe_guides_the_search_and_widens_the_interval():
    probes = [_probe(100.0, 20.0), _probe(110.0, 39.0, half=5.0), _probe(130.0, 70.0)]
    found = capacity(probes)
    assert found is not None
    assert 110 <= found.qps <= 130
    assert found.interval == Interval(100.0, 130.0)


def test_a_miss_below_what_meets_widens_the_interval_over_both():
    probes = [
        _probe(80.0, 20.0),
        _probe(90.0, 42.0),
        _probe(100.0, 30.0),
        _probe(120.0, 90.0),
    ]
    found = capacity(probes)
    assert found is not None
    assert found.interval == Interval(80.0, 120.0)
    assert 100 <= found.qps <= 120


def test_where_every_probe_meets_the_capacity_is_at_least_the_highest():
    found = capacity([_probe(100.0, 20.0), _probe(120.0, 25.0)])
    assert found is not None
    assert (found.qps, found.at_least, found.interval.high) == (120.0, True, math.inf)
    assert str(found) == "at least 120.0/s"


@pytest.mark.parametrize(
    ("probes", "text"),
    [
        ([_probe(100.0, 20.0), _probe(120.0, 39.5)], "at least 100.0/s"),
        ([_probe(100.0, 39.5)], "undecided at 100.0/s"),
        ([_probe(100.0, 40.5)], "undecided at 100.0/s"),
        ([_probe(100.0, 40.5), _probe(120.0, 90.0)], "below 120.0/s"),
    ],
)
def test_no_more_is_claimed_than_is_clear(probes, text):
    assert str(capacity(probes)) == text


def test_an_open_end_is_none_in_plain_data():
    found = capacity([_probe(100.0, 20.0)])
    assert found is not None
    assert found.to_json()["high"] is None


def test_a_miss_for_its_errors_bounds_the_capacity_whatever_its_latency():
    failing = dataclasses.replace(_probe(120.0, 20.0), outcome=Outcome.MISSES)
    found = capacity([_probe(100.0, 18.0), failing])
    assert found is not None
    assert 100 < found.qps < 120


def test_the_capacity_is_held_against_the_saturation():
    found = capacity([_probe(100.0, 20.0, saturation=160.0), _probe(121.0, 80.0)])
    assert found is not None
    assert found.saturation_share == pytest.approx(110 / 160)


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [
        (90.0, 110.0, "100.0/s (90.0–110.0)"),
        (0.0, 110.0, "100.0/s (at most 110.0)"),
        (90.0, math.inf, "100.0/s (at least 90.0)"),
        (0.0, math.inf, "100.0/s"),
    ],
)
def test_the_ends_are_told_as_far_as_they_are_known(low, high, text):
    found = Capacity(
        qps=100.0,
        interval=Interval(low, high),
        at_least=False,
        at_most=False,
        saturation_share=None,
    )
    assert str(found) == text


_excesses = st.lists(st.tuples(st.floats(10, 500), st.floats(1, 400)), min_size=1, max_size=12)


@given(_excesses)
def test_whatever_the_noise_the_answer_lies_within_its_interval_and_the_probes(drawn):
    probes = [_probe(qps, p95, half=0.1 * p95) for qps, p95 in drawn]
    found = capacity(probes)
    assert found is not None
    assert min(p.qps for p in probes) <= found.qps <= max(p.qps for p in probes)
    assert found.interval.low <= found.interval.high


@given(_excesses)
def test_whatever_the_noise_the_next_rate_is_a_new_one(drawn):
    probes = [_probe(qps, p95) for qps, p95 in drawn]
    rate = next_rate(probes)
    assert rate is None or rate not in [p.qps for p in probes]


# --------------------------------------------------------------------------- stored measurements
def _measured(qps: float, p95: float, purpose: Purpose, *, invalid: bool = False) -> Measurement:
    load = made_load(p95=p95, scheduled=round(qps * 10), window_s=10.0)
    measured = made_measurement(load=load, purpose=purpose, invalid=("x",) if invalid else ())
    return dataclasses.replace(
        measured,
        intervals={"p95_ms": Interval(0.95 * p95, 1.05 * p95)},
        traffic=Traffic(qps=qps, arrival="poisson", cv=1.0, seed=1),
    )


def test_a_trial_whose_capacity_was_not_probed_has_none():
    assert capacity_of([_measured(100.0, 20.0, Purpose.TRIAL)], SLA) is None


def test_the_capacity_can_be_taken_from_stored_measurements():
    measurements = [
        _measured(100.0, 20.0, Purpose.TRIAL),
        _measured(121.0, 80.0, Purpose.CAPACITY),
        _measured(105.0, 900.0, Purpose.CAPACITY, invalid=True),
    ]
    found = capacity_of(measurements, SLA)
    assert found is not None
    assert found.qps == pytest.approx(110.0)
    assert found.interval == Interval(100.0, 121.0)


def test_at_the_workloads_rate_the_search_and_the_finals_count_together():
    measurements = [
        _measured(100.0, 10.0, Purpose.TRIAL),
        _measured(100.0, 22.0, Purpose.TRIAL),
        _measured(100.0, 20.0, Purpose.FINAL),
        _measured(100.0, 21.0, Purpose.FINAL),
        _measured(100.0, 90.0, Purpose.CANARY),
    ]
    (probe,) = probes_of(measurements, SLA)
    assert probe.outcome is Outcome.MEETS
    assert probe.estimate is not None
    assert probe.estimate.value == pytest.approx((20 * 21 * 22) ** (1 / 3))


def test_of_several_limits_the_one_nearest_to_being_broken_counts():
    sla = Sla(latency_ms={50.0: 15.0, 95.0: 100.0})
    (probe,) = probes_of([_measured(100.0, 28.0, Purpose.TRIAL)], sla)
    assert (probe.limit, probe.estimate) == (15.0, Estimate(14.0))


def test_robust_probes_of_other_traffic_say_nothing_of_the_capacity():
    measurements = [_measured(100.0, 20.0, Purpose.TRIAL), _measured(120.0, 90.0, Purpose.ROBUST)]
    assert [probe.qps for probe in probes_of(measurements, SLA)] == [100.0]
