from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.core.errors import InputRefused
from autotune.core.workload import Arrival, ArrivalKind
from loadgen.arrivals import (
    LOOK_SHARE,
    RATE_SHARE,
    looks_s,
    read_trace,
    schedule,
    schedule_at_rate,
    warm_up,
)

CONSTANT = Arrival(kind=ArrivalKind.CONSTANT)
POISSON = Arrival(kind=ArrivalKind.POISSON)

arrivals = st.one_of(
    st.just(CONSTANT),
    st.just(POISSON),
    st.floats(0.05, 20).map(lambda cv: Arrival(kind=ArrivalKind.GAMMA, cv=cv)),
)
rates = st.floats(0.1, 5000)
seeds = st.integers(0, 2**32)
durations = st.floats(0, 5)


@settings(deadline=None)
@given(arrivals, rates, seeds, durations)
def test_a_schedule_is_sorted_and_within_its_duration(arrival, qps, seed, duration):
    offsets = schedule(arrival, qps=qps, seed=seed, duration_s=duration)
    assert offsets.dtype == np.float64
    assert np.all(np.diff(offsets) >= 0)
    assert np.all((offsets >= 0) & (offsets < duration))


@settings(deadline=None)
@given(arrivals, rates, seeds, durations, durations)
def test_a_longer_schedule_begins_with_the_shorter_one(arrival, qps, seed, one, other):
    short, long = sorted((one, other))
    prefix = schedule(arrival, qps=qps, seed=seed, duration_s=short)
    whole = schedule(arrival, qps=qps, seed=seed, duration_s=long)
    assert np.array_equal(prefix, whole[whole < short])


@settings(deadline=None)
@given(st.floats(0.2, 4), seeds)
def test_gamma_gaps_have_the_asked_rate_and_coefficient_of_variation(cv, seed):
    arrival = Arrival(kind=ArrivalKind.GAMMA, cv=cv)
    gaps = np.diff(schedule(arrival, qps=1000, seed=seed, duration_s=60))
    tolerance = 8 * cv / np.sqrt(len(gaps))  # eight standard errors of the mean
    assert np.mean(gaps) * 1000 == pytest.approx(1, abs=tolerance)
    assert np.std(gaps) / np.mean(gaps) == pytest.approx(cv, rel=0.25)


def test_poisson_gaps_vary_as_much_as_their_mean():
    gaps = np.diff(schedule(POISSON, qps=500, seed=3, duration_s=60))
    assert np.mean(gaps) == pytest.approx(1 / 500, rel=0.03)
    assert np.std(gaps) / np.mean(gaps) == pytest.approx(1, rel=0.03)


@given(st.integers(0, 2**32 - 1), st.sampled_from([0.5, 1.0, 4.0]), st.integers(20, 200))
@settings(max_examples=40, deadline=None)
def test_a_measured_window_gets_the_rate_that_was_asked_for_whatever_the_seed(seed, cv, qps):
    arrival = Arrival(kind=ArrivalKind.GAMMA, cv=cv)
    due = schedule_at_rate(arrival, qps=qps, seed=seed, duration_s=11, looks=(10.0,))
    again = schedule_at_rate(arrival, qps=qps, seed=seed, duration_s=11, looks=(10.0,))
    count = np.count_nonzero(due < 10)
    assert abs(count - 10 * qps) <= max(1, 3 * RATE_SHARE * 10 * qps)
    assert np.array_equal(due, again)
    assert 0 <= due[0] <= due[-1] < 11


@given(st.integers(0, 2**32 - 1), st.integers(50, 300))
@settings(max_examples=25, deadline=None)
def test_the_rate_that_was_asked_for_is_offered_up_to_every_look(seed, qps):
    looks = looks_s(3.0, 36.0)
    due = schedule_at_rate(POISSON, qps=qps, seed=seed, duration_s=37, looks=looks)
    off = np.abs(np.searchsorted(due, looks) / (qps * np.array(looks)) - 1)
    assert off.max() <= 2 * LOOK_SHARE
    assert off[-1] <= max(1 / (qps * looks[-1]), RATE_SHARE) + 1e-9


def test_a_window_is_looked_at_ever_half_as_much_time_later_and_at_its_end():
    assert looks_s(2.0, 10.0) == (2.0, 3.0, 4.5, 6.75, 10.0)
    assert looks_s(None, 10.0) == (10.0,)
    assert looks_s(12.0, 10.0) == (10.0,)


def test_a_look_that_could_save_nothing_is_left_out():
    assert looks_s(2.0, 3.1) == (2.0, 3.1)


