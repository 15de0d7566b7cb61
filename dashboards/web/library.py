"""The plots' library at an address that names what it holds: browsers keep it then, with what they
have compiled of it, and do not ask again."""

from __future__ import annotations

import hashlib
from functools import cache

from dash.fingerprint import build_fingerprint
from fastapi import FastAPI
from plotly.offline import get_plotlyjs_version
from starlette.responses import Response

from dashboards.plots_library import script
from dashboards.web.suites import SUITES


@cache
def address() -> str:
    """Among the components' scripts, in the form that Dash gives to those."""
    digest = hashlib.sha256(script().encode()).hexdigest()[:12]
    version = get_plotlyjs_version()
    name = build_fingerprint("package_data/plotly.min.js", version, digest)  # type: ignore[no-untyped-call]
    return f"{SUITES}plotly/{name}"


def serve(app: FastAPI) -> None:
    """Before Dash, whose own address of it is another."""

    def library() -> Response:
        kept = {"cache-control": "public, max-age=31536000, immutable"}
        return Response(script(), media_type="text/javascript", headers=kept)

    app.add_api_route(address(), library, include_in_schema=False)
