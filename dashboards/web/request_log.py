"""Every request gets an id, a line in the log and its place in the figures. What a request carries
(headers, cookies, query, body) is not told: it may be secret."""

from __future__ import annotations

import re
import time
import uuid
from urllib.parse import quote

import structlog
from prometheus_client import CollectorRegistry, Histogram
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dashboards.api.router import PREFIX

REQUEST_ID = "x-request-id"
_QUIET = frozenset({"/healthz", "/readyz", "/metrics", f"{PREFIX}/me"})
"""Asked every few seconds by machines and open pages: told at level debug."""
_UPDATES = "/_dash-update-component"
"""What open pages ask every few seconds (what someone does there goes by the API): told at level
debug unless it fails."""
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_GIVEN = re.compile(r"[A-Za-z0-9_-]{1,64}")
_LONGEST_PATH = 200


def request_seconds(registry: CollectorRegistry) -> Histogram:
    return Histogram(
        "autotune_http_request_duration_seconds",
        "HTTP requests by method, route and status.",
        ("method", "route", "status"),
        registry=registry,
    )


class RequestLog:
    """ASGI middleware. The id is the caller's own, if that has sent a plain one."""

    def __init__(self, app: ASGIApp, *, seconds: Histogram) -> None:
        self.app = app
        self._seconds = seconds
        self._log = structlog.get_logger("autotune.requests")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request_id = _request_id(Headers(scope=scope).get(REQUEST_ID, ""))
        status = 500  # what the server answers if the app raises before it has answered
        began = time.perf_counter()

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)[REQUEST_ID] = request_id
            await send(message)

        with structlog.contextvars.bound_contextvars(request_id=request_id):
            try:
                await self.app(scope, receive, answer)
            finally:
                self._tell(scope, status, time.perf_counter() - began)

    def _tell(self, scope: Scope, status: int, seconds: float) -> None:
        method = scope["method"] if scope["method"] in _METHODS else "other"
        self._seconds.labels(method, route_of(scope), status).observe(seconds)
        client = scope.get("client")
        polled = scope["path"] == _UPDATES and status < 400
        tell = self._log.debug if polled or scope["path"] in _QUIET else self._log.info
        tell(
            "request",
            method=method,
            path=quote(scope["path"])[:_LONGEST_PATH],
            status=status,
            ms=round(1000 * seconds, 1),
            client=client[0] if client else None,
        )


def _request_id(given: str) -> str:
    return given if _GIVEN.fullmatch(given) else uuid.uuid4().hex[:16]


def route_of(scope: Scope) -> str:
    """The route's pattern, not the path: there are few of them, whatever is asked for. A router's
    own routes do not tell the prefix that it was included under. Pages have no route each."""
    pattern = str(getattr(scope.get("route"), "path_format", "other"))
    below_api = scope["path"].startswith(f"{PREFIX}/") and not pattern.startswith(PREFIX)
    return PREFIX + pattern if below_api and pattern.startswith("/") else pattern
