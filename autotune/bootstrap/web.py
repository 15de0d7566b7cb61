"""The web application: pages, API, health, and the guard before them."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import metadata

from dash import Dash
from fastapi import FastAPI
from starlette.middleware import Middleware

from autotune.service_ports import Desks
from dashboards.api.problems import answer_problems
from dashboards.api.router import OPENAPI, api_router
from dashboards.web.app import create_app
from dashboards.web.attempts import Attempts
from dashboards.web.health import health_router, registry_of
from dashboards.web.login import login_router
from dashboards.web.operators import for_operators
from dashboards.web.request_log import RequestLog, request_seconds
from dashboards.web.security import guarded
from dashboards.web.sessions import Sessions


def web_app(desks: Desks, *, key: str, hosts: Sequence[str] = ()) -> FastAPI:
    """``key`` signs sessions; ``hosts`` are further names that the service goes by."""
    desks = for_operators(desks)
    registry = registry_of(desks)
    seconds = request_seconds(registry)
    sessions, attempts = Sessions(key), Attempts()
    guard = guarded(desks.access, sessions=sessions, attempts=attempts, hosts=hosts)

    def layers(dash_app: Dash) -> Sequence[Middleware]:
        """The log sees what the guard refuses, too."""
        return [Middleware(RequestLog, seconds=seconds), *guard(dash_app)]

    app = create_app(
        desks,
        routers=(
            health_router(desks, registry),
            login_router(desks.access, sessions, attempts),
            api_router(desks),
        ),
        middleware=layers,
        openapi_url=OPENAPI,
        version=metadata.version("triton-autotune"),
    )
    answer_problems(app)
    return app
