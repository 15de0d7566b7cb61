"""Energy and cost of 1,000 answers: reckoned, decided by, told."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.cli.tables import print_trials
from autotune.core.as_json import trial_json
from autotune.core.decision import Decision, decide
from autotune.core.explain import shown
from autotune.core.intervals import Interval
from autotune.core.measurement import Gauge, Measurement, label
from autotune.core.sla import Sla
from autotune.core.study import Objective, PickRule
from autotune.core.trial import Trial
from autotune.core.wording import cost_words, span, unknown_words
from dashboards.report import render_report
from tests.realistic import a_record
from tests.runner_bench import ONE, TWO, study
from tests.unit.made_trials import made_load, made_measurement, made_trial

SLA = Sla(latency_ms={95.0: 80.0})
COST, ENERGY = "cost_per_1000", "energy_j_per_1000"


def taken(
    *, joules: float | None = None, price: float | None = None, **figures: Any
) -> Measurement:
    """A window of 1,000 good answers."""
    made = made_measurement(**figures)
    gauges = {} if joules is None else {"energy_j": Gauge(value=joules, source="nvml")}
    telemetry = replace(made.telemetry, gauges=gauges, source="nvml", memory_source="nvml_device")
    return replace(made, telemetry=telemetry, price_per_hour=price)


def picked(trials: list[Trial], *objectives: str, rule: PickRule = PickRule.BALANCED) -> Decision:
    return decide(trials, SLA, [Objective.of(name) for name in objectives], rule)


# ------------------------------------------------------------------------------------- reckoned
def test_energy_is_that_of_the_window_over_its_good_answers() -> None:
    assert taken(joules=420.0).metric(ENERGY) == pytest.approx(420.0)
    half = taken(joules=420.0, load=made_load(ok=500))
    assert half.metric(ENERGY) == pytest.approx(840.0)


def test_answers_that_came_after_the_window_took_none_of_its_energy() -> None:
    behind = made_load(ok=1000, achieved=25.0, window_s=10.0)
    assert taken(joules=420.0, load=behind).metric(ENERGY) == pytest.approx(1680.0)


def test_cost_is_the_price_at_the_saturation_throughput() -> None:
    assert taken(price=3.6, saturation=100.0).metric(COST) == pytest.approx(0.01)


@pytest.mark.parametrize(
    ("measurement", "metric"),
    [
        (taken(), ENERGY),
        (taken(joules=5.0, load=made_load(ok=0)), ENERGY),
        (taken(saturation=100.0), COST),
        (taken(price=3.6, saturation=None), COST),
        (taken(price=3.6, saturation=0.0), COST),
    ],
)
def test_what_cannot_be_known_is_unknown_and_not_nothing(
    measurement: Measurement, metric: str
) -> None:
    assert measurement.metric(metric) is None


def test_a_cost_has_the_interval_of_the_saturation_that_it_follows_from(bench: Any) -> None:
    b = bench([ONE, TWO], server={"price_per_hour": 3.6}, objectives=[COST, "p95_ms"])
    b.runner().run()
    found = 0
    for trial in b.store.trials(b.study_id):
        measured = trial.measurement
        assert measured is not None
        assert measured.price_per_hour == 3.6
        saturation = measured.intervals.get("saturation_qps")
        if saturation is not None:
            found += 1
            cost = measured.intervals[COST]
            assert cost.low == pytest.approx(1 / saturation.high)
            assert cost.low <= (measured.metric(COST) or 0) <= cost.high
    assert found


# ----------------------------------------------------------------------------------- decided by
CHEAP_TO_RUN = made_trial(1, taken(price=3.6, saturation=200.0, instances=2, joules=900.0))
FEW_INSTANCES = made_trial(2, taken(price=3.6, saturation=100.0, instances=1, joules=400.0))


def test_by_one_objective_alone_the_balanced_pick_is_the_best_of_it() -> None:
    trials = [CHEAP_TO_RUN, FEW_INSTANCES]
    assert picked(trials, COST).pick == 1
    assert picked(trials, ENERGY).pick == 2


def test_cheapest_keeps_its_meaning_whatever_the_objectives() -> None:
    trials = [CHEAP_TO_RUN, FEW_INSTANCES]
    assert picked(trials, COST, rule=PickRule.CHEAPEST).pick == 2


def test_one_that_costs_more_and_is_no_better_otherwise_is_not_on_the_front() -> None:
    dear = made_trial(3, taken(price=3.6, saturation=90.0, instances=1, joules=500.0))
    found = picked([CHEAP_TO_RUN, FEW_INSTANCES, dear], COST, ENERGY, rule=PickRule.CHEAPEST)
    assert found.front == (1, 2)


def test_an_objective_that_is_unknown_of_all_is_told_and_decides_nothing() -> None:
    trials = [made_trial(1, taken()), made_trial(2, taken(p95=30.0))]
    found = picked(trials, ENERGY, "p95_ms")
    assert found.pick == 2
    assert "not compared, since unknown: energy_j_per_1000" in found.reasons


def test_where_no_objective_is_known_latency_and_instances_decide_and_it_is_said() -> None:
    trials = [
        made_trial(0, taken(p95=30.0, instances=1)),
        made_trial(1, taken(p95=60.0, instances=1)),
    ]
    found = picked(trials, ENERGY)
    assert found.pick == 0
    assert [d.metric for d in found.dimensions] == ["p95_ms", "instances"]
    assert (
        "not compared, since unknown: energy_j_per_1000; p95 and instances decided in place of"
        " that" in found.reasons
    )


def test_where_each_objective_is_known_of_another_trial_latency_and_instances_decide() -> None:
    trials = [made_trial(1, taken(p95=60.0, joules=1.0)), made_trial(2, taken(p95=30.0, price=3.6))]
    assert picked(trials, ENERGY, COST).pick == 2


def test_the_gain_is_told_in_words_and_units() -> None:
    before = made_trial(0, taken(price=3.6, saturation=50.0, joules=1000.0))
    after = made_trial(1, taken(price=3.6, saturation=200.0, joules=400.0))
    reasons = " ".join(picked([before, after], COST, ENERGY).reasons)
    assert "cost per 1,000 answers 0.0200 → 0.00500" in reasons
    assert "energy per 1,000 answers 1000.0 J → 400.0 J" in reasons


# ----------------------------------------------------------------------------------------- told
@pytest.mark.parametrize(
    ("metric", "value", "words"),
    [
        (COST, 0.000412345, "0.000412"),
        (COST, 3.07, "3.07"),
        (COST, 123.4, "123"),
        (COST, 12_345.6, "12,346"),
        (COST, 0.0, "0"),
        (ENERGY, 412.34, "412.3 J"),
        ("power_w", 301.0, "301.0 W"),
        ("sm_active", 0.731, "73.1%"),
        (COST, None, "unknown"),
    ],
)
def test_values_are_told_with_their_units(metric: str, value: float | None, words: str) -> None:
    assert shown(metric, value) == words


@given(st.floats(1e-9, 999))
def test_a_cost_is_told_to_half_a_percent(cost: float) -> None:
    assert float(cost_words(cost)) == pytest.approx(cost, rel=5.1e-3)


def test_a_narrow_interval_is_told_with_as_many_digits_as_it_needs() -> None:
    assert span(Interval(low=0.00041, high=0.00044)) == "0.00041–0.00044"
    assert span(Interval(low=1.0, high=1.0)) == "1–1"


@pytest.mark.parametrize("metric", [COST, ENERGY, "power_w", "sm_active", "tensor_active"])
def test_every_metric_has_a_name_for_sentences(metric: str) -> None:
    assert "_" not in label(metric)


def test_why_a_metric_is_unknown_is_told_where_it_is_known() -> None:
    noted = taken()
    notes = {"nvml": "NVML: NVML Shared Library Not Found"}
    noted = replace(noted, telemetry=replace(noted.telemetry, notes=notes))
    assert unknown_words(ENERGY, noted) == " (NVML: NVML Shared Library Not Found)"
    assert unknown_words(COST, noted) == " (no price is given)"
    assert unknown_words(COST, replace(noted, price_per_hour=1.0)).startswith(" (no saturation")
    assert unknown_words("queue_ms", noted) == ""


Printed = Callable[[int], io.StringIO]


def table(trials: list[Trial], printed: Printed, *, width: int = 120) -> str:
    text = printed(width)
    print_trials(trials, SLA, None)
    return text.getvalue()


def test_the_table_has_a_column_for_the_cost_where_it_is_known(
    printed: Printed,
) -> None:
    known = table([CHEAP_TO_RUN, FEW_INSTANCES], printed)
    assert "cost/1,000" in known
    assert "0.0100" in known
    assert "cost" not in table([made_trial(1, taken())], printed)


def test_a_narrow_terminal_shows_the_rest_of_the_table(printed: Printed) -> None:
    lines = table([CHEAP_TO_RUN, FEW_INSTANCES], printed, width=60).splitlines()
    assert max(map(len, lines)) <= 60
    assert "saturates" in lines[0]


def test_the_documents_for_programs_have_them_with_the_price() -> None:
    measured = trial_json(CHEAP_TO_RUN, SLA)["measurements"][0]
    assert measured["metrics"][ENERGY] == pytest.approx(900.0)
    assert measured["metrics"][COST] == pytest.approx(0.005)
    assert measured["price_per_hour"] == 3.6


def test_the_report_has_cards_and_columns_for_them() -> None:
    asked = study(server={"price_per_hour": 3.6})
    page = render_report(
        study=a_record(),
        trials=[CHEAP_TO_RUN, FEW_INSTANCES],
        decision={"pick": 1},
        objectives=[Objective.of(COST)],
        sla=SLA,
        workload=asked.workload,
    )
    assert "energy per 1,000 answers <small>nvml</small>" in page
    assert "cost per 1,000 answers" in page
    assert "900.0 J" in page
