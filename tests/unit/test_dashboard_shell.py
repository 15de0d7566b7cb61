"""The application around the pages: addresses, what it serves, what it never asks of others."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from typing import Any

import anyio
import pytest
from dash import html
from fastapi import APIRouter, Response
from starlette.middleware import Middleware
from starlette.testclient import TestClient
from starlette.types import ASGIApp, Receive, Scope, Send

from autotune.core.errors import NotFound
from dashboards import plots_library
from dashboards.web import style, suites
from dashboards.web.app import create_app
from dashboards.web.parts.callbacks import in_thread
from dashboards.web.routing import Page, find
from dashboards.web.shell import page_at
from dashboards.web.suites import SUITES, Suites
from tests.serving import desks_of

DESKS = desks_of(studies=None)
HTML = {"accept": "text/html"}


def _refused(_desks: Any, asked: Any) -> Any:
    raise NotFound("no such thing", value=asked["name"], next_step="Look at the list.")


PAGES = (
    Page(path="/", title="First", layout=lambda *_: html.P("here"), nav="First"),
    Page(path="/thing/{name}", title="Thing", layout=_refused),
    Page(path="/asked", title="Asked", layout=lambda _, asked: html.P(str(sorted(asked.items())))),
)


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    with TestClient(create_app(DESKS, pages=PAGES)) as client:
        yield client


@pytest.mark.parametrize("path", ["/", "/thing/one", "/asked/"])
def test_every_page_has_an_address_of_its_own(client: TestClient, path: str) -> None:
    answer = client.get(path, headers=HTML)
    assert (answer.status_code, "react-entry-point" in answer.text) == (200, True)


def test_an_address_that_is_none_is_a_page_that_says_so_with_404(client: TestClient) -> None:
    answer = client.get("/nowhere", headers=HTML)
    assert (answer.status_code, "react-entry-point" in answer.text) == (404, True)
    assert "There is no such page" in str(page_at(PAGES, DESKS, "/nowhere"))


def test_a_program_is_told_in_json_that_there_is_nothing(client: TestClient) -> None:
    answer = client.get("/nowhere")
    assert (answer.status_code, answer.json()) == (404, {"detail": "there is nothing at /nowhere"})


def test_nothing_on_a_page_comes_from_another_host(client: TestClient) -> None:
    page = client.get("/", headers=HTML).text
    fetched = re.findall(r'(?:src|href)="([^"]*)"', page)
    assert fetched
    assert not [address for address in fetched if not address.startswith("/")]


def test_all_that_a_page_names_is_served(client: TestClient) -> None:
    page = client.get("/", headers=HTML).text
    for address in re.findall(r'(?:src|href)="(/[^"]*)"', page):
        assert client.get(address).status_code == 200, address


def test_no_page_sends_back_what_it_was_given_to_show() -> None:
    """Ten thousand rows are more than a request may hold."""
    with TestClient(create_app(DESKS)) as client:
        asked = client.get("/_dash-dependencies").json()
    assert len(asked) > 10
    for each in asked:
        sent = {one["property"] for one in (*each["inputs"], *each["state"])}
        shows = sent & {"children", "figure", "rowData", "options", "columnDefs"}
        assert not shows or each["clientside_function"], each["output"]


def test_pages_that_describe_the_api_from_another_host_are_off(client: TestClient) -> None:
    assert [client.get(path).status_code for path in ("/docs", "/redoc")] == [404, 404]


def test_answers_are_packed(client: TestClient) -> None:
    answer = client.get("/_dash-component-suites/plotly/package_data/plotly.min.js")
    assert answer.headers["content-encoding"] == "gzip"


def test_the_plots_library_is_kept_at_an_address_that_names_what_it_holds(
    client: TestClient,
) -> None:
    (named,) = re.findall(r'data-plots="([^"]*)"', client.get("/", headers=HTML).text)
    answer = client.get(named)
    assert answer.text == plots_library.script()
    assert answer.headers["content-encoding"] == "gzip"
    assert "immutable" in answer.headers["cache-control"]


def test_the_plots_library_stands_in_no_function_that_is_read_before_it_is_called() -> None:
    """As Plotly's package has it now."""
    begin = plots_library.script().index('"use strict";')
    assert "function" not in plots_library.script()[:begin]
    assert plots_library.script()[begin:].startswith('"use strict";var Plotly=')
    assert plots_library.script().endswith("window.Plotly = Plotly;\n")


