"""Every page in a real browser, behind the guard: its policy hinders none of them, and a session
holds. Skipped where there is no Chromium."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from autotune.core.access import Role
from dashboards.web.pages import PAGES
from dashboards.web.sessions import COOKIE
from tests.service_app import Service, listening

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
THERE = {
    "reference": "1",
    "study": "1",
    "study_id": "1",
    "number": "5",
    "first": "5",
    "second": "7",
    "job": "1",
    "run": "1",
    "promotion": "1",
    "job_id": "1",
    "run_id": "1",
    "promotion_id": "1",
    "name": "nightly",
    "model": "linear",
}
WATCH = """
window.violations = [];
addEventListener("securitypolicyviolation", (event) =>
  window.violations.push(`${event.violatedDirective}: ${event.blockedURI} ${event.sample}`));
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Service:
    service = Service.in_folder(tmp_path_factory.mktemp("browsed"))
    service.all_of_it()
    return service


@pytest.fixture(scope="module")
def address(service: Service) -> Iterator[str]:
    with listening(service.app()) as address:
        yield address


@pytest.fixture(scope="module")
def token(service: Service) -> str:
    return service.token("watcher", Role.VIEW)


@pytest.fixture
def page(browser: Browser, address: str) -> Iterator[Page]:
    context = browser.new_context(base_url=address)
    page = context.new_page()
    page.add_init_script(WATCH)
    page.set_default_timeout(30_000)
    yield page
    context.close()


def log_in(page: Page, token: str, wanted: str = "/") -> None:
    page.goto(wanted)
    page.get_by_label("Token").fill(token)
    page.get_by_role("button", name="Log in").click()
    page.wait_for_selector("main h1")


def filled(path: str) -> str:
    parts = (
        THERE[part.strip("{}").split(":")[0]] if part.startswith("{") else part
        for part in path.split("/")
    )
    return "/".join(parts)


def test_who_is_not_known_logs_in_and_comes_to_what_was_wanted(page: Page, token: str) -> None:
    wanted = filled(next(each.path for each in PAGES if "{" in each.path))
    log_in(page, token, wanted)
    assert page.url.endswith(wanted)
    (cookie,) = [each for each in page.context.cookies() if each["name"] == COOKIE]
    assert cookie["httpOnly"]
    assert cookie["sameSite"] == "Lax"
    assert COOKIE not in page.evaluate("document.cookie")


def test_a_wrong_token_is_refused_in_words(page: Page) -> None:
    page.goto("/")
    page.get_by_label("Token").fill("at_wrong")
    page.get_by_role("button", name="Log in").click()
    assert "not valid" in page.get_by_role("alert").inner_text()
    assert not page.context.cookies()


def test_no_page_is_hindered_by_the_policy_nor_needs_another_host(page: Page, token: str) -> None:
    asked: list[str] = []
    drawn = 0
    failed: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: failed.append(str(error)))
    page.on(
        "response",
        lambda answer: (
            failed.append(f"{answer.status} {answer.url}") if answer.status >= 400 else None
        ),
    )
    log_in(page, token)
    violations: list[str] = []
    for each in PAGES:
        page.goto(filled(each.path))
        page.wait_for_selector("main h1")
        page.wait_for_timeout(600)  # what comes after the page: plots, tables
        violations += page.evaluate("window.violations")
        drawn += page.locator(".main-svg, .ag-root").count()
    assert drawn
    assert violations == []
    assert failed == []
    here = page.evaluate("location.origin")
    assert [url for url in asked if not url.startswith((here, "data:", "blob:"))] == []
