"""The dashboard's pages, one module each; `PAGES` is what there is, in the navigation's order."""

from __future__ import annotations

from dashboards.web.pages import studies, study
from dashboards.web.routing import Page

PAGES: tuple[Page, ...] = (studies.PAGE, study.PAGE)
