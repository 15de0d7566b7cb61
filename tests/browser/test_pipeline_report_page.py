"""The report of a pipeline in a real browser. Skipped where there is no Chromium."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from playwright.sync_api import Browser

from tests.browser.chromium import needed
from tests.browser.reports import Opened, opened
from tests.unit.made_trials import starved_study
from tests.unit.test_pipelines_shown import VARIANTS, rendered

pytestmark = needed


WIDTHS = (500, 1280)


@pytest.fixture(scope="module")
def pages(browser: Browser, tmp_path_factory: Any) -> Iterator[list[Opened]]:
    """Of each width."""
    report, folder = rendered(starved_study(), variants=VARIANTS), tmp_path_factory.mktemp("report")
    with ExitStack() as stack:
        shown = (opened(browser, report, folder, width) for width in WIDTHS)
        yield [stack.enter_context(each) for each in shown]


def test_the_bars_name_the_limiting_step_and_how_long_a_cut_off_one_is(
    pages: list[Opened],
) -> None:
    script = """
      const plot = document.getElementById("plot-split");
      const words = (where) => [...plot.querySelectorAll(where)].map((one) => one.textContent);
      result.limits = words("text.bartext").filter((text) => text === "limits").length;
      result.cut = words(".annotation-text");"""
    told = pages[-1].told(script)
    assert told["limits"] >= 1
    assert "8,737 ms →" in told["cut"]


def test_a_pipelines_page_never_scrolls_sideways(pages: list[Opened]) -> None:
    script = """
      document.querySelectorAll("details").forEach((one) => { one.open = true; });
      result.spare = innerWidth - document.documentElement.scrollWidth;"""
    assert [page.told(script)["spare"] >= 0 for page in pages] == [True, True]
