"""A difference in memory counts only beyond what one configuration's memory varies by."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.core.contrast import Contrasts
from autotune.core.decision import decide
from autotune.core.judged import judge_trial
from autotune.core.leading import leading
from autotune.core.measurement import Purpose
from autotune.core.memory_noise import FLOOR_MB, MEMORY, MemoryNoise
from autotune.core.sla import Sla
from autotune.core.standing import Standing
from autotune.core.study import Objective, PickRule
from autotune.core.trial import TrialState
from tests.unit.made_trials import made_measurement, made_trial

SLA = Sla(latency_ms={95.0: 80.0})
MB = st.floats(1.0, 5000.0)
NOISES = st.builds(MemoryNoise, spread=st.sampled_from([0.0, 0.02, 0.15]))


def trial(number, *memory, p95=40.0, purpose=Purpose.FINAL, **more):
    """With so much memory in the search and, where there is more, in the later measurements."""
    return made_trial(
        number,
        *(
            made_measurement(p95=p95, memory=mb, purpose=purpose if at else Purpose.TRIAL, **more)
            for at, mb in enumerate(memory)
        ),
    )


def judged(number, *memory, **more):
    found = judge_trial(trial(number, *memory, **more), SLA)
    assert found is not None
    return found


def picked(*trials, rule=PickRule.CHEAPEST, objectives=("p95_ms",)):
    return decide(trials, SLA, [Objective.of(name) for name in objectives], rule)


# ------------------------------------------------------------------------------------- the noise
@pytest.mark.parametrize(
    ("one", "other", "differ"),
    [
        (58.0, 73.0, False),  # seen of one model in two servers
        (58.0, 58.0 + FLOOR_MB + 1, True),
        (4000.0, 4300.0, False),
        (4000.0, 4500.0, True),
    ],
)
def test_a_difference_is_one_beyond_a_floor_and_a_share(one, other, differ):
    assert MemoryNoise().differ(one, other) is differ
    assert MemoryNoise().differ(other, one) is differ


def test_what_is_measured_to_vary_more_widens_the_noise():
    varied = MemoryNoise.of([trial(0, 1000.0, 1300.0), trial(1, 900.0, 1150.0)])
    assert varied.spread > 0.1
    assert MemoryNoise().differ(1000.0, 1300.0)
    assert not varied.differ(1000.0, 1300.0)


def test_measurements_under_other_load_and_of_doubt_tell_nothing_of_the_noise():
    other = trial(0, 1000.0, 2000.0, purpose=Purpose.CAPACITY)
    doubted = trial(1, 1000.0, 2000.0, invalid=("the generator fell behind",))
    assert MemoryNoise.of([other, doubted]).spread == 0.0


def test_trials_that_are_not_ok_tell_nothing_of_the_noise():
    failed = replace(trial(0, 1000.0, 2000.0), state=TrialState.FAILED)
    assert MemoryNoise.of([failed]).spread == 0.0


def confirmed(taken, mb, p95):
    again = made_measurement(p95=p95, memory=mb, purpose=Purpose.CONFIRM)
    return replace(taken, measurements=(*taken.measurements, again))


def test_a_pick_that_is_confirmed_in_a_server_of_its_own_stays_the_pick():
    one, two = trial(1, 800.0, p95=75.0), trial(2, 920.0, p95=40.0)
    assert picked(one, two).pick == 1
    assert picked(confirmed(one, 560.0, 75.0), two).pick == 1
    assert MemoryNoise.of([confirmed(one, 560.0, 75.0)]).spread == 0.0


def test_the_noise_does_not_depend_on_the_order_of_the_trials():
    trials = [trial(n, 100.0 + n, 107.0 * 1.1**n, 113.0) for n in range(12)]
    assert MemoryNoise.of(trials) == MemoryNoise.of(trials[::-1])


def test_the_noise_is_that_of_all_trials_together():
    steady = [trial(number, 1000.0, 1000.0, 1000.0) for number in range(8)]
    varied = trial(9, 1000.0, 1300.0)
    assert MemoryNoise.of([varied]).spread > 3 * MemoryNoise.of([*steady, varied]).spread > 0


# ------------------------------------------------------------------------------------- the order
@given(NOISES, MB, MB, MB)
def test_being_more_beyond_the_noise_is_transitive(noise, one, two, three):
    low, middle, high = sorted((one, two, three))
    if noise.differ(low, middle) or noise.differ(middle, high):
        assert noise.differ(low, high)


@given(NOISES, st.lists(MB, min_size=1, max_size=12), st.randoms(use_true_random=False))
def test_classes_depend_on_the_values_alone_and_never_on_their_order(noise, values, random):
    anchors = noise.anchors(values)
    assert anchors == noise.anchors(random.sample(values, len(values)))
    steps = [noise.step(value, anchors) for value in sorted(values)]
    assert steps == sorted(steps)
    assert steps[0] == 0
    for value in values:
        anchor = anchors[noise.step(value, anchors)]
        assert anchor <= value <= noise.reach(anchor)


def test_the_class_of_the_least_reaches_as_far_as_the_noise_of_the_least():
    noise = MemoryNoise()
    anchors = noise.anchors([60.0, 110.0, 150.0])
    assert [noise.step(mb, anchors) for mb in (40.0, 60.0, 110.0, 150.0, 500.0)] == [0, 0, 0, 1, 2]


# ---------------------------------------------------------------------------------- what it means
def test_a_small_servers_noise_does_not_make_the_slower_the_cheapest():
    decision = picked(trial(0, 73.0, p95=30.0), trial(1, 58.0, p95=57.3))
    assert decision.pick == 0


def test_what_takes_clearly_less_memory_is_the_cheapest_though_it_is_slower():
    assert picked(trial(0, 730.0, p95=30.0), trial(1, 580.0, p95=57.3)).pick == 1


def test_memory_that_varies_by_as_much_from_run_to_run_does_not_decide():
    varied = trial(0, 800.0, 700.0, p95=30.0), trial(1, 560.0, 640.0, p95=57.3)
    assert picked(*varied).pick == 0
    steady = trial(0, 750.0, 750.0, p95=30.0), trial(1, 600.0, 600.0, p95=57.3)
    assert picked(*steady).pick == 1


def test_a_candidate_of_other_instances_does_not_split_what_is_equal():
    """The 100 MB of three instances are equal to 158 MB and less than 173 MB; the two of one
    instance are not told apart by that."""
    two = trial(0, 173.0, p95=30.0), trial(1, 158.0, p95=57.3)
    assert picked(*two, trial(2, 100.0, p95=20.0, instances=3)).pick == 0
    assert picked(*two, trial(2, 100.0, p95=20.0, instances=3), objectives=()).pick == 0


def test_of_a_tie_noise_in_memory_does_not_choose_though_a_third_has_clearly_less():
    near = {"within": {"p95_ms": (37.0, 43.0)}}
    ties = trial(0, 173.0, p95=40.0, **near), trial(1, 158.0, p95=39.0, **near)
    slow = trial(2, 100.0, p95=70.0, within={"p95_ms": (66.0, 74.0)})
    decision = picked(*ties, slow, rule=PickRule.FASTEST)
    assert decision.ties == (0, 1)
    assert decision.pick == 0


def test_clearly_the_least_memory_stays_on_the_front_though_a_chain_of_equals_leads_away():
    """Each is equal to the next in memory and slower, and the last has clearly less than the
    first."""
    trials = [trial(0, 120.0, p95=10.0), trial(1, 80.0, p95=11.0), trial(2, 40.0, p95=12.0)]
    for order in (trials, trials[::-1]):
        decision = decide(order, SLA, [Objective.of("p95_ms")], PickRule.CHEAPEST)
        assert (decision.front, decision.pick) == ((0, 2), 2)


def test_balanced_takes_noise_in_memory_for_no_distance():
    one, two = trial(0, 58.0, p95=40.0), trial(1, 73.0, p95=30.0)
    decision = picked(one, two, rule=PickRule.BALANCED, objectives=("p95_ms", MEMORY))
    assert (decision.front, decision.pick) == ((1,), 1)


def test_the_reasons_say_that_a_difference_in_memory_is_noise():
    decision = picked(trial(0, 73.0, p95=60.0), trial(1, 58.0, p95=30.0))
    assert any("memory 73 MB → 58 MB (within the noise)" in reason for reason in decision.reasons)


def test_two_trials_differ_in_memory_for_sure_or_are_a_tie():
    apart = Contrasts.of([])
    tie, clear, same = (
        apart.between(judged(0, 58.0), judged(1, mb), MEMORY) for mb in (73.0, 580.0, 58.0)
    )
    assert tie.tie
    assert clear.sure
    assert (same.relation, same.clear) == (None, False)


@dataclass(frozen=True)
class Line:
    number: int
    memory: float
    p95: float
    standing: Standing = Standing.MEETS
    violation: float = 0.0

    def metric(self, name):
        return {"instances": 1.0, MEMORY: self.memory, "p95_ms": self.p95}[name]


def test_the_best_so_far_of_a_running_study_is_not_chosen_by_noise_either():
    lines = [Line(0, 173.0, 30.0), Line(1, 158.0, 57.3)]
    steady = MemoryNoise()
    assert leading(lines, PickRule.CHEAPEST, SLA, steady) == 0
    assert leading([*lines, Line(2, 80.0, 70.0)], PickRule.CHEAPEST, SLA, steady) == 2


def test_the_best_so_far_goes_by_the_spread_of_its_study():
    lines = [Line(0, 1000.0, 30.0), Line(1, 850.0, 57.3)]
    assert leading(lines, PickRule.CHEAPEST, SLA, MemoryNoise()) == 1
    assert leading(lines, PickRule.CHEAPEST, SLA, MemoryNoise(spread=0.1)) == 0
