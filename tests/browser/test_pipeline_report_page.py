"""The report of a pipeline in a real browser. Skipped where there is no Chromium."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.browser.chromium import needed
from tests.browser.test_report_page import _told
from tests.unit.made_trials import starved_study
from tests.unit.test_pipelines_shown import VARIANTS, rendered

pytestmark = needed


@pytest.fixture(scope="module")
def report() -> str:
    return rendered(starved_study(), variants=VARIANTS)


def test_the_bars_name_the_limiting_step_and_how_long_a_cut_off_one_is(
    report: str, tmp_path: Path
) -> None:
    script = """
      const plot = document.getElementById("plot-split");
      const words = (where) => [...plot.querySelectorAll(where)].map((one) => one.textContent);
      result.limits = words("text.bartext").filter((text) => text === "limits").length;
      result.cut = words(".annotation-text");"""
    told = _told(report, tmp_path, script)
    assert told["limits"] >= 1
    assert "8,737 ms →" in told["cut"]


@pytest.mark.parametrize("width", [500, 1280])
def test_a_pipelines_page_never_scrolls_sideways(report: str, tmp_path: Path, width: int) -> None:
    script = """
      document.querySelectorAll("details").forEach((one) => { one.open = true; });
      result.spare = innerWidth - document.documentElement.scrollWidth;"""
    assert _told(report, tmp_path, script, width=width)["spare"] >= 0
