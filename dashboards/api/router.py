"""All routes of the API, below one path, for those who may at least look."""

from __future__ import annotations

from fastapi import APIRouter, Depends
from fastapi.security import HTTPBearer

from autotune.service_ports import Desks
from dashboards.api.answers import FiniteJson, told
from dashboards.api.asking import viewer
from dashboards.api.service import models_router, promotions_router, told_router
from dashboards.api.studies import studies_router
from dashboards.api.work import jobs_router, schedules_router

PREFIX = "/api/v1"
OPENAPI = f"{PREFIX}/openapi.json"
_TOKEN = HTTPBearer(
    auto_error=False,
    scheme_name="token",
    description="From `autotune token add`. Not needed on the service's machine while there is none"
    " and it listens on loopback.",
)
"""For the description alone: `dashboards.web.security` has looked at it."""


def api_router(desks: Desks) -> APIRouter:
    router = APIRouter(
        prefix=PREFIX,
        default_response_class=FiniteJson,
        dependencies=[Depends(viewer), Depends(_TOKEN)],
        responses=told(401, 421, 422, 429, 503),
    )
    for make in (
        studies_router,
        jobs_router,
        schedules_router,
        promotions_router,
        models_router,
        told_router,
    ):
        router.include_router(make(desks))
    return router
