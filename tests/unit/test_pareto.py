from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from autotune.core.pareto import distance_to_utopia, dominates, pareto_front

VALUE = st.one_of(st.none(), st.integers(0, 4).map(float))
SETS = st.integers(0, 3).flatmap(
    lambda width: st.tuples(
        st.lists(st.tuples(*[VALUE] * width), max_size=8),
        st.tuples(*[st.booleans()] * width),
    )
)


def test_the_front_keeps_what_nothing_beats_in_every_way():
    points = [(1.0, 5.0), (2.0, 4.0), (2.0, 6.0), (3.0, 3.0)]
    assert pareto_front(points, [False, False]) == [0, 1, 3]


def test_each_dimension_has_its_own_direction():
    points = [(100.0, 20.0), (150.0, 20.0), (150.0, 30.0)]
    assert pareto_front(points, [True, False]) == [1]


def test_equal_points_all_stay():
    assert pareto_front([(1.0, 1.0), (1.0, 1.0), (2.0, 2.0)], [False, False]) == [0, 1]


def test_a_point_with_an_unknown_value_is_not_on_the_front_and_dominates_nothing():
    assert pareto_front([(0.0, None), (1.0, 1.0)], [False, False]) == [1]


def test_no_points_have_no_front():
    assert pareto_front([], [True]) == []


@given(SETS)
def test_a_known_point_is_on_the_front_exactly_when_none_dominates_it(case):
    points, maximize = case
    front = set(pareto_front(points, maximize))
    for i, point in enumerate(points):
        known = all(value is not None for value in point)
        beaten = any(dominates(other, point, maximize) for other in points)
        assert (i in front) == (known and not beaten)


NEARLY = {1: lambda value: value + 1.0}
"""Of the second dimension a difference of one is none."""
PAIRS = st.lists(st.tuples(st.integers(0, 4).map(float), st.integers(0, 6).map(float)), max_size=8)


@given(PAIRS, st.booleans(), st.randoms(use_true_random=False))
def test_with_a_reach_the_front_is_what_none_of_itself_dominates_in_whatever_order(
    points, most, random
):
    maximize = [most, False]
    front = {points[i] for i in pareto_front(points, maximize, NEARLY)}
    for point in set(points):
        beaten = any(dominates(other, point, maximize, NEARLY) for other in front)
        assert (point in front) == (not beaten)
    shuffled = random.sample(points, len(points))
    assert front == {shuffled[i] for i in pareto_front(shuffled, maximize, NEARLY)}


def test_within_its_reach_a_difference_makes_no_point_better():
    points = [(1.0, 5.0), (1.0, 6.0), (1.0, 7.5), (0.0, 6.0)]
    assert pareto_front(points, [False, False], NEARLY) == [3]
    assert pareto_front(points[:3], [False, False], NEARLY) == [0, 1]


@given(SETS)
def test_reversing_the_points_does_not_change_the_front(case):
    points, maximize = case
    front = {points[i] for i in pareto_front(points, maximize)}
    assert front == {points[::-1][i] for i in pareto_front(points[::-1], maximize)}


@given(SETS)
def test_turning_a_dimension_round_and_negating_it_does_not_change_the_front(case):
    points, maximize = case
    turned = [tuple(None if v is None else -v for v in point) for point in points]
    assert pareto_front(points, maximize) == pareto_front(turned, [not m for m in maximize])


def test_the_knee_is_nearest_to_the_best_of_everything():
    front = [(0.0, 10.0), (2.0, 2.0), (10.0, 0.0)]
    distances = distance_to_utopia(front, [False, False])
    assert min(range(3), key=distances.__getitem__) == 1


def test_a_dimension_without_spread_counts_nothing():
    assert distance_to_utopia([(1.0, 7.0), (3.0, 7.0)], [True, False]) == [1.0, 0.0]
