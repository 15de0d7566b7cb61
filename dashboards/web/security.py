"""What stands between a request and everything that answers: who asks, from where, how much.

Whoever has a token shows it as ``Authorization: Bearer …``, or logs in with it and gets a session.
A browser sends the session's cookie along with requests that other sites make it send: what
changes something is taken from this site's own pages alone, by what the browser says of a request's
origin (Fetch Metadata, and the Origin header).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias
from urllib.parse import quote, urlsplit

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
from dashboards.web.attempts import Attempts
from dashboards.web.headers import safe_headers
from dashboards.web.identity import asked_by
from dashboards.web.sessions import Sessions

SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
OPEN = frozenset({"/healthz", "/readyz", "/login", "/logout", "/_favicon.ico", style.PATH})
"""Answered without knowing who asks."""
OPEN_BELOW = ("/static/",)
LOCAL = Identity(name="local", role=Role.OPERATE)
"""Whoever asks where no token is needed: someone on this machine."""
LARGEST_BODY = 1 << 20
_CACHED = ("/static/", "/_dash-component-suites/", "/_favicon.ico", style.PATH)
_LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})

Refused: TypeAlias = Response


class _TooLarge(Exception):
    """The body grew beyond `LARGEST_BODY` while it was read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """What the guard is made of. ``hosts``: the names that a request's Host header may have besides
    this machine's own and plain addresses; without that, a page of another site whose name is made
    to point here could ask in a browser's name (DNS rebinding)."""

    access: AccessDesk
    sessions: Sessions
    attempts: Attempts
    headers: Mapping[str, str]
    hosts: Sequence[str] = ()


def guarded(
    access: AccessDesk,
    *,
    sessions: Sessions,
    attempts: Attempts,
    hosts: Sequence[str] = (),
    https: bool = False,
) -> Callable[[Dash], Sequence[Middleware]]:
    """The guard, for `dashboards.web.app.create_app`, which knows the scripts that pages hold."""

    def layers(dash_app: Dash) -> Sequence[Middleware]:
        headers = safe_headers(dash_app.csp_hashes(), https=https)
        gate = Gate(
            access=access, sessions=sessions, attempts=attempts, headers=headers, hosts=hosts
        )
        return [Middleware(Guard, gate=gate)]

    return layers


class Guard:
    """ASGI middleware: the outermost but for the log."""

    def __init__(self, app: ASGIApp, gate: Gate) -> None:
        self.app = app
        self._gate = gate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        elif scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
        else:
            await self._http(scope, receive, self._with_headers(scope, send))

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        refused = self._refused_unseen(scope, headers)
        who: Identity | None = None
        if refused is None and not _open(scope["path"]):
            who, refused = await self._who(scope, headers)
        if refused is not None:
            await refused(scope, receive, send)
            return
        with asked_by(who):
            await self._bounded(scope, receive, send)

    # -------------------------------------------------------------------------- before who asks
    def _refused_unseen(self, scope: Scope, headers: Headers) -> Refused | None:
        if not self._our_host(headers.get("host", "")):
            return problem(
                421, "this service does not go by that name", "start it with --allow-host"
            )
        if scope["method"] not in SAFE and not _same_origin(headers):
            return problem(403, "a page of another site may not change anything here")
        length = headers.get("content-length", "0")
        if not length.isascii() or not length.isdigit() or int(length) > LARGEST_BODY:
            return problem(413, f"a request's body is at most {LARGEST_BODY} bytes")
        return None

    def _our_host(self, host: str) -> bool:
        name = _name_of(host)
        if name is None:
            return False
        return name in _LOCAL_NAMES or name in self._gate.hosts or _is_address(name)

    # --------------------------------------------------------------------------------- who asks
    async def _who(self, scope: Scope, headers: Headers) -> tuple[Identity | None, Refused | None]:
        scheme, _, secret = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            return await self._bearer(scope, secret.strip())
        found = await run_in_threadpool(self._without_token, headers.get("cookie", ""))
        if found is not None:
            return found, None
        if scope["method"] in ("GET", "HEAD") and "text/html" in headers.get("accept", ""):
            return None, _to_login(scope)
        return None, _unknown()

    async def _bearer(self, scope: Scope, secret: str) -> tuple[Identity | None, Refused | None]:
        address = address_of(scope)
        if not self._gate.attempts.allowed(address):
            return None, problem(429, "too many tokens that are none were tried: wait a minute")
        found = await run_in_threadpool(self._gate.access.identify, secret)
        if found is None:
            self._gate.attempts.failed(address)
            return None, _unknown()
        return found, None

    def _without_token(self, cookie: str) -> Identity | None:
        if not self._gate.access.required():
            return LOCAL
        name = self._gate.sessions.name(cookie)
        return None if name is None else self._gate.access.named(name)

    # ------------------------------------------------------------------------- around the answer
    async def _bounded(self, scope: Scope, receive: Receive, send: Send) -> None:
        """A body that does not say how long it is, is held to the same length."""
        read, began = 0, False

        async def counted() -> Message:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            if read > LARGEST_BODY:
                raise _TooLarge
            return message

        async def answer(message: Message) -> None:
            nonlocal began
            began = True
            await send(message)

        try:
            await self.app(scope, counted, answer)
        except _TooLarge:
            if not began:
                too_large = problem(413, f"a request's body is at most {LARGEST_BODY} bytes")
                await too_large(scope, receive, send)

    def _with_headers(self, scope: Scope, send: Send) -> Send:
        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in self._gate.headers.items():
                    headers[name] = value
                if not scope["path"].startswith(_CACHED):
                    headers["cache-control"] = "no-store"
            await send(message)

        return answer


def _open(path: str) -> bool:
    return path in OPEN or path.startswith(OPEN_BELOW)


def address_of(scope: Scope) -> str:
    client = scope.get("client")
    return client[0] if client else "unknown"


def _name_of(host: str) -> str | None:
    """Of a Host header, without its port; None for one that is none."""
    try:
        parts = urlsplit(f"//{host}")
        parts.port  # noqa: B018 - raises for one that is no number
    except ValueError:
        return None
    plain = parts.username is None and not parts.path and not parts.query
    return parts.hostname if plain else None


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _same_origin(headers: Headers) -> bool:
    """A browser says where a request comes from; what says nothing of it is no browser."""
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site in ("same-origin", "none")
    origin = headers.get("origin")
    return origin is None or urlsplit(origin).netloc == headers.get("host")


def _to_login(scope: Scope) -> Response:
    here = scope["path"]
    query = scope.get("query_string", b"").decode("latin-1")
    wanted = quote(f"{here}?{query}" if query else here)
    return RedirectResponse(f"/login?next={wanted}", status_code=303)


def _unknown() -> Response:
    return problem(
        401,
        "a token is needed",
        "Authorization: Bearer TOKEN; `autotune token add` makes one",
        headers={"www-authenticate": "Bearer"},
    )
