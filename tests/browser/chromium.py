"""The browser of these tests, where there is one."""

from __future__ import annotations

import shutil

import pytest
from playwright.sync_api import Page

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
needed = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--host-resolver-rules=MAP *.test 127.0.0.1",
]

LOOK_AT = "(part) => part.scrollIntoView({ behavior: 'instant' })"
"""What nobody looks at is not asked for."""
POINT = """() => {
  const mark = document.querySelector("#cloud .trace .points path");
  document.getElementById("cloud").scrollIntoView({ block: "center", behavior: "instant" });
  const box = mark.getBoundingClientRect();
  return [box.x + box.width / 2, box.y + box.height / 2];
}"""
"""Where the plot's first point is, in the window."""
GO = """(path) => {
  history.pushState({}, "", path);
  dispatchEvent(new CustomEvent("_dashprivate_pushstate"));
}"""


def go(page: Page, url: str, path: str) -> None:
    """To a page of the service: as a link does where it is one already, whose scripts are there
    then (to load them takes longer than most tests)."""
    if page.url.startswith(f"{url}/"):
        page.evaluate(GO, path)
    else:
        page.goto(f"{url}{path}")
