"""The points of a study of many trials: which are drawn, and for which others."""

from __future__ import annotations

import re

import pytest

from autotune.core.intervals import Interval
from autotune.core.sla import Sla
from autotune.core.standing import Standing
from autotune.core.study import Objective
from autotune.service_ports import TrialLine
from dashboards.figures.cloud import Cloud, cloud, known_metrics
from dashboards.figures.draw import trace_id
from dashboards.figures.draw_cloud import FEW_BARS, draw_cloud
from search_spaces.candidate import Candidate

SLA = Sla(latency_ms={95.0: 80.0})
X, Y = "saturation_qps", "p95_ms"


def line(number: int, qps: float, p95: float, **more: object) -> TrialLine:
    standing = Standing.MEETS if p95 <= 80 else Standing.MISSES
    given: dict[str, object] = {
        "standing": standing,
        "violation": max(0.0, p95 / 80 - 1),
        "values": {X: qps, Y: p95},
        "intervals": {Y: Interval(low=0.9 * p95, high=1.1 * p95)},
    }
    return TrialLine(number=number, candidate=Candidate({}), **{**given, **more})  # type: ignore[arg-type]


def many(count: int) -> list[TrialLine]:
    return [line(n, 50 + n * 37 % 101, 10 + n * 53 % 97) for n in range(count)]


def drawn(lines: list[TrialLine], **more: object) -> Cloud:
    return cloud(lines, X, Y, sla=SLA, **more)  # type: ignore[arg-type]


def test_every_point_is_drawn_where_there_are_few() -> None:
    assert [dot.line.number for dot in drawn(many(50)).dots] == list(range(50))


def test_of_many_points_each_is_drawn_or_hidden_by_one_that_is() -> None:
    found = drawn(many(5000), most=300)
    assert len(found.dots) <= 300 + len(found.front) + 2
    assert sum(1 + dot.hides for dot in found.dots) == 5000


def test_the_front_the_pick_and_the_default_stand_among_the_points_however_many_there_are() -> None:
    found = drawn(many(5000), most=20, pick=4321)
    numbers = {dot.line.number for dot in found.dots}
    assert {0, 4321, *(one.number for one in found.front)} <= numbers


def test_a_point_hides_only_others_of_its_standing() -> None:
    lines = [line(0, 100, 79.99), *(line(n, 100, 80.01) for n in range(1, 500))]
    found = drawn(lines, most=10)
    assert {dot.line.standing for dot in found.dots} == {Standing.MEETS, Standing.MISSES}


def test_within_a_window_the_points_are_told_apart_again() -> None:
    crowd = [line(n, 100 + n / 1000, 40) for n in range(1000)]
    all_of_it = drawn([line(1000, 10_000, 40), *crowd], most=50)
    close = drawn(crowd, most=50, window=((100.0, 100.02), (30.0, 50.0)))
    assert len(all_of_it.dots) < 10
    assert len(close.dots) > 20
    assert not close.thinned


def test_standings_that_are_switched_off_are_not_drawn_and_still_counted() -> None:
    found = drawn(many(200), standings=[Standing.MISSES])
    assert {dot.line.standing for dot in found.dots} == {Standing.MISSES}
    assert found.counts[Standing.MEETS] > 0


def test_trials_without_a_value_on_these_axes_are_told() -> None:
    assert drawn([*many(3), line(3, 1, 1, values={X: 5.0})]).without == 1


def test_the_front_is_that_of_the_study_s_own_directions() -> None:
    lines = [line(0, 10, 20), line(1, 30, 20), line(2, 20, 10)]
    more = drawn(lines, objectives=[Objective(metric=X, maximize=True)])
    less = drawn(lines, objectives=[Objective(metric=X, maximize=False)])
    assert [one.number for one in more.front] == [2, 1]
    assert [one.number for one in less.front] == [0, 2]


