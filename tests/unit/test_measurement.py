from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from autotune.core.measurement import METRICS, BatchStat, LatencySummary, ServerWindow
from tests.unit.made_trials import made_load, made_measurement


def test_no_durations_have_no_summary():
    assert LatencySummary.of(np.array([])) is None


def test_percentiles_are_observed_values():
    summary = LatencySummary.of(np.arange(1.0, 101.0))
    assert summary is not None
    assert summary.percentiles_ms == {50.0: 50.0, 90.0: 90.0, 95.0: 95.0, 99.0: 99.0}
    assert (summary.count, summary.mean_ms, summary.max_ms) == (100, 50.5, 100.0)


@given(hnp.arrays(np.float64, st.integers(1, 200), elements=st.floats(0, 1e6)))
def test_at_least_the_share_that_a_percentile_names_did_not_exceed_it(durations):
    summary = LatencySummary.of(durations)
    assert summary is not None
    for percentile, value in summary.percentiles_ms.items():
        assert value in durations
        assert np.mean(durations <= value) >= percentile / 100 - 1e-12


def test_the_error_rate_is_the_share_of_scheduled_requests_without_a_good_answer():
    assert made_load(scheduled=200, ok=150).error_rate == pytest.approx(0.25)
    assert made_load(scheduled=0, p95=None).error_rate == 0.0


def test_the_mean_batch_weighs_sizes_by_executions():
    window = ServerWindow(
        requests=9,
        executions=3,
        failures=0,
        queue_ms=1.0,
        compute_input_ms=0.5,
        compute_infer_ms=4.0,
        compute_output_ms=0.25,
        batches={
            1: BatchStat(executions=1, compute_ms=2.0),
            4: BatchStat(executions=2, compute_ms=5),
        },
    )
    assert window.mean_batch == pytest.approx(3.0)
    assert window.compute_ms == pytest.approx(4.75)


def test_the_mean_batch_is_unknown_before_any_execution():
    window = ServerWindow(
        requests=0,
        executions=0,
        failures=0,
        queue_ms=0,
        compute_input_ms=0,
        compute_infer_ms=0,
        compute_output_ms=0,
    )
    assert window.mean_batch is None


def test_an_unknown_metric_is_none_and_never_zero():
    bare = made_measurement(
        load=made_load(p95=None), saturation=None, utilization=None, memory=None
    )
    unknown = {name for name in METRICS if bare.metric(name) is None}
    assert {"p95_ms", "saturation_qps", "utilization", "memory_mb", "queue_ms"} <= unknown
    assert bare.metric("instances") == 1.0


def test_every_metric_can_be_read():
    for name in METRICS:
        value = made_measurement().metric(name)
        assert value is None or isinstance(value, float)
