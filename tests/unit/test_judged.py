from __future__ import annotations

import json

import pytest

from autotune.core.judged import judge_trial
from autotune.core.measurement import Purpose
from autotune.core.sla import Outcome, Sla
from tests.unit.made_trials import made_load, made_measurement, made_trial

SLA = Sla(latency_ms={95.0: 80.0})


def measured(p95, low, high, purpose=Purpose.TRIAL, **more):
    return made_measurement(p95=p95, within={"p95_ms": (low, high)}, purpose=purpose, **more)


def judged(*measurements):
    found = judge_trial(made_trial(0, *measurements), SLA)
    assert found is not None
    return found


SURE = measured(40.0, 35.0, 45.0)
UNSURE = measured(70.0, 60.0, 90.0)


# -------------------------------------------------------------------------------- confirmation
@pytest.mark.parametrize(
    ("confirmed", "outcome"),
    [
        ((41.0, 36.0, 50.0), Outcome.MEETS),
        ((78.0, 70.0, 95.0), Outcome.MEETS),
        ((82.0, 70.0, 95.0), Outcome.UNDECIDED),
        ((95.0, 85.0, 110.0), Outcome.MISSES),
    ],
    ids=["clear", "unsure within", "unsure beyond", "broken"],
)
def test_a_confirmation_objects_where_it_misses_or_its_value_lies_beyond_the_limit(
    confirmed, outcome
):
    assert judged(SURE, measured(*confirmed, Purpose.CONFIRM)).outcome is outcome


def test_a_clear_confirmation_does_not_settle_what_the_evidence_leaves_open():
    clear = measured(40.0, 35.0, 45.0, Purpose.CONFIRM)
    assert judged(UNSURE, clear).outcome is Outcome.UNDECIDED


def test_a_confirmation_without_an_answer_is_no_confirmation():
    nothing = made_measurement(load=made_load(p95=None, ok=0), purpose=Purpose.CONFIRM)
    assert not judged(SURE, nothing).meets


# -------------------------------------------------------------------------------------- robust
def probe(p95, low, high, qps, cv=1.0, **more):
    return measured(p95, low, high, Purpose.ROBUST, qps=qps, cv=cv, **more)


def test_every_probe_of_the_neighbourhood_must_hold():
    held, broken = probe(60.0, 55.0, 70.0, 80.0), probe(100.0, 90.0, 120.0, 120.0)
    assert judged(SURE, held).meets
    assert judged(SURE, held, broken).outcome is Outcome.MISSES


def test_a_probe_that_is_only_unsure_does_not_object():
    assert judged(SURE, probe(75.0, 65.0, 90.0, 120.0)).meets


def test_probes_at_one_point_are_judged_together_and_in_the_order_of_their_rates():
    runs = [probe(72.0, 64.0, 82.0, 120.0, seed=seed) for seed in (1, 2)]
    found = judged(SURE, *runs, probe(60.0, 55.0, 70.0, 80.0, cv=2.0)).probes
    assert [(p.traffic.qps, p.traffic.cv) for p in found] == [(80.0, 2.0), (120.0, 1.0)]
    assert found[1].verdict.meets


def test_the_violation_is_the_worst_of_all_that_was_measured():
    confirmed = measured(90.0, 85.0, 95.0, Purpose.CONFIRM)
    found = judged(SURE, confirmed, probe(120.0, 110.0, 130.0, 120.0))
    assert found.violation == pytest.approx(0.5)


# ------------------------------------------------------------------------------------ evidence
def test_finals_withdraw_what_the_search_found_by_luck():
    finals = [measured(90.0, 84.0, 97.0, Purpose.FINAL, qps=100.0, seed=s) for s in (1, 2)]
    assert judged(SURE).meets
    assert judged(SURE, *finals).outcome is Outcome.UNDECIDED
    nearly = measured(76.0, 73.0, 79.0, qps=100.0, seed=0)
    assert not judged(nearly, *finals).meets


def test_what_a_long_search_has_settled_short_finals_do_not_unsettle():
    long = measured(72.0, 68.0, 76.0, qps=100.0, seed=0)
    short = [measured(73.0, 64.0, 83.0, Purpose.FINAL, qps=100.0, seed=s) for s in (1, 2)]
    assert judged(long, *short).meets


def test_a_short_canary_does_not_unsettle_what_the_search_has_settled():
    assert judged(SURE, measured(60.0, 40.0, 90.0, Purpose.CANARY)).meets


def test_what_the_finals_do_not_tell_comes_from_the_search():
    search = made_measurement(saturation=150.0, within={"saturation_qps": (140.0, 160.0)})
    final = measured(41.0, 38.0, 44.0, Purpose.FINAL, saturation=None)
    found = judged(search, final)
    assert found.metric("saturation_qps") == 150.0
    assert found.estimate("saturation_qps").interval.low == 140.0


def test_a_trial_whose_measurements_are_all_in_doubt_is_not_judged():
    assert judge_trial(made_trial(0, made_measurement(invalid=("changed",))), SLA) is None


def test_a_doubted_trial_is_judged_by_its_canary():
    doubted = made_measurement(p95=10.0, invalid=("the machine changed",))
    assert judged(doubted, measured(40.0, 35.0, 45.0, Purpose.CANARY)).metric("p95_ms") == 40.0


# ------------------------------------------------------------------------------------ capacity
def test_capacity_is_known_where_other_rates_were_probed():
    low = measured(40.0, 35.0, 45.0, qps=100.0)
    high = measured(160.0, 140.0, 190.0, Purpose.CAPACITY, qps=120.0)
    assert judged(low).capacity is None
    found = judged(low, high).capacity
    assert found is not None
    assert 100.0 < found.qps < 120.0


def test_a_capacity_probe_that_misses_is_not_held_against_the_trial():
    assert judged(SURE, measured(160.0, 140.0, 190.0, Purpose.CAPACITY, qps=120.0)).meets


def test_all_of_it_is_plain_data():
    found = judged(
        measured(40.0, 35.0, 45.0, qps=100.0),
        measured(60.0, 50.0, 70.0, Purpose.CAPACITY, qps=120.0),
        measured(41.0, 36.0, 50.0, Purpose.CONFIRM),
        probe(60.0, 55.0, 70.0, 80.0),
    ).to_json()
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert found["intervals"]["p95_ms"] == [35.0, 45.0]
    assert found["robust"][0]["qps"] == 80.0
    assert found["capacity"]["at_least"] is True
    assert found["evidence"] == {"purpose": "trial", "count": 1}
