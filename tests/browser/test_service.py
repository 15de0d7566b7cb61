"""The service in a real browser: what people do with it, from a study that runs to a rollback.
Skipped where there is no Chromium."""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from autotune.adapters.triton.environment import prepare
from autotune.core.access import Role
from autotune.core.promotions import PromotionState
from autotune.settings import Settings
from tests.browser import chromium
from tests.browser.chromium import POINT, go
from tests.integration.services import Service as RealService
from tests.integration.studies import Tool, next_turn, own_model
from tests.integration.test_triton_export import whole_directory
from tests.service_app import Service, listening
from tests.service_shown import fill

pytestmark = chromium.needed

NARROW: Any = {"width": 400, "height": 900}
WIDE: Any = {"width": 1280, "height": 900}
ZONE = "Asia/Tokyo"
PAGES = {
    "/": "Studies",
    "/study/1": "ocr",
    "/study/1/trial/5": "Trial 5",
    "/study/1/trial/14": "Trial 14",
    "/study/1/compare?a=0&b=5": "Compare two trials",
    "/study/1/compare": "Compare two trials",
    "/jobs": "Jobs",
    "/jobs/1": "Job 1: ocr-large",
    "/schedules": "Schedules",
    "/schedules/nightly": "nightly",
    "/runs/9": "Run of",
    "/models": "Models",
    "/models/linear": "linear",
    "/promotions": "Promotions",
    "/promotions/4": "Promotion 4 of linear",
    "/audit": "Audit",
    "/notices": "Notices",
    "/nowhere": "There is no such page",
}
"""Addresses with the beginning of their headings."""
SIDEWAYS = "document.documentElement.scrollWidth - innerWidth"


@dataclass
class Heard:
    """What a browser's context said of itself, and whom it asked."""

    wrong: list[str] = field(default_factory=list)
    asked: set[str] = field(default_factory=set)

    def of(self, context: BrowserContext) -> Heard:
        context.on("request", lambda request: self.asked.add(request.url.split("/")[2]))
        context.on("console", self._said)
        context.on("weberror", lambda error: self.wrong.append(str(error.error)))
        return self

    def _said(self, message: Any) -> None:
        lost = "404" in message.text and "/nowhere" in (message.location or {}).get("url", "")
        if message.type in ("error", "warning") and not lost:
            self.wrong.append(message.text)


@contextmanager
def visiting(browser: Browser, url: str, **how: Any) -> Iterator[tuple[Page, Heard]]:
    """A page of a fresh browser; at the end nothing was wrong, and nobody else was asked."""
    options = {"viewport": WIDE, "timezone_id": ZONE, "locale": "en-US"}
    context = browser.new_context(base_url=url, accept_downloads=True, **{**options, **how})
    context.set_default_timeout(20_000)
    heard = Heard().of(context)
    page = context.new_page()
    try:
        yield page, heard
    except AssertionError as failure:
        failure.add_note(f"the browser said: {heard.wrong}")
        raise
    context.close()
    assert heard.wrong == []
    assert heard.asked <= {url.removeprefix("http://")}


def act(page: Page, words: str, yes: str, **filled: str) -> str:
    """Press a button, fill in what its dialog asks for, and agree; what came of it."""
    page.get_by_role("button", name=words).click()
    dialog = page.get_by_role("dialog")
    for name, value in filled.items():
        dialog.locator(f"#act-{name}").fill(value)
    dialog.get_by_role("button", name=yes).click()
    dialog.locator(".notice").wait_for()
    return dialog.locator(".notice").inner_text()


def close(page: Page) -> None:
    page.get_by_role("dialog").get_by_role("button", name="Close").click()
    expect(page.get_by_role("dialog")).to_have_count(0)


