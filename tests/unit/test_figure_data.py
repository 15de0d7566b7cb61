"""The numbers behind the figures."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from autotune.core.measurement import PERCENTILES
from autotune.core.sla import Sla, judge
from autotune.core.standing import Standing
from autotune.core.study import Objective
from autotune.core.trial import Trial
from dashboards.figures import data, draw
from tests.realistic import SLA, a_candidate, a_measurement, a_study_of_trials

OBJECTIVES = [Objective.of("saturation_qps"), Objective.of("p95_ms")]


@pytest.fixture(scope="module")
def trials() -> list[Trial]:
    return a_study_of_trials()


@pytest.fixture(scope="module")
def scatter(trials: list[Trial]) -> data.Scatter:
    return data.scatter(data.entries(trials, SLA), SLA, OBJECTIVES, pick=5)


def test_standings_are_states_with_the_verdict_in_place_of_ok(trials: list[Trial]) -> None:
    found = data.entries(trials, SLA)
    assert [entry.standing for entry in found[-3:]] == [
        Standing.INVALID,
        Standing.FAILED,
        Standing.PRUNED,
    ]
    for entry in found[:-3]:
        assert entry.measurement is not None
        assert str(entry.standing) == str(judge(entry.measurement, SLA).outcome)
    assert {Standing.MEETS, Standing.MISSES} <= {entry.standing for entry in found}


def test_a_front_holds_only_trials_that_meet_the_sla_and_no_worse_pair(
    scatter: data.Scatter,
) -> None:
    by_number = {entry.number: entry for entry in scatter.entries}
    front = [by_number[n] for n in scatter.fronts["saturation_qps|p95_ms"]]
    assert {entry.standing for entry in front} == {Standing.MEETS}
    rates = [entry.metric("saturation_qps") or 0 for entry in front]
    latencies = [entry.metric("p95_ms") or 0 for entry in front]
    assert rates == sorted(rates)
    assert latencies == sorted(latencies)


def test_a_front_is_the_same_with_its_axes_exchanged(scatter: data.Scatter) -> None:
    for pair, front in scatter.fronts.items():
        x, y = pair.split("|")
        assert set(front) == set(scatter.fronts[f"{y}|{x}"])


def test_where_no_trial_meets_the_sla_the_front_is_over_all_that_were_judged(
    trials: list[Trial],
) -> None:
    sla = Sla(latency_ms={95.0: 1.0})
    found = data.scatter(data.entries(trials, sla), sla, OBJECTIVES, pick=None)
    assert not found.front_meets
    assert found.fronts["saturation_qps|p95_ms"]


def test_limits_are_drawn_on_the_axis_that_has_one(scatter: data.Scatter) -> None:
    (line,) = draw.limit_lines(scatter.limits, "instances", "p95_ms")
    assert (line["y0"], line["y1"], line["xref"]) == (80, 80, "x domain")
    assert draw.limit_lines(scatter.limits, "instances", "memory_mb") == []


def test_standings_differ_in_symbol_and_in_colour_where_points_are_drawn() -> None:
    drawn = [Standing.MEETS, Standing.MISSES, Standing.UNDECIDED, Standing.INVALID, Standing.FAILED]
    assert len({draw.MARKS[standing][0] for standing in drawn}) == len(drawn)
    assert len({draw.MARKS[standing][1] for standing in drawn}) == len(drawn)


@pytest.mark.parametrize(
    ("values", "within"),
    [
        ([15, 600], [20, 50, 100, 200, 500]),
        ([2, None, 0, 3e6], [10, 100, 1_000, 10_000, 100_000, 1_000_000]),
        ([18, 60], [20, 30, 40, 50]),
        ([13.0, 13.1], []),
        ([None], []),
    ],
)
def test_a_logarithmic_axis_is_labelled_at_a_few_round_numbers(
    values: list[float | None], within: list[float]
) -> None:
    known = [value for value in values if value]
    assert [at for at in data.ticks(values) if min(known) <= at <= max(known)] == within


@pytest.mark.parametrize("window_s", [4.0, 60.0])
def test_the_distribution_agrees_with_the_percentiles(window_s: float) -> None:
    measured = a_measurement(window_s=window_s)
    found = data.distribution("pick", measured)
    assert found is not None
    assert found.exact
    assert len(found.shares) <= 201
    assert list(found.shares) == sorted(found.shares)
    assert measured.load.latency is not None
    for percentile in PERCENTILES:
        at = np.searchsorted(found.shares, percentile / 100 - 1e-12)
        expected = measured.load.latency.at(percentile)
        assert found.latency_ms[at] == pytest.approx(expected, rel=0.05)
    assert found.latency_ms[-1] == pytest.approx(measured.load.latency.max_ms, rel=0.01)


def test_a_split_adds_up_to_the_mean_latency() -> None:
    measured = a_measurement(a_candidate(1, 1))
    found = data.split("default", measured)
    assert found is not None
    assert measured.load.latency is not None
    assert found.outside_ms is not None
    parts = found.queue_ms + found.compute_input_ms + found.compute_infer_ms
    total = parts + found.compute_output_ms + found.outside_ms
    assert total == pytest.approx(measured.load.latency.mean_ms)


def test_the_timeline_holds_the_slowest_request() -> None:
    measured = a_measurement()
    found = data.timeline(measured)
    assert found is not None
    assert measured.load.latency is not None
    assert max(found.max_ms) == pytest.approx(measured.load.latency.max_ms)
    assert len(found.slices_s) <= 60


def test_requests_that_were_never_answered_leave_the_timeline_in_place() -> None:
    measured = a_measurement()
    samples = measured.load.samples
    assert samples is not None
    lost = replace(samples, done_s=np.full_like(samples.done_s, np.nan))
    found = data.timeline(replace(measured, load=replace(measured.load, samples=lost)))
    assert found is not None
    assert found.slices_s == ()
