from __future__ import annotations

import pytest

from autotune.core.comparison import Comparison, Relation
from autotune.core.contrast import Contrasts
from autotune.core.intervals import Interval
from autotune.core.judged import judge_trial
from autotune.core.sla import Sla
from tests.unit.made_trials import made_measurement, made_trial

SLA = Sla(latency_ms={95.0: 80.0})


def judged(number, p95=40.0, within=None, **more):
    ends = {"p95_ms": within} if within else {}
    found = judge_trial(made_trial(number, made_measurement(p95=p95, within=ends, **more)), SLA)
    assert found is not None
    return found


def compared(first, second, effect, low, high, relation, *, at=0.0):
    return Comparison(
        first=first,
        second=second,
        metric="p95_ms",
        effect=effect,
        interval=Interval(low, high),
        relation=relation,
        pairs=2,
        taken_at=at,
    )


def p95(one, other, *comparisons):
    found = Contrasts.of(comparisons).between(one, other, "p95_ms")
    assert found is not None
    return found


def test_intervals_that_overlap_are_a_tie():
    assert p95(judged(0, 40, (36, 44)), judged(1, 46, (43, 50))).tie


def test_intervals_apart_say_which_is_better():
    slow, fast = judged(0, 50, (46, 55)), judged(1, 40, (36, 44))
    assert p95(slow, fast).relation is Relation.BETTER
    assert p95(fast, slow).relation is Relation.WORSE


def test_without_intervals_nothing_is_a_tie_and_less_than_a_tenth_is_not_clear():
    found = p95(judged(0, 40.0), judged(1, 43.0))
    assert (found.relation, found.clear, found.telling) == (None, False, False)
    larger = p95(judged(0, 40.0), judged(1, 50.0))
    assert (larger.clear, larger.sure) == (True, False)


def test_instances_are_counted_so_that_any_difference_is_sure():
    found = Contrasts.of([]).between(judged(0, instances=20), judged(1, instances=21), "instances")
    assert found is not None
    assert (found.relation, found.sure) == (Relation.WORSE, True)
    same = Contrasts.of([]).between(judged(0), judged(1), "instances")
    assert same is not None
    assert (same.relation, same.clear) == (None, False)


def test_a_comparison_run_against_run_outweighs_the_intervals():
    one, other = judged(0, 40, (30, 55)), judged(1, 46, (35, 60))
    found = p95(one, other, compared(0, 1, 0.15, 0.10, 0.20, Relation.WORSE))
    assert found.clear
    assert found.effect == 0.15
    assert found.interval == Interval(0.10, 0.20)


def test_a_comparison_reads_the_other_way_round():
    one, other = judged(0), judged(1)
    found = p95(other, one, compared(0, 1, 0.25, 0.0, 1.0, Relation.WORSE))
    assert found.relation is Relation.BETTER
    assert found.effect == pytest.approx(-0.2)
    assert (found.interval.low, found.interval.high) == pytest.approx((-0.5, 0.0))


def test_the_latest_comparison_counts_whichever_way_round_it_was_taken():
    early = compared(0, 1, 0.15, 0.10, 0.20, Relation.WORSE, at=1.0)
    late = compared(1, 0, 0.01, -0.02, 0.04, Relation.TIE, at=2.0)
    one, other = judged(0), judged(1)
    assert p95(one, other, early, late).tie
    assert p95(one, other, late, early).tie


def test_a_comparison_in_another_metric_says_nothing():
    assert Contrasts.of([compared(0, 1, 0.1, 0.0, 0.2, Relation.TIE)]).between(
        judged(0), judged(1), "saturation_qps"
    ).relation is None  # fmt: skip


def test_a_change_from_nothing_is_clear():
    none, some = judged(0, utilization=0.0), judged(1, utilization=0.5)
    found = Contrasts.of([]).between(none, some, "utilization")
    assert found is not None
    assert found.clear


def test_what_is_unknown_of_either_is_not_contrasted():
    assert Contrasts.of([]).between(judged(0), judged(1, memory=None), "memory_mb") is None
