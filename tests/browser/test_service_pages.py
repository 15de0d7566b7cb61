"""Pages in use: what one that is left open says when the service, or who looks, is no longer what
it was; where a dialog begins; what is as large as its content. Skipped where there is no Chromium.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, Page, expect

from autotune.core.access import Role
from autotune.core.errors import StoreFailed
from tests.browser import chromium
from tests.browser.chromium import go
from tests.service_app import Service, listening
from tests.service_shown import fill

pytestmark = chromium.needed

EMPTY_PX = """(region) => {
  const bottom = (element) => element.getBoundingClientRect().bottom;
  return bottom(region) - Math.max(...[...region.querySelectorAll(".ag-row")].map(bottom));
}"""
"""How much of a grid stands empty below its rows."""
CUT_OFF = """(all) => all
  .filter((one) => one.scrollWidth > one.clientWidth + 1)
  .map((one) => one.innerText)"""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Service:
    service = Service.in_folder(tmp_path_factory.mktemp("left-open"))
    fill(service)
    return service


@pytest.fixture(scope="module")
def url(service: Service) -> Iterator[str]:
    with listening(service.app()) as url:
        yield url


@pytest.fixture(scope="module")
def token(service: Service) -> str:
    return service.token("operator", Role.OPERATE)


@pytest.fixture(scope="module")
def page(browser: Browser, token: str) -> Iterator[Page]:
    """An operator's; one for all tests."""
    context = browser.new_context(extra_http_headers={"authorization": f"Bearer {token}"})
    context.set_default_timeout(20_000)
    yield context.new_page()
    context.close()


@pytest.fixture
def stranger(browser: Browser, token: str) -> Iterator[Page]:
    context = browser.new_context()
    context.set_default_timeout(20_000)
    yield context.new_page()
    context.close()


def test_a_page_says_since_when_the_service_gives_no_answer_until_it_does(
    page: Page, url: str
) -> None:
    go(page, url, "/jobs")
    left = page.get_by_text("about 5 min")
    expect(left).to_be_visible()
    page.context.set_offline(True)
    told = page.locator("#no-answer")
    expect(told).to_have_text(re.compile(r"no answer since \d\d:\d\d:\d\d"))
    expect(left).to_be_hidden()
    page.context.set_offline(False)
    expect(told).to_be_hidden()
    expect(left).to_be_visible()


def test_what_was_not_answered_is_told_in_its_dialog_and_may_be_asked_again(
    page: Page, url: str
) -> None:
    go(page, url, "/schedules/nightly")
    page.get_by_role("button", name="Pause").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_role("button", name="Pause it")).to_be_visible()
    page.context.set_offline(True)
    dialog.get_by_role("button", name="Pause it").click()
    expect(dialog.get_by_role("alert")).to_contain_text("no answer since")
    page.context.set_offline(False)
    expect(dialog.get_by_role("alert")).to_have_count(0)
    dialog.get_by_role("button", name="Pause it").click()
    expect(dialog.locator(".notice.good")).to_contain_text("paused")
    expect(dialog.get_by_role("button", name="Close")).to_be_focused()
    page.keyboard.press("Escape")


def test_a_page_that_a_database_kept_from_being_made_is_made_when_it_is_back(
    stranger: Page, service: Service, token: str
) -> None:
    gone = [True]

    class Studies:
        def __getattr__(self, name: str) -> Any:
            if gone[0]:
                raise StoreFailed("it is locked", value="/srv/secret.db")
            return getattr(service.desks().studies, name)

    desks = replace(
        service.desks(), studies=Studies(), problems=lambda: ["database"] if gone[0] else []
    )
    stranger.context.set_extra_http_headers({"authorization": f"Bearer {token}"})
    stranger.clock.install()
    with listening(service.app(desks)) as url:
        stranger.goto(f"{url}/study/1/compare")
        expect(stranger.get_by_role("alert")).to_have_text("The database does not answer.")
        gone[0] = False
        stranger.clock.fast_forward(6000)
        expect(stranger.get_by_role("heading", level=1)).to_have_text("Compare two trials")


@pytest.mark.parametrize("path", ["/jobs?of=me", "/study/1/compare?a=0&b=5"])
def test_a_page_whose_token_was_revoked_leads_to_the_login(
    stranger: Page, service: Service, url: str, path: str
) -> None:
    """Whether or not the page follows what it shows."""
    stranger.clock.install()
    stranger.goto(f"{url}{path}")
    stranger.get_by_label("Token").fill(service.token("watcher", Role.VIEW))
    stranger.get_by_role("button", name="Log in").click()
    expect(stranger.get_by_text("watcher (view)")).to_be_visible()
    service.store.tokens.revoke("watcher")
    stranger.clock.fast_forward(20_000)
    stranger.wait_for_url(f"**/login?next={quote(path, safe='')}")
    expect(stranger.get_by_text("watcher")).to_have_count(0)


@pytest.mark.parametrize(
    ("path", "act", "at"),
    [("/promotions/4", "Approve …", "Leave it as it is"), ("/promotions/2", "Roll back …", "Why")],
)
def test_a_dialog_begins_in_its_field_or_on_what_leaves_all_as_it_is(
    page: Page, url: str, path: str, act: str, at: str
) -> None:
    go(page, url, path)
    page.get_by_role("button", name=act).click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_text(at)).to_be_visible()
    expect(dialog.locator(":focus")).to_have_accessible_name(re.compile(at))
    page.keyboard.press("Escape")


def test_the_grid_is_as_high_as_its_few_rows_and_narrow_tables_of_effects_are_whole(
    page: Page, url: str
) -> None:
    page.set_viewport_size({"width": 400, "height": 900})
    go(page, url, "/study/2")
    page.locator("#trials-section").evaluate(chromium.LOOK_AT)
    expect(page.locator("#trials .ag-row").first).to_be_visible()
    assert page.locator("#trials-region").evaluate(EMPTY_PX) < 60
    go(page, url, "/study/1")
    expect(page.get_by_role("heading", level=1)).to_have_text("ocr")
    page.locator("#effects").evaluate(chromium.LOOK_AT)
    expect(page.locator(".effect").first).to_be_visible()
    assert page.locator(".effect .scroll").evaluate_all(CUT_OFF) == []