# ------------------------------------------------------------------------------- a real study
@dataclass(frozen=True)
class Running:
    """A service that does a study: ``job`` is the job's number."""

    service: RealService
    tool: Tool
    job: int

    @property
    def study(self) -> str:
        """Its page, once it has begun."""
        found = self.service.until(self.job, lambda job: job["study_id"] is not None)
        return f"/study/{found['study_id']}"

    def ended(self) -> dict[str, Any]:
        return self.service.until(self.job, lambda job: job["ended_at"] is not None)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Four candidates of a model of the user's own; production is a copy of its repository."""
    folder = tmp_path_factory.mktemp("service")
    cache = Settings.from_environment().cache_dir
    prepare(cache)
    cli = Tool(folder, cache)
    model = own_model(folder / "models")
    shutil.copytree(folder / "models", folder / "production")
    space = {"max_batch_size": [1, 4], "instances": [1, 2]}
    path = cli.study("own", model=model, space=space)
    try:
        with next_turn():
            service = RealService.start(cli)
            yield Running(service, cli, service.submit(path))
    finally:
        cli.close()


@pytest.mark.server
@pytest.mark.timeout(200)
def test_a_study_is_watched_as_it_runs(browser: Browser, running: Running) -> None:
    with visiting(browser, running.service.url) as (page, _):
        page.goto("/")
        row = page.get_by_role("row", name="own")
        row.get_by_role("progressbar").wait_for(timeout=60_000)
        row.get_by_role("link", name="own", exact=True).click()
        expect(page.locator("#study-head .badge").first).to_have_text("running")
        page.locator("#study-progress progress").wait_for()
        page.locator("#cloud .points path").first.wait_for(timeout=60_000)
        page.locator("#trials-section").evaluate(chromium.LOOK_AT)
        seen = page.locator("#trials [col-id=n] a")
        seen.first.wait_for()
        before = seen.count()
        expect(page.locator("#study-head .badge").first).to_have_text("done", timeout=90_000)
        expect(page.locator("#study-head .answer")).to_contain_text("The pick is")
        expect(seen).to_have_count(4)
        assert before < 4


@pytest.mark.server
@pytest.mark.timeout(200)
def test_a_point_that_is_chosen_in_the_plot_tells_all_of_its_trial(
    browser: Browser, running: Running
) -> None:
    running.ended()
    with visiting(browser, running.service.url) as (page, _):
        page.goto(running.study)
        page.locator("#cloud .points path").first.wait_for()
        page.wait_for_load_state("networkidle")
        at = page.evaluate(POINT)
        page.mouse.move(*at)
        expect(page.locator("#cloud .hovertext")).to_contain_text("max_batch_size")
        page.mouse.click(*at)
        page.wait_for_url("**/trial/*")
        number = page.url.rpartition("/")[2]
        expect(page.get_by_role("heading", level=1)).to_have_text(f"Trial {number}")
        page.locator("#trial-latency .scatterlayer .trace").first.wait_for()
        page.locator("#trial-course .scatterlayer .trace").first.wait_for()
        expect(page.locator("#trial-course")).to_contain_text("in flight")
        expect(page.locator("#why")).to_contain_text("p50")
        expect(page.locator("#measured tbody tr").first).to_contain_text("yes")


@pytest.mark.server
@pytest.mark.timeout(200)
def test_what_is_downloaded_is_what_a_triton_serves(
    browser: Browser, running: Running, tmp_path: Path
) -> None:
    running.ended()
    trial = next(
        each["number"]
        for each in running.service.get(f"{running.study.replace('study', 'studies')}/trials")[
            "trials"
        ]
        if each["candidate"].get("max_batch_size") == 4
    )
    with visiting(browser, running.service.url) as (page, _):
        page.goto(f"{running.study}/trial/{trial}")
        saved = {}
        for name in ("config.pbtxt", "Repository (ZIP)"):
            with page.expect_download() as download:
                page.get_by_role("link", name=name).click()
            saved[name] = tmp_path / download.value.suggested_filename
            download.value.save_as(saved[name])
    repository = tmp_path / "repository"
    zipfile.ZipFile(saved["Repository (ZIP)"]).extractall(repository)
    text = saved["config.pbtxt"].read_text()
    assert (repository / "own" / "config.pbtxt").read_text() == text
    environment = prepare(Settings.from_environment().cache_dir)
    with whole_directory(environment, repository, tmp_path / "triton.log") as triton:
        assert triton.get_model_config("own").config.max_batch_size == 4
        assert triton.is_model_ready("own")


