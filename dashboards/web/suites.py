"""A script of a component's package that is not there is not found: Dash takes it for an error."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dashboards.api.problems import problem

SUITES = "/_dash-component-suites/"


class Suites:
    """ASGI middleware."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].startswith(SUITES):
            await self.app(scope, receive, send)
            return
        failed = False

        async def answer(message: Message) -> None:
            nonlocal failed
            failed = failed or message.get("status", 0) >= 500
            if not failed:
                await send(message)

        await self.app(scope, receive, answer)
        if failed:
            await problem(404, "there is no such script")(scope, receive, send)