def test_the_arrivals_of_a_warm_up_are_others_than_those_of_the_window():
    before = warm_up(POISSON, qps=50, seed=4, duration_s=2)
    assert len(before) > 50
    assert not np.isin(before, schedule(POISSON, qps=50, seed=4, duration_s=2)).any()


def test_arrivals_given_their_counts_are_as_bursty_as_the_process_after_the_first_looks():
    looks = looks_s(3.0, 24.0)
    due = [
        schedule_at_rate(
            Arrival(kind=ArrivalKind.GAMMA, cv=2), qps=40, seed=seed, duration_s=25, looks=looks
        )
        for seed in range(25)
    ]
    gaps = np.concatenate([np.diff(offsets) for offsets in due])
    assert gaps.std() / gaps.mean() == pytest.approx(2, rel=0.05)
    in_seconds = np.array([np.bincount(offsets.astype(int), minlength=25) for offsets in due])
    late = in_seconds[:, 7:24]
    assert late.var() / late.mean() == pytest.approx(4, rel=0.3)


def test_constant_arrivals_are_equally_spaced_from_zero():
    offsets = schedule(CONSTANT, qps=4, seed=0, duration_s=1)
    assert offsets.tolist() == [0, 0.25, 0.5, 0.75]


def test_another_seed_gives_another_poisson_schedule():
    one, other = (schedule(POISSON, qps=50, seed=seed, duration_s=2) for seed in (1, 2))
    assert not np.array_equal(one, other)


@pytest.mark.parametrize("qps", [0.0, -1.0, float("nan"), float("inf")])
def test_a_rate_that_is_not_above_zero_is_refused(qps):
    with pytest.raises(InputRefused):
        schedule(POISSON, qps=qps, seed=0, duration_s=1)


def test_a_schedule_too_long_to_hold_is_refused():
    with pytest.raises(InputRefused, match="at most"):
        schedule(POISSON, qps=100_000, seed=0, duration_s=3600)


# --------------------------------------------------------------------------------------- traces
def trace(tmp_path: Path, text: str) -> Arrival:
    path = tmp_path / "trace.txt"
    path.write_text(text)
    return Arrival(kind=ArrivalKind.TRACE, trace=path)


def test_a_trace_is_rebased_to_zero_and_scaled_to_the_rate(tmp_path):
    arrival = trace(tmp_path, "100\n101\n103\n")
    offsets = schedule(arrival, qps=1, seed=0, duration_s=2.9)
    assert offsets == pytest.approx([0, 2 / 3, 2])


def test_a_trace_that_is_too_short_is_repeated(tmp_path):
    arrival = trace(tmp_path, "0\n1\n3\n")
    offsets = schedule(arrival, qps=1, seed=0, duration_s=6)
    assert offsets == pytest.approx([0, 2 / 3, 2, 3, 3 + 2 / 3, 5])


@settings(deadline=None)
@given(st.lists(st.floats(0, 1e6), min_size=2, max_size=50), rates)
def test_a_repeated_trace_keeps_the_rate_and_the_prefix_property(tmp_path_factory, times, qps):
    times = sorted(round(time, 3) for time in times)
    if times[0] == times[-1]:
        return
    arrival = trace(tmp_path_factory.mktemp("t"), "\n".join(map(str, times)))
    period = len(times) / qps
    whole = schedule(arrival, qps=qps, seed=0, duration_s=5.5 * period)
    once = schedule(arrival, qps=qps, seed=0, duration_s=period)
    assert np.all(np.diff(whole) >= -1e-9)
    assert len(once) == len(times)
    assert np.array_equal(once, whole[: len(once)])


def test_blank_lines_and_comments_in_a_trace_are_skipped(tmp_path):
    arrival = trace(tmp_path, "# seconds\n\n1\n 2 \n")
    assert arrival.trace is not None
    assert read_trace(arrival.trace).tolist() == [0, 1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1\n2\nthree\n", "line 3"),
        ("1\nnan\n", "line 2"),
        ("1\n\n3\n2\n", "line 4"),
        ("", "at least two"),
        ("5\n", "at least two"),
        ("5\n5\n", "at least two"),
    ],
)
def test_a_bad_trace_is_refused_with_its_place(tmp_path, text, message):
    with pytest.raises(InputRefused, match=message):
        schedule(trace(tmp_path, text), qps=1, seed=0, duration_s=1)


def test_a_missing_trace_is_refused(tmp_path):
    arrival = Arrival(kind=ArrivalKind.TRACE, trace=tmp_path / "none.txt")
    with pytest.raises(InputRefused, match="cannot be read"):
        schedule(arrival, qps=1, seed=0, duration_s=1)
