"""A report opened from a file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page


@dataclass
class Opened:
    """``broken`` is what the browser said was wrong: errors, and what the page's policy refused."""

    page: Page
    broken: list[str] = field(default_factory=list)

    def told(self, script: str) -> dict[str, Any]:
        """Runs ``script`` in the page; what it puts into ``result``."""
        found: dict[str, Any] = self.page.evaluate(
            f"() => {{ const result = {{}}; {script}; return result; }}"
        )
        assert self.broken == []
        return found


@contextmanager
def opened(browser: Browser, report: str, folder: Path, width: int) -> Iterator[Opened]:
    file = folder / f"report-{width}.html"
    file.write_text(report, encoding="utf-8")
    context = browser.new_context(viewport={"width": width, "height": 900})
    found = Opened(context.new_page())
    found.page.on("pageerror", lambda error: found.broken.append(str(error)))
    found.page.on(
        "console", lambda said: found.broken.append(said.text) if said.type == "error" else None
    )
    found.page.goto(file.as_uri())
    found.page.wait_for_function(
        "[...document.querySelectorAll('.plot')].every((plot) => plot.querySelector('.main-svg'))"
    )
    yield found
    context.close()
