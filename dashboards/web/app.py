"""One FastAPI application: Dash's pages, and what else the service answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from dash import Dash
from fastapi import APIRouter, FastAPI, HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import Receive, Scope, Send

from autotune.service_ports import Desks
from dashboards.web import library, shell, style
from dashboards.web.page_paths import PagePaths
from dashboards.web.pages import PAGES
from dashboards.web.routing import Page

STATIC = Path(__file__).parent / "static"

_INDEX = """<!DOCTYPE html>
<html lang="en">
<head>
{%metas%}
<title>{%title%}</title>
{%favicon%}
<script src="/static/theme.js" data-plots="{{plots}}"></script>
{%css%}
</head>
<body>
<noscript>The dashboard needs JavaScript; <code>autotune show</code> does not.</noscript>
{%app_entry%}
{%config%}
{%scripts%}
<script src="/static/dashboard.js"></script>
<script src="/static/acts.js"></script>
{%renderer%}
</body>
</html>
"""


def no_middleware(_dash_app: Dash) -> Sequence[Middleware]:
    return ()


def create_app(
    desks: Desks,
    *,
    title: str = "autotune",
    pages: Sequence[Page] = PAGES,
    routers: Sequence[APIRouter] = (),
    middleware: Callable[[Dash], Sequence[Middleware]] = no_middleware,
    **settings: Any,
) -> FastAPI:
    """Pages at their paths, ``routers`` beside them, ``middleware`` around all of it, the first
    one outermost. It is made from the Dash application, when every callback is there: what
    `Dash.csp_hashes` gives is complete then. ``settings`` are FastAPI's own (``version``,
    ``openapi_url``, ``lifespan`` …); its pages of documentation come from another host and are off.
    """
    app = FastAPI(title=title, **{"docs_url": None, "redoc_url": None, **settings})
    for router in routers:
        app.include_router(router)
    sheet = style.sheet()
    _serve_static(app, sheet)
    library.serve(app)
    dash_app = Dash(
        "autotune",
        server=app,  # type: ignore[arg-type]
        backend="fastapi",
        title=title,
        update_title="",
        serve_locally=True,
        include_assets_files=False,
        assets_folder=str(STATIC),
        assets_url_path="static",
        external_stylesheets=[style.address(sheet)],
        index_string=_INDEX.replace("{{plots}}", library.address()),
        suppress_callback_exceptions=True,
        on_error=shell.tell,
    )
    # Told of web sockets, pages try to connect again and again, whether callbacks use them or not.
    dash_app.backend.websocket_capability = False
    dash_app.layout = shell.shell(pages, title)
    shell.register(dash_app, desks, pages, title)
    for page in pages:
        page.register(dash_app, desks)
    app.add_api_route("/{path:path}", _nowhere, include_in_schema=False)
    app.add_middleware(PagePaths, pages=pages)
    app.add_middleware(Packing, minimum_size=1000, compresslevel=4)
    for each in reversed(middleware(dash_app)):
        app.add_middleware(each.cls, *each.args, **each.kwargs)
    return app


class Packing(GZipMiddleware):
    """Packs answers, but for archives, which are packed already."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        archive = scope["type"] == "http" and scope["path"].endswith(".zip")
        await (self.app if archive else super().__call__)(scope, receive, send)


def _serve_static(app: FastAPI, sheet: str) -> None:
    async def styles() -> Response:
        kept = {"cache-control": "public, max-age=31536000, immutable"}  # its address names it
        return Response(sheet, media_type="text/css", headers=kept)

    app.add_api_route(style.PATH, styles, include_in_schema=False)
    app.mount("/static", StaticFiles(directory=STATIC), name="own-static")


async def _nowhere(path: str) -> None:
    """Before Dash's own answer to any path, which is always a page."""
    raise HTTPException(404, detail=f"there is nothing at /{path}")
