"""How soon the dashboard paints and answers, for studies of 100, 1,000 and 10,000 trials, in
headless Chromium.

    python -m tests.benchmarks.dashboard [--trials 100 1000 10000] [--states done running]
        [--rounds 3] [--polls 1800]

Each round of a study is a browser without a cache: its first paint, and until the plot stands;
then, on that page, other axes, a standing switched off, a zoom, from its scrolling there until the
table has rows, a filter of the table, a point until its trial's page stands, each until the page
shows it; at last the study's page reloaded. ``first reading`` is the
plot after the service's start, which has the study still to read; the rest are medians over the
rounds. Of the plot also the processor time that the page's main thread and the service took for it,
which other work on the machine changes less. At the end: the service's memory before and after so
many polls of the last study's page (one every 2 s: 1800 are an hour). Chromium, the service and the
database share this machine, whose load is told before each study. Never passes or fails.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import psutil
from playwright.sync_api import Browser, CDPSession, Page, Request, sync_playwright

from autotune.core.records import StudyState
from tests.browser.chromium import CHROMIUM, FLAGS, POINT
from tests.many_trials import many_trials, store_study
from tests.serving import served_apart

STEPS = (
    "first paint",
    "plot",
    "page's CPU",
    "service's CPU",
    "again: plot",
    "page's CPU again",
    "table",
    "axis",
    "standing",
    "zoom",
    "filter",
    "point",
)
_STANDS = """
addEventListener("DOMContentLoaded", () => {
  const look = new MutationObserver(() => {
    if (!document.querySelector("#cloud .points path")) return;
    look.disconnect();
    requestAnimationFrame(() => setTimeout(() => { window.stood = performance.now() / 1000; }));
  });
  look.observe(document.body, { childList: true, subtree: true });
});
"""
"""When the plot's points were painted, as the page itself sees it."""
_UNTIL = """([act, wanted]) => new Promise((done) => {
  const check = new Function("return " + wanted);
  const began = performance.now();
  const painted = () => requestAnimationFrame(() => done(performance.now() - began));
  const look = () => check() ? painted() : requestAnimationFrame(look);
  if (act) document.querySelector(act).click();
  look();
})"""
_REACTED = """() => {
  window.reacted = 0;
  document.querySelector("#cloud .js-plotly-plot").once("plotly_react", () =>
    requestAnimationFrame(() => setTimeout(() => { window.reacted = performance.now() / 1000; })));
}"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, nargs="+", default=[100, 1000, 10_000])
    parser.add_argument("--states", nargs="+", choices=["done", "running"], default=[])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--polls", type=int, default=1800)
    asked = parser.parse_args()
    head = " | ".join(f"{step} s" for step in STEPS)
    sys.stdout.write(
        f"| trials | state | load | first reading: plot s | service's CPU s | {head} |\n"
    )
    sys.stdout.write(f"|{'---|' * (len(STEPS) + 5)}\n")
    with tempfile.TemporaryDirectory(prefix="autotune-dashboard-") as folder:
        where = str(Path(folder) / "studies.db")
        studies = list(_stored(where, asked.trials, asked.states))
        with browser() as chromium:
            for study_id, count, state in studies:
                with served_apart(where, Path(folder)) as (address, process):
                    url = f"{address}/study/{study_id}"
                    _tell(chromium, url, process, f"{count:,} | {state}", asked.rounds)
                    if study_id == studies[-1][0] and asked.polls:
                        _poll(chromium, url, process, asked.polls)


def _stored(
    where: str, counts: Sequence[int], states: Sequence[str]
) -> Iterator[tuple[int, int, StudyState]]:
    """Each study done, and the largest running too, if nothing else is asked for."""
    wanted = [(count, StudyState.DONE) for count in counts]
    wanted.append((max(counts), StudyState.RUNNING))
    if states:
        wanted = [(count, StudyState(state)) for count in counts for state in states]
    for count, state in wanted:
        trials = many_trials(count)
        yield store_study(where, f"{state}-{count}", trials, state=state), count, state


@contextmanager
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield chromium
        chromium.close()


def _tell(chromium: Browser, url: str, process: int, named: str, rounds: int) -> None:
    load = os.getloadavg()[0]
    first = _visit(chromium, url, process)
    found = [_visit(chromium, url, process) for _ in range(rounds)]
    cells = [median(each[step] for each in found) for step in STEPS]
    words = " | ".join(f"{cell:.2f}" for cell in cells)
    firsts = f"{load:.1f} | {first['plot']:.2f} | {first[STEPS[3]]:.2f}"
    sys.stdout.write(f"| {named} | {firsts} | {words} |\n")
    sys.stdout.flush()


def _poll(chromium: Browser, url: str, process: int, polls: int) -> None:
    """What the page asks every two seconds, asked so many times in a row."""
    page = chromium.new_page()
    with page.expect_request(_is_poll, timeout=60_000) as told:
        page.goto(url)
    request = told.value
    before = _memory_mb(process)
    began = time.perf_counter()
    for _ in range(polls):
        page.request.post(request.url, data=request.post_data_json)
    each_ms = 1000 * (time.perf_counter() - began) / polls
    sys.stdout.write(
        f"\n{polls} polls, {each_ms:.0f} ms each: {before:.0f} MB before,"
        f" {_memory_mb(process):.0f} MB after\n"
    )


def _is_poll(request: Request) -> bool:
    return "study-tick.n_intervals" in (request.post_data or "").partition("changedPropIds")[2]


def _memory_mb(process: int) -> float:
    return float(psutil.Process(process).memory_info().rss) / 1e6


def _visit(chromium: Browser, url: str, process: int) -> Mapping[str, float]:
    """Seconds of each of `STEPS`; those that come with the page count from its navigation."""
    size: Any = {"width": 1280, "height": 900}
    context = chromium.new_context(viewport=size, bypass_csp=True)
    context.add_init_script(_STANDS)
    page = context.new_page()
    plot, task, service, painted = _opened(page, lambda: page.goto(url), process)
    page.wait_for_timeout(1500)
    seconds = dict(zip(STEPS, (painted, plot, task, service), strict=False)) | _acts(page)
    page.goto(url)
    page.wait_for_function("window.stood", timeout=60_000)
    again, task, *_ = _opened(page, page.reload, process)
    context.close()
    return seconds | {"again: plot": again, "page's CPU again": task}


def _opened(page: Page, go: Callable[[], Any], process: int) -> tuple[float, float, float, float]:
    """Until the plot stands, the page's and the service's processor time for it; first paint."""
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})
    before = _cpu_s(process)
    go()
    page.wait_for_function("window.stood", timeout=60_000)
    service, task = _cpu_s(process) - before, _task_s(session)
    painted = page.evaluate(
        "performance.getEntriesByName('first-contentful-paint')[0].startTime / 1000"
    )
    plot = float(page.evaluate("window.stood"))
    session.detach()
    return plot, task, service, float(painted)


def _cpu_s(process: int) -> float:
    used = psutil.Process(process).cpu_times()
    return float(used.user + used.system)


def _task_s(session: CDPSession) -> float:
    told = session.send("Performance.getMetrics")["metrics"]
    return float(next(each["value"] for each in told if each["name"] == "TaskDuration"))


def _now(page: Page) -> float:
    return float(page.evaluate("performance.now() / 1000"))


def _acts(page: Page) -> dict[str, float]:
    page.click("#axis-x")
    page.wait_for_selector(".dash-dropdown-option")
    options = page.locator(".dash-dropdown-option")
    memory = options.filter(has_text="memory").first
    memory.evaluate("(option) => option.setAttribute('data-wanted', '')")
    title = "document.querySelector('#cloud .xtitle')?.textContent"
    axis = _until(page, "[data-wanted]", f"({title} || '').startsWith('memory')")
    before = page.evaluate("document.querySelectorAll('#cloud .trace').length")
    traces = "document.querySelectorAll('#cloud .trace').length"
    standing = _until(page, "#standings input", f"{traces} !== {before}")
    told = {"axis": axis, "standing": standing, "zoom": _zoom(page)}
    told |= {"table": _table(page), "filter": _filter(page)}
    return told | {"point": _point(page)}


def _until(page: Page, act: str | None, wanted: str) -> float:
    return float(page.evaluate(_UNTIL, [act, wanted])) / 1000


def _zoom(page: Page) -> float:
    """A drag across part of the plot, until new points stand in it."""
    page.locator("#cloud").scroll_into_view_if_needed()
    box = page.locator("#cloud .nsewdrag").first.bounding_box()
    assert box is not None
    x, y, width, height = box["x"], box["y"], box["width"], box["height"]
    page.mouse.move(x + 0.2 * width, y + 0.2 * height)
    page.mouse.down()
    page.mouse.move(x + 0.8 * width, y + 0.95 * height, steps=4)
    page.evaluate(_REACTED)
    began = _now(page)
    page.mouse.up()
    page.wait_for_function("window.reacted")
    return float(page.evaluate("window.reacted")) - began


def _table(page: Page) -> float:
    page.locator("#trials-section").evaluate("(section) => section.scrollIntoView()")
    seconds = _until(page, None, "document.querySelector('#trials .ag-row')")
    page.wait_for_timeout(1500)
    return seconds


def _filter(page: Page) -> float:
    """The table's rows of one standing, by the grid's own filter."""
    began = _now(page)
    page.evaluate(
        """() => dash_ag_grid.getApi("trials").setFilterModel(
            {standing: {filterType: "text", type: "equals", filter: "misses"}})"""
    )
    page.wait_for_function(
        """[...document.querySelectorAll("#trials .ag-row [col-id=standing]")].every(
            (cell) => cell.textContent === "misses")"""
    )
    return _now(page) - began


def _point(page: Page) -> float:
    """A click on a point, until the page of its trial stands."""
    page.mouse.move(*page.evaluate(POINT))
    page.wait_for_selector("#cloud .hovertext")
    at = page.evaluate(POINT)
    began = _now(page)
    page.mouse.click(*at)
    page.wait_for_selector("#trial-head h1")
    return _now(page) - began


if __name__ == "__main__":
    main()
