"""The report in a real browser, opened from a file. Skipped where there is no Chromium."""

from __future__ import annotations

import json
import re
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from autotune.core.decision import decide
from dashboards import render_report
from tests.browser.chromium import CHROMIUM, FLAGS, needed
from tests.realistic import a_finished_study, a_record, a_study, comparisons

pytestmark = needed

ALONE = ["--headless", *FLAGS, "--virtual-time-budget=6000"]
"""Without a driver: it loads a page, and writes down what became of it."""

_DRIVER = """<script>
const broken = [];
addEventListener("error", (event) => broken.push(event.message));
addEventListener("securitypolicyviolation", (event) => broken.push(event.violatedDirective));
setTimeout(() => {
  const result = {};
  const act = () => { %s };
  try { act(); } catch (error) { broken.push(String(error)); }
  document.body.innerHTML = "";
  document.body.append(Object.assign(document.createElement("output"),
    {id: "told", textContent: JSON.stringify({...result, broken})}));
}, 3000);
</script></body>"""


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


def _told(report: str, folder: Path, script: str, *, width: int = 1280) -> dict[str, Any]:
    """Runs ``script`` in the opened report; what it puts into ``result``."""
    page = folder / "report.html"
    page.write_text(report.replace("</body>", _DRIVER % script), encoding="utf-8")
    command = [str(CHROMIUM), *ALONE, f"--user-data-dir={folder / 'profile'}", "--dump-dom"]
    command += [f"--window-size={width},900", page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    found = re.search(r'<output id="told">(.*?)</output>', done.stdout, re.DOTALL)
    assert found is not None
    told: dict[str, Any] = json.loads(unescape(found[1]))
    assert told.pop("broken") == []
    return told


def test_every_figure_is_drawn_and_nothing_is_fetched(report: str, tmp_path: Path) -> None:
    script = """
      const plots = [...document.querySelectorAll(".plot")];
      result.drawn = plots.map((plot) => plot.querySelectorAll("svg").length > 0);
      result.fetched = performance.getEntriesByType("resource").map((entry) => entry.name);"""
    assert _told(report, tmp_path, script) == {"drawn": [True] * 5, "fetched": []}


def test_other_axes_move_the_points_their_intervals_the_front_and_the_limit(
    report: str, tmp_path: Path
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
    told = _told(report, tmp_path, script)
    assert told["before"] == ["p95 latency (ms)", 1, True, True, True]
    assert told["after"] == ["memory (MB)", 0, True, True, False]


def test_a_mark_at_the_right_edge_is_not_cut_off_and_log_axes_have_full_numbers(
    report: str, tmp_path: Path
) -> None:
    script = """
      const plot = document.getElementById("plot-scatter");
      const edge = plot.getBoundingClientRect();
      const marks = [...plot.querySelectorAll("g.textpoint text")];
      result.marks = marks.map((mark) => mark.textContent).sort();
      result.within = marks.every((mark) => mark.getBoundingClientRect().right <= edge.right);
      result.labels = [...plot.querySelectorAll(".ytick text")].map((tick) => tick.textContent);"""
    told = _told(report, tmp_path, script, width=500)
    assert told["marks"] == ["default", "pick"]
    assert told["within"]
    assert {"50", "100", "200", "500"} <= set(told["labels"])


def test_the_table_sorts_by_a_column_both_ways_with_unknowns_last(
    report: str, tmp_path: Path
) -> None:
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
    told = _told(report, tmp_path, script)
    for way, descending in (("ascending", False), ("descending", True)):
        said, column = told[way]
        known = [float(value) for value in column if value]
        assert said == way
        assert known == sorted(known, reverse=descending)
        assert column[len(known) :] == ["", ""]


@pytest.mark.parametrize("width", [500, 1280])
def test_the_page_never_scrolls_sideways(report: str, tmp_path: Path, width: int) -> None:
    script = "result.spare = innerWidth - document.documentElement.scrollWidth;"
    assert _told(report, tmp_path, script, width=width)["spare"] >= 0
