"""A study's page: its head, its words, its table, what a zoom means."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from dash import dcc, html, no_update

from autotune.bootstrap.study_lines import line_of
from autotune.core.decision import decide
from autotune.core.records import PLANNED, DecisionRecord, StudyState
from autotune.core.sla import Sla
from autotune.core.standing import Standing
from autotune.core.trial import Trial
from autotune.service_ports import StudyDetail
from dashboards.figures.effects import effects
from dashboards.web.pages import study
from dashboards.web.pages import study_parts as parts
from dashboards.web.pages.study import the_cloud, window_of
from dashboards.web.pages.study_trials import columns_of, rows_of
from tests.realistic import SLA, a_finished_study, a_record, a_study
from tests.serving import desks_of
from tests.shown import links_of, parts_of, text_of

EVERY = [str(standing) for standing in Standing]
TRIALS = a_finished_study()


def a_detail(
    trials: list[Trial] = TRIALS,
    *,
    sla: Sla = SLA,
    state: StudyState = StudyState.DONE,
    decided: bool = True,
) -> StudyDetail:
    study = replace(a_study(), sla=sla)
    decision = decide(trials, sla, study.objectives, study.pick)
    record = replace(a_record(trials), state=state, environment={PLANNED: 40})
    taken = DecisionRecord(
        study_id=1, taken_at=0.0, rule="cheapest", pick=decision.pick, detail=decision.to_json()
    )
    return StudyDetail(
        record=record,
        study=study,
        lines=[line_of(trial, sla) for trial in trials],
        trials=trials,
        decision=taken if decided else None,
        comparisons=(),
        variants=(),
        job=None,
        version="v",
    )


DONE = a_detail()


# ------------------------------------------------------------------------------------------- head
def test_the_head_says_what_was_asked_for_and_what_was_picked() -> None:
    said = text_of(parts.head(DONE))
    pick = parts.pick_of(DONE)
    for words in ("ocr", "done", "p95 ≤ 80 ms", "80 requests/s", "cheapest", "of 40 planned"):
        assert words in said
    assert f"trial {pick}" in said
    assert f"/study/1/trial/{pick}" in links_of(parts.head(DONE))


def test_the_pick_s_figures_stand_beside_those_of_the_configuration_in_service() -> None:
    said = text_of(parts.head(DONE))
    before = DONE.lines[0].values["memory_mb"]
    assert f"was {before:.0f} MB" in said


def test_the_reasons_of_the_decision_can_be_read() -> None:
    assert DONE.decision is not None
    assert DONE.decision.detail["reasons"][0] in text_of(parts.head(DONE))


def test_the_files_of_the_pick_and_the_report_can_be_had() -> None:
    pick = parts.pick_of(DONE)
    api = "/api/v1/studies/1"
    assert {
        f"{api}/trials/{pick}/config.pbtxt",
        f"{api}/trials/{pick}/repository.zip",
        f"{api}/report.html",
    } <= set(links_of(parts.head(DONE)))


def test_where_nothing_meets_the_sla_the_nearest_trial_is_named() -> None:
    detail = a_detail(sla=Sla(latency_ms={95.0: 5.0}))
    said = text_of(parts.head(detail))
    assert "No candidate is known to meet the SLA." in said
    assert "The nearest is" in said
    assert not [href for href in links_of(parts.head(detail)) if href.endswith("repository.zip")]


def test_a_running_study_has_no_decision_yet() -> None:
    running = a_detail(state=StudyState.RUNNING, decided=False)
    assert "There is no decision yet." in text_of(parts.head(running))


def test_an_interrupted_study_says_why_and_how_it_goes_on() -> None:
    detail = a_detail(state=StudyState.INTERRUPTED, decided=False)
    stopped = replace(detail, record=replace(detail.record, reason="the power went"))
    said = text_of(parts.head(stopped))
    assert "the power went" in said
    assert "--resume" in said


# ------------------------------------------------------------------------------------------ plots
def test_the_plot_is_told_in_words_and_its_front_as_a_table() -> None:
    found = the_cloud(DONE, "saturation_qps", "p95_ms", EVERY)
    assert f"{len(found.front)} trials on the front" in parts.cloud_words(DONE, found)
    front = parts.front(DONE, found)
    assert len(parts_of(front, html.Tr)) == 1 + len(found.front)
    assert f"/study/1/trial/{found.front[0].number}" in links_of(front)


def test_without_trials_the_plot_says_that_it_will_fill() -> None:
    nothing = a_detail([], decided=False)
    found = the_cloud(nothing, "saturation_qps", "p95_ms", EVERY)
    assert "the plot fills as they do" in parts.cloud_words(nothing, found)
    assert parts.front(nothing, found) is None


def test_only_standings_that_there_are_can_be_chosen() -> None:
    counts = {Standing.MEETS: 3, Standing.MISSES: 0}
    (one,) = parts.standing_options(counts)
    assert one["value"] == "meets"
    assert text_of(one["label"]) == "● meets 3"


def test_effects_are_tables() -> None:
    shown = parts.effects_shown(effects(DONE.lines, "p95_ms"), "p95_ms")
    assert len(parts_of(shown, html.Table)) == 3
    assert "instances" in text_of(shown)


def test_only_where_there_is_a_pick_a_line_is_said_to_be_it() -> None:
    assert "pick" not in parts.parallel_words(8, 8, None) + parts.parallel_words(8, 9, None)
    assert "The thick line is the pick" in parts.parallel_words(8, 8, 3)


@pytest.mark.parametrize(
    ("zoomed", "window"),
    [
        (None, None),
        ({"axes": "a|b", "x": [3, 1], "y": [5, 7]}, ((1, 3), (5, 7))),
        ({"axes": "a|c", "x": [1, 3], "y": [5, 7]}, None),
    ],
)
def test_a_zoom_counts_for_the_axes_that_it_was_made_on(zoomed: Any, window: Any) -> None:
    assert window_of(zoomed, "a", "b") == window


class Callbacks:
    """The part of a Dash app that pages register with: what they register, by its name."""

    def __init__(self) -> None:
        self.named: dict[str, Any] = {}

    def callback(self, *_wiring: Any, **_options: Any) -> Any:
        return lambda work: self.named.setdefault(work.__name__, work)

    def clientside_callback(self, *_wiring: Any, **_options: Any) -> None:
        """What the browser does is not called here."""


def called(name: str, detail: StudyDetail, *given: Any) -> Any:
    """What the page's callback of that name answers of a study."""
    app = Callbacks()
    desk = SimpleNamespace(study=lambda _reference: detail, version=lambda _id: detail.version)
    study.register(app, desks_of(desk))  # type: ignore[arg-type]
    return asyncio.run(app.named[name](*given))