def test_a_library_that_is_wrapped_in_something_else_is_left_as_it_is() -> None:
    head = '/* licence */\n(\n function(root, factory) {} (self, () => {\n"use strict";'
    whole = f"{head}var Plotly = 1;\nreturn Plotly;\n}}));"
    assert plots_library.unwrapped(whole) == '/* licence */\n"use strict";var Plotly = 1;\n'
    for other in (f"{whole}more();", whole.replace("function(root", "function(other")):
        assert plots_library.unwrapped(other) == other


def test_an_archive_is_not_packed_again() -> None:
    router = APIRouter()
    router.add_api_route("/all.zip", lambda: Response(b"PK" * 4000, media_type="application/zip"))
    answer = TestClient(create_app(DESKS, pages=PAGES, routers=[router])).get("/all.zip")
    assert (answer.status_code, "content-encoding" in answer.headers) == (200, False)


def test_middleware_sees_the_address_that_was_asked_for() -> None:
    seen: list[str] = []

    class Sees:
        def __init__(self, app: ASGIApp) -> None:
            self.app = app

        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            seen.append(scope.get("path", ""))
            await self.app(scope, receive, send)

    app = create_app(DESKS, pages=PAGES, middleware=lambda _: [Middleware(Sees)])
    TestClient(app).get("/thing/one", headers=HTML)
    assert seen == ["/thing/one"]


def test_middleware_knows_the_scripts_that_pages_hold() -> None:
    known: list[str] = []

    def layers(dash_app: Any) -> list[Middleware]:
        known.extend(dash_app.csp_hashes())
        return []

    create_app(DESKS, pages=PAGES, middleware=layers)
    assert known
    assert all(each.startswith("'sha256-") for each in known)


# ------------------------------------------------------------------------------------------ pages
def test_a_page_is_given_what_the_address_says() -> None:
    found = find(PAGES, "/thing/one two", "?from=3")
    assert found is not None
    assert found[1] == {"name": "one two", "from": "3"}


def test_a_query_does_not_stand_for_a_part_of_the_path() -> None:
    found = find(PAGES, "/thing/one", "?name=two")
    assert found is not None
    assert found[1]["name"] == "one"


def test_what_a_page_refuses_is_told_in_its_place() -> None:
    shown, title = page_at(PAGES, DESKS, "/thing/one")
    assert title == "Thing"
    assert "no such thing (got one)" in str(shown)
    assert "Look at the list." in str(shown)


def test_a_callback_that_asks_the_desks_leaves_the_event_loop_free() -> None:

    async def asked() -> int:
        return await in_thread(threading.get_ident)()

    assert anyio.run(asked) != threading.get_ident()


# ------------------------------------------------------------------------------------------ looks
def test_the_theme_that_was_chosen_stands_before_the_system_s() -> None:
    sheet = style.sheet()
    dark = sheet.index(':root[data-theme="dark"]')
    assert dark > sheet.index("prefers-color-scheme: dark")
    assert "--back: #14171c" in sheet[dark:]


def test_a_style_sheet_that_has_changed_is_fetched_anew() -> None:
    assert style.address("a") != style.address("b")


# ---------------------------------------------------------------------------------------- scripts
class Counting:
    """What stands in the place of Dash: says how often it was asked."""

    def __init__(self) -> None:
        self.asked = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.asked += 1
        there = not scope["path"].endswith("none.js")
        answer = Response(b"x" * 2000, status_code=200 if there else 500, headers={"etag": "e1"})
        await answer(scope, receive, send)


def test_a_script_is_made_and_packed_once_whoever_asks() -> None:
    dash = Counting()
    asking = TestClient(Suites(dash))
    path = f"{SUITES}dash/deps/react.js"
    first, second = asking.get(path), asking.get(path)
    assert (first.content, first.headers) == (second.content, second.headers)
    same = asking.get(path, headers={"If-None-Match": "e1"})
    assert (same.status_code, same.content) == (304, b"")
    assert dash.asked == 1
    asking.get(path, headers={"Accept-Encoding": "identity"})
    assert dash.asked == 2


def test_what_is_no_script_is_asked_for_each_time() -> None:
    dash = Counting()
    asking = TestClient(Suites(dash))
    assert [asking.get(f"{SUITES}none.js").status_code for _ in range(2)] == [404, 404]
    assert [asking.get("/jobs").status_code for _ in range(2)] == [200, 200]
    assert dash.asked == 4


def test_no_more_scripts_are_kept_than_so_many_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suites, "MOST_BYTES", 5000)
    dash = Counting()
    asking = TestClient(Suites(dash))
    for _ in range(2):
        assert [asking.get(f"{SUITES}{n}.js").status_code for n in range(3)] == [200] * 3
    assert dash.asked == 4