@pytest.mark.server
@pytest.mark.timeout(200)
def test_a_promotion_is_proposed_approved_and_rolled_back(
    browser: Browser, running: Running
) -> None:
    running.ended()
    production = running.tool.folder / "production" / "own" / "config.pbtxt"
    before = production.read_text()
    with visiting(browser, running.service.url) as (page, _):
        page.goto(f"{running.study}/trial/3")
        outside = act(page, "Propose for service", "Propose it", repository="/etc")
        assert "below the service's root" in outside
        page.locator("#act-repository").fill("production")
        page.locator("#act-why").fill("seen in a browser")
        page.get_by_role("button", name="Propose it").click()
        page.get_by_role("dialog").get_by_role("link", name="promotion 1").click()
        expect(page.locator("#promotion-shown .badge")).to_have_text("proposed")
        expect(page.locator(".diff .added").first).to_be_visible()
        assert production.read_text() == before

        assert "is queued" in act(page, "Approve", "Approve, and put it into service")
        close(page)
        expect(page.locator("#promotion-shown .badge")).to_have_text("in service", timeout=40_000)
        assert "max_batch_size: 4" in production.read_text()

        act(page, "Roll back", "Roll back now", why="tried out")
        close(page)
        expect(page.locator("#promotion-shown .badge")).to_have_text("rolled back", timeout=40_000)
        assert production.read_text() == before

        page.goto("/audit")
        row = page.get_by_role("row", name="rolled back").first
        expect(row).to_contain_text("tried out")
        expect(row).to_contain_text("local")


# ------------------------------------------------------------------------- a service full of things
@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Service, str]]:
    """Nobody needs a token."""
    service = Service.in_folder(tmp_path_factory.mktemp("shown"))
    fill(service)
    with listening(service.app()) as url:
        yield service, url


@pytest.fixture(scope="module")
def reader(browser: Browser, shown: tuple[Service, str]) -> Iterator[tuple[Page, Heard]]:
    with visiting(browser, shown[1], color_scheme="dark") as found:
        yield found


@pytest.fixture
def page(reader: tuple[Page, Heard]) -> Iterator[Page]:
    """One for all of the tests below, at the end of each of which nothing was wrong."""
    page, heard = reader
    yield page
    assert heard.wrong == []


def test_no_page_is_wrong_in_the_console_or_scrolls_sideways(
    page: Page, shown: tuple[Service, str]
) -> None:
    """Each page in a narrow window and in a wide one."""
    for path, heading in PAGES.items():
        page.set_viewport_size(NARROW)
        go(page, shown[1], path)
        expect(page.get_by_role("heading", level=1)).to_contain_text(heading)
        expect(page.get_by_text("Reading …")).to_have_count(0)
        expect(page.locator("#problem")).to_be_empty()
        for size in (NARROW, WIDE):
            page.set_viewport_size(size)
            assert page.evaluate(SIDEWAYS) <= 0, (path, size)


def test_times_are_told_in_the_readers_zone(page: Page, shown: tuple[Service, str]) -> None:
    at = datetime.fromtimestamp(shown[0].store.schedules.run(9).scheduled_for, ZoneInfo(ZONE))
    go(page, shown[1], "/runs/9")
    expect(page.locator("h1 time")).to_have_text(
        f"{at:%b} {at.day}, {at:%Y, }{at:%I:%M %p}".replace(", 0", ", ")
    )
    go(page, shown[1], "/models/linear")
    expect(page.locator("#model-nights-note")).to_contain_text(ZONE)


def test_a_dialog_is_answered_and_left_by_the_keyboard_alone(
    page: Page, shown: tuple[Service, str]
) -> None:
    service, url = shown
    go(page, url, "/promotions/4")
    button = page.get_by_role("button", name="Reject")
    button.focus()
    page.keyboard.press("Enter")
    expect(page.locator("#act-why")).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(button).to_be_focused()
    assert service.store.promotions.promotion(4).state is PromotionState.PROPOSED

    page.keyboard.press("Enter")
    expect(page.locator("#act-why")).to_be_focused()
    page.keyboard.type("not before Monday")
    page.keyboard.press("Enter")
    expect(page.locator("#promotion-shown .badge")).to_have_text("rejected")
    assert service.store.promotions.promotion(4).reason == "not before Monday"
    close(page)


