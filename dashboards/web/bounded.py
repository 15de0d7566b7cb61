"""Every request gets an answer, and none may send more than so much."""

from __future__ import annotations

import structlog
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from autotune.core.errors import StoreFailed
from dashboards.api.problems import problem, store_failed

LARGEST_BODY = 1 << 20
_DIGITS = 19


class Bounded:
    """ASGI middleware. A body that does not say how long it is, is held to the same length; what
    the application says to one that was cut short is not passed on. An error that nobody has
    answered is told in the log, and in the answer only that there was one."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
        elif _says_too_much(Headers(scope=scope).get("content-length", "0")):
            await _too_large()(scope, receive, send)
        else:
            await _Exchange(receive, send).run(self.app, scope)


class _Exchange:
    """One request and its answer."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self._read = 0
        self._began = False

    async def run(self, app: ASGIApp, scope: Scope) -> None:
        try:
            await app(scope, self._counted, self._answer)
        except StoreFailed as error:
            await self._instead(scope, store_failed(error))
        except Exception as error:
            if self._began:  # the server cuts the connection: half an answer is none
                raise
            if not self._too_long:
                structlog.get_logger("autotune.web").exception("failed", error=type(error).__name__)
                await self._instead(scope, problem(500, "this did not work", "see the log"))
        if self._too_long and not self._began:
            await _too_large()(scope, self._receive, self._send)

    @property
    def _too_long(self) -> bool:
        return self._read > LARGEST_BODY

    async def _instead(self, scope: Scope, answer: Response) -> None:
        if not self._began and not self._too_long:
            await answer(scope, self._receive, self._send)

    async def _counted(self) -> Message:
        message = await self._receive()
        self._read += len(message.get("body", b""))
        if self._too_long:
            raise HTTPException(413)
        return message

    async def _answer(self, message: Message) -> None:
        if self._began or not self._too_long:
            self._began = True
            await self._send(message)


def _says_too_much(length: str) -> bool:
    plain = length.isascii() and length.isdigit() and len(length) <= _DIGITS
    return not plain or int(length) > LARGEST_BODY


def _too_large() -> Response:
    return problem(413, f"a request's body is at most {LARGEST_BODY} bytes")