def test_where_none_meets_the_sla_the_front_is_of_all_and_the_nearest_is_marked() -> None:
    found = drawn([line(0, 10, 200), line(1, 20, 90), line(2, 5, 300)])
    assert not found.front_meets
    assert found.nearest == 1
    assert "nearest" in [trace["name"] for trace in draw_cloud(found)["data"]]


def test_metrics_that_no_trial_knows_are_no_axes() -> None:
    assert known_metrics(many(2)) == ("p95_ms", "saturation_qps")


def test_few_points_have_their_intervals_and_of_many_only_the_front_has() -> None:
    few = draw_cloud(drawn(many(FEW_BARS)))["data"]
    assert all("error_y" in trace for trace in few if trace["name"].startswith("m"))
    crowd = draw_cloud(drawn(many(FEW_BARS * 4)))["data"]
    assert [trace["name"] for trace in crowd if "error_y" in trace] == ["front"]


def test_standings_are_told_apart_by_symbol_and_by_colour() -> None:
    lines = [line(n, n + 1, 5, standing=s) for n, s in enumerate(Standing)]
    known = {trace_id(standing) for standing in Standing}
    traces = [t for t in draw_cloud(drawn(lines))["data"] if t.get("uid") in known]
    looks = {(trace["marker"]["symbol"], trace["marker"]["color"]) for trace in traces}
    assert len(looks) == len(Standing)
    assert len({symbol for symbol, _ in looks}) == len(Standing)


@pytest.mark.parametrize("pick", [0, 3])
def test_a_traces_id_can_stand_in_a_selector(pick: int) -> None:
    """Plotly makes one of it when the plot is left."""
    lines = [line(n, n + 1, 5, standing=s) for n, s in enumerate(Standing)]
    ids = [trace["uid"] for trace in draw_cloud(drawn(lines, pick=pick))["data"] if "uid" in trace]
    assert len(set(ids)) == len(ids) > len(Standing)
    assert all(re.fullmatch(r"[A-Za-z][A-Za-z0-9-]*", one) for one in ids)


def test_the_sla_is_drawn_on_the_axis_that_it_limits() -> None:
    (shape,) = draw_cloud(drawn(many(5)))["layout"]["shapes"]
    assert (shape["y0"], shape["y1"]) == (80.0, 80.0)


def test_a_zoom_is_kept_while_the_axes_are_the_same() -> None:
    before = draw_cloud(drawn(many(5)))["layout"]
    after = draw_cloud(drawn(many(9)))["layout"]
    other = draw_cloud(cloud(many(9), Y, X, sla=SLA))["layout"]
    assert before["xaxis"]["uirevision"] == after["xaxis"]["uirevision"]
    assert other["xaxis"]["uirevision"] != after["xaxis"]["uirevision"]


def test_a_zoom_leaves_the_scale_of_the_axes_as_it_is() -> None:
    lines = [line(n, 10.0 * 1.02**n, 40) for n in range(300)]
    whole = draw_cloud(drawn(lines))["layout"]["xaxis"]
    close = draw_cloud(drawn(lines, most=50, window=((10.0, 12.0), (30.0, 50.0))))
    assert whole["type"] == "log"
    assert close["layout"]["xaxis"]["type"] == "log"


def test_a_candidate_s_words_are_no_markup_in_the_plot() -> None:
    named = TrialLine(
        number=0,
        candidate=Candidate({"variant": "<b>x</b>"}),
        standing=Standing.MEETS,
        values={X: 1.0, Y: 1.0},
        violation=0.0,
    )
    (trace,) = [t for t in draw_cloud(drawn([named]))["data"] if t.get("uid") == "meets"]
    assert "&lt;b&gt;" in trace["text"][0]


@pytest.mark.parametrize("standing", [Standing.INVALID, Standing.FAILED, Standing.PRUNED])
def test_what_was_not_judged_is_on_no_front(standing: Standing) -> None:
    lines = [line(0, 10, 50), line(1, 1000, 1, standing=standing, violation=None)]
    assert [one.number for one in drawn(lines).front] == [0]
