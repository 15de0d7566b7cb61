"""What stands between a request and everything that answers: who asks, from where, how much.

Whoever has a token shows it as ``Authorization: Bearer …``, or logs in with it and gets a session.
A browser sends the session's cookie along with requests that other sites make it send: what
changes something is taken from this site's own pages alone (see `dashboards.web.origins`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias
from urllib.parse import quote

from dash import Dash
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware import Middleware
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from autotune.core.access import Identity, Role
from autotune.service_ports import AccessDesk
from dashboards.api.problems import problem
from dashboards.web import style
from dashboards.web.attempts import WAIT_S, Attempts
from dashboards.web.bounded import Bounded
from dashboards.web.headers import safe_headers
from dashboards.web.heads import Heads
from dashboards.web.identity import asked_by
from dashboards.web.origins import forwarded, is_loopback, is_ours, same_origin
from dashboards.web.sessions import Sessions
from dashboards.web.suites import SUITES, Suites

SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
OPEN = frozenset({"/healthz", "/readyz", "/login", "/logout", "/_favicon.ico", style.PATH})
"""Answered without knowing who asks."""
OPEN_BELOW = ("/static/",)
LOCAL = Identity(name="local", role=Role.OPERATE)
"""Whoever asks where no token is needed: someone on this machine."""
_KEPT = ("/static/", SUITES, "/_favicon.ico", style.PATH)
"""What a browser may keep: it is the same for everyone."""

Refused: TypeAlias = Response


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """What the guard is made of. ``hosts``: the names that a request's Host header may have besides
    this machine's own and plain addresses."""

    access: AccessDesk
    sessions: Sessions
    attempts: Attempts
    headers: Mapping[str, str]
    hosts: frozenset[str] = frozenset()


def guarded(
    access: AccessDesk,
    *,
    sessions: Sessions,
    attempts: Attempts,
    hosts: Sequence[str] = (),
) -> Callable[[Dash], Sequence[Middleware]]:
    """The guard, for `dashboards.web.app.create_app`, which knows the scripts that pages hold."""

    def layers(dash_app: Dash) -> Sequence[Middleware]:
        gate = Gate(
            access=access,
            sessions=sessions,
            attempts=attempts,
            headers=safe_headers(dash_app.csp_hashes()),
            hosts=frozenset(name.lower() for name in hosts),
        )
        return [
            Middleware(Labels, headers=gate.headers),
            Middleware(Bounded),
            Middleware(Guard, gate=gate),
            Middleware(Heads),
            Middleware(Suites),
        ]

    return layers


class Labels:
    """ASGI middleware: the headers that every answer has, whoever gives it."""

    def __init__(self, app: ASGIApp, *, headers: Mapping[str, str]) -> None:
        self.app = app
        self._headers = headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(self._headers)
                if message["status"] < 400 and scope["path"].startswith(_KEPT):
                    headers.setdefault("cache-control", "no-cache")  # kept, and asked after
                else:
                    headers["cache-control"] = "no-store"
            await send(message)

        await self.app(scope, receive, answer if scope["type"] == "http" else send)


class Guard:
    """ASGI middleware: tells whatever answers who asks, or refuses."""

    def __init__(self, app: ASGIApp, gate: Gate) -> None:
        self.app = app
        self._gate = gate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        elif scope["type"] != "http":  # nothing here speaks by web sockets
            await send({"type": "websocket.close", "code": 1008})
        else:
            await self._http(scope, receive, send)

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        who, refused = None, self._refused_unseen(scope, headers)
        if refused is None and not _open(scope["path"]):
            who, refused = await self._who(scope, headers)
        if refused is not None:
            await refused(scope, receive, send)
            return
        with asked_by(who):
            await self.app(scope, receive, send)

    def _refused_unseen(self, scope: Scope, headers: Headers) -> Refused | None:
        """Whoever asks."""
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not is_ours(hosts[0], self._gate.hosts):
            return problem(
                421, "this service does not go by that name", "start it with --allow-host"
            )
        if not scope["path"].startswith("/"):  # a proxy's request, or OPTIONS *
            return problem(400, "a request names a path of this service")
        if scope["method"] not in SAFE and same_origin(headers) is False:
            return problem(403, "a page of another site may not change anything here")
        return None

    # --------------------------------------------------------------------------------- who asks
    async def _who(self, scope: Scope, headers: Headers) -> tuple[Identity | None, Refused | None]:
        scheme, _, secret = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            return await self._bearer(scope, secret.strip())
        if not await run_in_threadpool(self._gate.access.required):
            return _local(scope, headers)
        return await self._in_session(scope, headers)

    async def _bearer(self, scope: Scope, secret: str) -> tuple[Identity | None, Refused | None]:
        address = address_of(scope)
        if not self._gate.attempts.allowed(address):
            return None, _too_often()
        found = await run_in_threadpool(self._gate.access.identify, secret)
        if found is None:
            self._gate.attempts.failed(address)
            return None, _unknown("this token is not valid")
        return found, None

    async def _in_session(
        self, scope: Scope, headers: Headers
    ) -> tuple[Identity | None, Refused | None]:
        secure = scope["scheme"] == "https"
        token = self._gate.sessions.token(headers.get("cookie", ""), secure=secure)
        found = None if token is None else await run_in_threadpool(self._gate.access.holder, token)
        if found is None:
            return None, _to_login(scope) if _is_visit(scope, headers) else _unknown()
        if scope["method"] not in SAFE and same_origin(headers) is None:
            return None, problem(
                403,
                "a session changes something only from a page of this site, and this request does"
                " not say where it comes from",
                "programs show a token: Authorization: Bearer TOKEN",
            )
        return found, None


def _local(scope: Scope, headers: Headers) -> tuple[Identity | None, Refused | None]:
    """No token is needed on this machine; what a proxy passes on comes from somewhere else. (One
    that was told nothing, as nginx, says so by no header; many of them speak HTTP/1.0 then, which
    no browser does.)"""
    passed_on = forwarded(headers) or scope["http_version"] == "1.0"
    if is_loopback(address_of(scope)) and not passed_on:
        return LOCAL, None
    return None, _unknown("from another machine, or through a proxy, a token is needed")


def _open(path: str) -> bool:
    return path in OPEN or path.startswith(OPEN_BELOW)


def address_of(scope: Scope) -> str:
    client = scope.get("client")
    return client[0] if client else "unknown"


def _is_visit(scope: Scope, headers: Headers) -> bool:
    return scope["method"] in ("GET", "HEAD") and "text/html" in headers.get("accept", "")


def _to_login(scope: Scope) -> Response:
    here = scope["path"]
    query = scope.get("query_string", b"").decode("latin-1")
    wanted = quote(f"{here}?{query}" if query else here)
    return RedirectResponse(f"/login?next={wanted}", status_code=303)


def _unknown(detail: str = "a token is needed") -> Response:
    return problem(
        401,
        detail,
        "Authorization: Bearer TOKEN; `autotune token add` makes one",
        headers={"www-authenticate": "Bearer"},
    )


def _too_often() -> Response:
    return problem(
        429,
        "too many wrong tokens came from there",
        "wait a minute",
        headers={"retry-after": str(WAIT_S)},
    )
