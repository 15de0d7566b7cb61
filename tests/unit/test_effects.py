"""What each parameter does to a metric; lines across parameters and metrics."""

from __future__ import annotations

import pytest

from autotune.core.standing import Standing
from autotune.service_ports import TrialLine
from dashboards.figures import parallel
from dashboards.figures.effects import effects, in_order, varied
from search_spaces.candidate import Candidate, Value


def line(number: int, p95: float, **candidate: Value) -> TrialLine:
    return TrialLine(
        number=number,
        candidate=Candidate(candidate),
        standing=Standing.MEETS,
        values={"p95_ms": p95},
        violation=0.0,
    )


def grid() -> list[TrialLine]:
    """p95 follows the instances alone."""
    shapes = [(batch, instances) for batch in (1, 2, 16) for instances in (1, 2)]
    return [
        line(n, 100 / instances, max_batch_size=batch, instances=instances)
        for n, (batch, instances) in enumerate(shapes)
    ]


def test_a_parameter_that_decides_the_metric_has_all_of_its_spread() -> None:
    first, second = effects(grid(), "p95_ms")
    assert (first.parameter, first.share) == ("instances", pytest.approx(1.0))
    assert (second.parameter, second.share) == ("max_batch_size", pytest.approx(0.0))


def test_each_value_tells_the_middle_of_its_trials() -> None:
    lines = [line(n, p95, instances=1) for n, p95 in enumerate([10, 20, 30])]
    effect = effects([*lines, line(3, 5, instances=2)], "p95_ms")[0]
    assert [(each.value, each.trials, each.median) for each in effect.levels] == [
        ("1", 3, 20.0),
        ("2", 1, 5.0),
    ]


def test_trials_that_were_not_judged_count_for_nothing() -> None:
    unjudged = TrialLine(
        number=9,
        candidate=Candidate({"instances": 7}),
        standing=Standing.INVALID,
        values={"p95_ms": 1e9},
    )
    (effect, _) = effects([*grid(), unjudged], "p95_ms")
    assert [level.value for level in effect.levels] == ["1", "2"]


def test_a_parameter_that_is_not_always_set_was_varied() -> None:
    assert varied([line(0, 1, delay=5), line(1, 1)]) == ["delay"]


def test_a_parameter_that_is_always_the_same_was_not() -> None:
    assert varied([line(0, 1, delay=5), line(1, 2, delay=5)]) == []


def test_values_stand_by_size_and_words_after_them() -> None:
    assert in_order(["fp32", 16, 2.5, 4, "fp16"]) == ["2.5", "4", "16", "fp16", "fp32"]


def test_nothing_that_was_measured_alike_has_a_share() -> None:
    lines = [line(n, 10.0, instances=n) for n in range(3)]
    assert effects(lines, "p95_ms")[0].share == 0.0


# --------------------------------------------------------------------------- parallel coordinates
def test_each_trial_is_a_line_across_what_was_varied_and_the_metrics() -> None:
    lines = grid()
    axes = parallel.axes_of(lines, ("p95_ms",))
    figure = parallel.draw_parallel(axes, lines, pick=1)
    assert figure is not None
    assert [axis.title for axis in axes] == ["instances", "max_batch_size", "p95 latency"]
    meets = figure["data"][0]
    assert meets["x"][:4] == [0, 1, 2, None]
    assert meets["customdata"][:4] == [0, 0, 0, None]


def test_values_of_a_parameter_stand_evenly_apart() -> None:
    axis = parallel.axes_of(grid(), ())[1]
    assert axis.ticks == ((0.0, "1"), (0.5, "2"), (1.0, "16"))


def test_the_pick_is_drawn_over_the_others() -> None:
    figure = parallel.draw_parallel(parallel.axes_of(grid(), ()), grid(), pick=1)
    assert figure is not None
    assert figure["data"][-1]["name"] == "pick"


def test_of_many_lines_some_are_chosen_evenly_and_the_front_and_the_pick_always() -> None:
    lines = [line(n, 10.0 + n, instances=n % 4) for n in range(5000)]
    found = parallel.chosen(lines, 4999, (17, 4001), most=100)
    numbers = [one.number for one in found]
    assert len(numbers) <= 101
    assert {17, 4001, 4999} <= set(numbers)
    assert numbers == sorted(numbers)


def test_one_axis_alone_is_no_figure() -> None:
    same = [line(0, 10.0), line(1, 12.0)]
    assert parallel.draw_parallel(parallel.axes_of(same, ("p95_ms",)), same, None) is None
