"""Scripts of components' packages, which Dash serves: packed once, not for every visit (the plots'
library alone takes a tenth of a second). One that is not there is not found: Dash takes it for an
error."""

from __future__ import annotations

from dataclasses import dataclass, field

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dashboards.api.problems import problem

SUITES = "/_dash-component-suites/"
MOST_BYTES = 16 << 20
"""Of all that is kept. Any name of a version is a path of its own, and they do not all fit."""


@dataclass(slots=True)
class _Answer:
    start: Message = field(default_factory=dict)
    body: bytes = b""

    @property
    def status(self) -> int:
        return int(self.start.get("status", 500))

    @property
    def headers(self) -> Headers:
        return Headers(raw=self.start.get("headers", []))


class Suites:
    """ASGI middleware, around what packs."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self._kept: dict[tuple[str, bool], _Answer] = {}
        self._bytes = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].startswith(SUITES):
            await self.app(scope, receive, send)
            return
        asked = Headers(scope=scope)
        key = (scope["path"], "gzip" in asked.get("accept-encoding", ""))
        answer = self._kept.get(key) if scope["method"] == "GET" else None
        if answer is None:
            answer = await self._made(scope, receive)
            self._keep(key, scope, answer)
        if answer.status >= 500:
            await problem(404, "there is no such script")(scope, receive, send)
        elif asked.get("if-none-match", "-") == answer.headers.get("etag"):
            await Response(status_code=304)(scope, receive, send)
        else:
            await send(_copied(answer.start))
            await send({"type": "http.response.body", "body": answer.body})

    async def _made(self, scope: Scope, receive: Receive) -> _Answer:
        """A script is a file of a package: it is in memory as a whole anyway."""
        answer = _Answer()
        pieces: list[bytes] = []

        async def heard(message: Message) -> None:
            if message["type"] == "http.response.start":
                answer.start = message
            else:
                pieces.append(message.get("body", b""))

        await self.app(scope, receive, heard)
        answer.body = b"".join(pieces)
        return answer

    def _keep(self, key: tuple[str, bool], scope: Scope, answer: _Answer) -> None:
        fits = self._bytes + len(answer.body) <= MOST_BYTES
        if scope["method"] == "GET" and answer.status == 200 and fits and key not in self._kept:
            self._kept[key] = answer
            self._bytes += len(answer.body)


def _copied(start: Message) -> Message:
    """What stands around this one adds headers to what it is sent."""
    return {**start, "headers": list(start["headers"])}
