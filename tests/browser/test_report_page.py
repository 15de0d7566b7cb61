"""The report in a real browser, opened from a file. Skipped where there is no Chromium."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser

from autotune.core.decision import decide
from dashboards import render_report
from tests.browser.chromium import needed
from tests.browser.reports import Opened, opened
from tests.realistic import a_finished_study, a_record, a_study, comparisons

pytestmark = needed


@pytest.fixture(scope="module")
def report() -> str:
    trials, study = a_finished_study(), a_study()
    decision = decide(
        trials, study.sla, study.objectives, study.pick, comparisons=comparisons(pick=5, rival=7)
    )
    return render_report(
        study=a_record(trials),
        trials=trials,
        decision=decision.to_json(),
        objectives=study.objectives,
        sla=study.sla,
        workload=study.workload,
        config_text="name: 'ocr'\n" + "x" * 500,
        default_config_text="name: 'other'\n",
        warnings=["w" * 400],
    )


@pytest.fixture(scope="module")
def wide(browser: Browser, report: str, tmp_path_factory: Any) -> Iterator[Opened]:
    with opened(browser, report, tmp_path_factory.mktemp("wide"), 1280) as found:
        yield found


@pytest.fixture(scope="module")
def narrow(browser: Browser, report: str, tmp_path_factory: Any) -> Iterator[Opened]:
    with opened(browser, report, tmp_path_factory.mktemp("narrow"), 500) as found:
        yield found


def test_every_figure_is_drawn_and_nothing_is_fetched(wide: Opened) -> None:
    script = """
      const plots = [...document.querySelectorAll(".plot")];
      result.drawn = plots.map((plot) => plot.querySelectorAll("svg").length > 0);
      result.fetched = performance.getEntriesByType("resource").map((entry) => entry.name);"""
    assert wide.told(script) == {"drawn": [True] * 5, "fetched": []}


def test_other_axes_move_the_points_their_intervals_the_front_and_the_limit(
    wide: Opened,
) -> None:
    script = """
      const plot = document.getElementById("plot-scatter"), up = document.getElementById("axis-y");
      const state = () => [plot.layout.yaxis.title.text, plot.layout.shapes.length,
                           plot.data[1].y[0] !== null, plot.data[0].x.length > 0,
                           plot.data[1].error_y.array[0] !== null];
      result.before = state();
      up.value = "memory_mb";
      up.dispatchEvent(new Event("change"));
      result.after = state();"""
    told = wide.told(script)
    assert told["before"] == ["p95 latency (ms)", 1, True, True, True]
    assert told["after"] == ["memory (MB)", 0, True, True, False]


def test_a_mark_at_the_right_edge_is_not_cut_off_and_log_axes_have_full_numbers(
    narrow: Opened,
) -> None:
    script = """
      const plot = document.getElementById("plot-scatter");
      const edge = plot.getBoundingClientRect();
      const marks = [...plot.querySelectorAll("g.textpoint text")];
      result.marks = marks.map((mark) => mark.textContent).sort();
      result.within = marks.every((mark) => mark.getBoundingClientRect().right <= edge.right);
      result.labels = [...plot.querySelectorAll(".ytick text")].map((tick) => tick.textContent);"""
    told = narrow.told(script)
    assert told["marks"] == ["default", "pick"]
    assert told["within"]
    assert {"50", "100", "200", "500"} <= set(told["labels"])


def test_the_table_sorts_by_a_column_both_ways_with_unknowns_last(wide: Opened) -> None:
    script = """
      const table = document.querySelector("table.sortable");
      const heads = [...table.tHead.rows[0].cells];
      const head = heads.find((cell) => cell.textContent.trim() === "p95 latency");
      const cells = () => [...table.tBodies[0].rows].map((row) => row.cells[head.cellIndex]);
      const column = () => cells().map((cell) => cell.dataset.sort);
      for (const way of ["ascending", "descending"]) {
        head.querySelector("button").click();
        result[way] = [head.getAttribute("aria-sort"), column()];
      }"""
    told = wide.told(script)
    for way, descending in (("ascending", False), ("descending", True)):
        said, column = told[way]
        known = [float(value) for value in column if value]
        assert said == way
        assert known == sorted(known, reverse=descending)
        assert column[len(known) :] == ["", ""]


def test_the_page_never_scrolls_sideways(wide: Opened, narrow: Opened) -> None:
    script = "result.spare = innerWidth - document.documentElement.scrollWidth"
    assert [each.told(script)["spare"] >= 0 for each in (wide, narrow)] == [True, True]
