from __future__ import annotations

import pytest

from autotune.core.explain import saved
from autotune.core.measurement import Ended, Purpose
from autotune.core.savings import savings
from autotune.core.workload import Workload
from tests.unit.made_trials import made_load, made_measurement, made_trial

WORKLOAD = Workload(target_qps=80, measure_s=12)


def phase(window_s, ended, **more):
    more = {"qps": 100.0, **more}
    return made_measurement(load=made_load(window_s=window_s, ended=ended), **more)


def test_windows_that_end_early_are_counted_against_fixed_ones():
    trials = [
        made_trial(0, phase(4.0, Ended.DECIDED)),
        made_trial(1, phase(2.0, Ended.HOPELESS, invalid=("late",)), phase(6.0, Ended.DECIDED)),
    ]
    found = savings(trials, WORKLOAD)
    assert (found.phases, found.window_s, found.fixed_s) == (3, 12.0, 36.0)
    assert found.disbelieved == 1
    assert found.saved == pytest.approx(2 / 3)
    assert found.ended == {Ended.DECIDED: 2, Ended.HOPELESS: 1}


def test_only_the_phases_of_the_search_are_counted():
    final = phase(30.0, Ended.MAXIMUM, purpose=Purpose.FINAL)
    assert savings([made_trial(0, phase(12.0, Ended.MAXIMUM), final)], WORKLOAD).phases == 1


def test_the_savings_are_told_in_seconds_with_why_the_windows_ended():
    trials = [made_trial(0, phase(4.0, Ended.DECIDED), phase(2.0, Ended.FELL_BEHIND))]
    assert saved(savings(trials, WORKLOAD), WORKLOAD) == [
        "the search's 2 measured windows took 6 s (clear: 1, fell behind: 1) instead of 24 s at a"
        " fixed 12 s each"
    ]


def test_windows_that_are_not_believed_are_counted_apart():
    trials = [made_trial(0, phase(4.0, Ended.DECIDED), phase(4.0, Ended.DECIDED, invalid=("x",)))]
    told = saved(savings(trials, WORKLOAD), WORKLOAD)[0]
    assert told.startswith("the search's 2 measured windows, 1 of them not believed, took 8 s")


def test_of_windows_from_before_their_end_was_recorded_nothing_is_said():
    old = savings([made_trial(0, phase(4.0, Ended.MAXIMUM, qps=None))], WORKLOAD)
    assert (old.phases, saved(old, WORKLOAD)) == (0, [])


def test_undecided_windows_may_take_more_than_fixed_ones_and_that_is_told_too():
    found = savings([made_trial(0, phase(36.0, Ended.MAXIMUM))], WORKLOAD)
    assert found.saved == pytest.approx(-2.0)
    assert saved(found, WORKLOAD) == [
        "the search's 1 measured window took 36 s (at its longest: 1), 24 s more than at a fixed"
        " 12 s each: a window goes on while its verdict is undecided"
    ]


def test_where_nothing_was_saved_nothing_is_said():
    same = savings([made_trial(0, phase(12.0, Ended.MAXIMUM))], WORKLOAD)
    assert saved(same, WORKLOAD) == []
    assert saved(savings([], WORKLOAD), WORKLOAD) == []
