"""Pages have addresses of their own, and an address that has none is answered with 404."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dashboards.web.routing import Page, find


class PagePaths:
    """Dash serves one document, at ``/``, and reads the address in the browser. A page's path gets
    that document; so does a path that nobody answers, with its 404, where a browser asks."""

    def __init__(self, app: ASGIApp, pages: Sequence[Page]) -> None:
        self._app = app
        self._pages = pages

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] not in ("GET", "HEAD"):
            await self._app(scope, receive, send)
        elif find(self._pages, scope["path"]):
            await self._app(_at_root(scope), receive, send)
        elif "text/html" in Headers(scope=scope).get("accept", ""):
            await self._or_lost(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _or_lost(self, scope: Scope, receive: Receive, send: Send) -> None:
        lost = False

        async def heard(message: Message) -> None:
            nonlocal lost
            lost = lost or message.get("status") == 404
            if not lost:
                await send(message)

        async def not_found(message: Message) -> None:
            await send({**message, "status": 404} if "status" in message else message)

        await self._app(scope, receive, heard)
        if lost:
            await self._app(_at_root(scope), receive, not_found)


def _at_root(scope: Scope) -> Scope:
    return {**scope, "path": "/", "raw_path": b"/"}
