"""Pages in use: what one that is left open says when the service, or who looks, is no longer what
it was; where a dialog begins; what is as large as its content. Skipped where there is no Chromium.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from autotune.core.access import Role
from tests.browser.test_service_security import CHROMIUM, FLAGS
from tests.service_app import Service, listening
from tests.service_shown import fill

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")

EMPTY_PX = """(region) => {
  const bottom = (element) => element.getBoundingClientRect().bottom;
  return bottom(region) - Math.max(...[...region.querySelectorAll(".ag-row")].map(bottom));
}"""
"""How much of a grid stands empty below its rows."""
CUT_OFF = """(all) => all
  .filter((one) => one.scrollWidth > one.clientWidth + 1)
  .map((one) => one.innerText)"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield chromium
        chromium.close()


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


@pytest.fixture
def page(browser: Browser, token: str) -> Iterator[Page]:
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
    page.goto(f"{url}/jobs")
    left = page.get_by_text("about 5 min")
    expect(left).to_be_visible(timeout=20_000)
    page.context.set_offline(True)
    told = page.locator("#no-answer")
    expect(told).to_have_text(re.compile(r"no answer since \d\d:\d\d:\d\d"), timeout=20_000)
    expect(left).to_be_hidden()
    page.context.set_offline(False)
    expect(told).to_be_hidden(timeout=20_000)
    expect(left).to_be_visible()


@pytest.mark.parametrize("path", ["/jobs?of=me", "/study/1/compare?a=0&b=5"])
def test_a_page_whose_token_was_revoked_leads_to_the_login(
    stranger: Page, service: Service, url: str, path: str
) -> None:
    """Whether or not the page follows what it shows."""
    stranger.clock.install()
    stranger.goto(f"{url}{path}")
    stranger.get_by_label("Token").fill(service.token("watcher", Role.VIEW))
    stranger.get_by_role("button", name="Log in").click()
    expect(stranger.get_by_text("watcher (view)")).to_be_visible(timeout=20_000)
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
    page.goto(f"{url}{path}")
    page.get_by_role("button", name=act).click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_text(at)).to_be_visible(timeout=20_000)
    expect(dialog.locator(":focus")).to_have_accessible_name(re.compile(at))


def test_the_grid_is_as_high_as_its_few_rows_and_narrow_tables_of_effects_are_whole(
    page: Page, url: str
) -> None:
    page.set_viewport_size({"width": 400, "height": 900})
    page.goto(f"{url}/study/2")
    page.locator("#trials-region").scroll_into_view_if_needed()
    expect(page.locator("#trials .ag-row").first).to_be_visible(timeout=20_000)
    assert page.locator("#trials-region").evaluate(EMPTY_PX) < 60
    page.goto(f"{url}/study/1")
    expect(page.locator(".effect").first).to_be_visible(timeout=20_000)
    assert page.locator(".effect .scroll").evaluate_all(CUT_OFF) == []
