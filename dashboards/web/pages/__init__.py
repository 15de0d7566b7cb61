"""The dashboard's pages, one module each; `PAGES` is what there is, in the navigation's order."""

from __future__ import annotations

from dashboards.web.pages import (
    compare,
    job,
    jobs,
    models,
    promotions,
    run,
    schedules,
    studies,
    study,
    told,
    trial,
)
from dashboards.web.routing import Page

PAGES: tuple[Page, ...] = (
    studies.PAGE,
    study.PAGE,
    trial.PAGE,
    compare.PAGE,
    jobs.PAGE,
    job.PAGE,
    schedules.PAGE,
    schedules.ONE,
    run.PAGE,
    models.PAGE,
    models.ONE,
    promotions.PAGE,
    promotions.ONE,
    told.AUDIT,
    told.NOTICES,
)