def test_a_page_that_is_drawn_anew_keeps_the_focus_where_it_was(
    page: Page, shown: tuple[Service, str]
) -> None:
    go(page, shown[1], "/schedules/nightly")
    button = page.get_by_role("button", name="Run now")
    button.focus()
    button.evaluate("old => old.replaceWith(old.cloneNode(true))")
    expect(button).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_be_visible()
    button.evaluate("old => old.replaceWith(old.cloneNode(true))")
    page.keyboard.press("Escape")
    expect(button).to_be_focused()


def test_a_schedule_is_paused_resumed_and_run(page: Page, shown: tuple[Service, str]) -> None:
    page.goto("/schedules/nightly")  # the test before has put strange elements into it
    act(page, "Pause", "Pause it")
    close(page)
    expect(page.locator(".title .badge")).to_have_text("paused")
    act(page, "Resume", "Resume it")
    close(page)
    expect(page.locator(".title .badge")).to_have_text("active")
    act(page, "Run now", "Run it now")
    page.get_by_role("dialog").get_by_role("link", name="job").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("nightly,")
    assert "is cancelled" in act(page, "Cancel", "Cancel the job")
    close(page)
    expect(page.locator("#job-shown .badge")).to_have_text("cancelled")


# -------------------------------------------------------------------------------------- log in
@dataclass(frozen=True)
class Guarded:
    service: Service
    url: str
    view: str
    operate: str


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    service = Service.in_folder(tmp_path_factory.mktemp("guarded"))
    service.all_of_it()
    view, operate = (service.token(str(role), role) for role in (Role.VIEW, Role.OPERATE))
    with listening(service.app()) as url:
        yield Guarded(service, url, view, operate)


def log_in(page: Page, token: str) -> None:
    page.get_by_label("Token").fill(token)
    page.get_by_role("button", name="Log in").click()


def test_a_wrong_token_is_refused_and_a_right_one_leads_where_one_was_going(
    browser: Browser, guarded: Guarded
) -> None:
    with visiting(browser, guarded.url) as (page, heard):
        page.goto("/promotions/1")
        log_in(page, "atn_wrong")
        expect(page.get_by_role("alert")).to_contain_text("not valid")
        heard.wrong.clear()  # the browser says that it was answered with 401
        log_in(page, guarded.operate)
        page.wait_for_url("**/promotions/1")
        expect(page.get_by_role("button", name="Approve")).to_be_visible()
        expect(page.locator("#who")).to_contain_text("operate (operate)")
        page.get_by_role("button", name="Log out").click()
        page.wait_for_url("**/login")
        page.goto("/jobs")
        expect(page).to_have_url(f"{guarded.url}/login?next=/jobs")


def test_who_may_only_look_finds_no_button_and_is_refused_without_one(
    browser: Browser, guarded: Guarded
) -> None:
    with visiting(browser, guarded.url) as (page, heard):
        page.goto("/promotions/1")
        log_in(page, guarded.view)
        expect(page.locator("#promotion-shown .badge")).to_have_text("proposed")
        expect(page.locator("[data-act]")).to_have_count(0)
        asked = '{act: "approve", on: "1", at: 1'
        page.evaluate(f'dash_clientside.set_props("act-asked", {{data: {asked}}}}})')
        page.get_by_role("dialog").get_by_role("button", name="Approve").click()
        expect(page.get_by_role("dialog").locator(".notice")).to_contain_text("may look")
        post = 'fetch("/api/v1/promotions/1/approve", {method: "POST"})'
        status = page.evaluate(f"{post}.then((answer) => answer.status)")
        heard.wrong.clear()  # the browser says that it was answered with 403
        assert status == 403
    promotions = guarded.service.store.promotions
    assert promotions.promotion(1).state is PromotionState.PROPOSED