@pytest.mark.parametrize(("x", "y"), [(None, "p95_ms"), ("saturation_qps", None), (None, None)])
def test_an_axis_that_was_emptied_leaves_the_plot_as_it_is(x: str | None, y: str | None) -> None:
    """A Dropdown empties itself where later options lack its value."""
    left = called("draw", DONE, x, y, EVERY, None, "v", "1", None, None)
    assert set(left) == {no_update}
    drawn = called("draw", DONE, "saturation_qps", "p95_ms", EVERY, None, "v", "1", None, None)
    assert no_update not in drawn


@pytest.mark.parametrize("axes", [(None, "p95_ms"), ("power_w", "p95_ms")])
def test_axes_that_no_trial_has_are_chosen_anew_as_the_study_changes(axes: Any) -> None:
    found = called("look", DONE, "1", 1, "before", *axes)
    metrics = [option["value"] for option in found[4]]
    assert (found[5] in metrics, found[7]) == (True, "p95_ms")
    kept = called("look", DONE, "1", 1, "before", "memory_mb", "p95_ms")
    assert (kept[5], kept[7]) == (no_update, no_update)


# ----------------------------------------------------------------------------------------- trials
def test_every_trial_has_a_row_with_what_is_known_of_it() -> None:
    rows = rows_of(DONE)
    assert [row["n"] for row in rows] == [line.number for line in DONE.lines]
    assert [row["n"] for row in rows if row.get("pick")] == [parts.pick_of(DONE)]
    failed = next(row for row in rows if row["standing"] == "failed")
    assert "out of memory" in failed["why"]
    assert "p95_ms" not in failed


def test_columns_are_what_was_varied_and_what_was_measured() -> None:
    fields = [column["field"] for column in columns_of(DONE)]
    assert fields[:5] == ["n", "standing", "p instances", "p max_batch_size", "p queue_delay_us"]
    assert "p95_ms" in fields
    assert "power_w" not in fields


def test_a_parameter_that_is_no_number_is_a_column_of_words() -> None:
    trial = TRIALS[0]
    named = replace(trial, candidate=type(trial.candidate)({"variant": "fp16"}))
    detail = a_detail([named, replace(TRIALS[1], number=1)], decided=False)
    column = next(c for c in columns_of(detail) if c["field"] == "p variant")
    assert column["filter"] == "agTextColumnFilter"
    assert rows_of(detail)[0]["p variant"] == "fp16"


def test_links_within_the_pages_need_no_reload() -> None:
    inner = {link.href for link in parts_of(parts.head(DONE), dcc.Link)}
    assert "/" in inner
    assert not [href for href in inner if href.startswith("/api/")]
