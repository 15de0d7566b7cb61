"""Refusals as RFC 9457 problem details."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.routing import compile_path

from autotune.core.errors import (
    AutotuneError,
    Conflict,
    InputRefused,
    MachineBusy,
    NotFound,
    ServerFailed,
    StoreFailed,
)
from dashboards.web.identity import NotAllowed

LONGEST_WORDS = 4000
MEDIA_TYPE = "application/problem+json"
_STATUSES: tuple[tuple[type[AutotuneError], int], ...] = (
    (NotAllowed, 403),
    (NotFound, 404),
    (Conflict, 409),
    (MachineBusy, 409),
    (InputRefused, 422),
    (ServerFailed, 502),
    (StoreFailed, 503),
)


class Problem(BaseModel):
    """RFC 9457. ``detail`` says the rule that was broken and by what, ``next_step`` what to do."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    next_step: str = ""


class _AnyText(JSONResponse):
    """A problem may tell of a text that is none: half of a surrogate pair is written out."""

    media_type = MEDIA_TYPE

    def render(self, content: Any) -> bytes:
        return super().render(_printable(content))


def problem(
    status: int, detail: str, next_step: str = "", *, headers: Mapping[str, str] | None = None
) -> JSONResponse:
    body = Problem(
        title=HTTPStatus(status).phrase,
        status=status,
        detail=_shortened(detail),
        next_step=_shortened(next_step),
    )
    return _AnyText(body.model_dump(), status_code=status, headers=dict(headers or {}))


def _shortened(words: str) -> str:
    return words if len(words) <= LONGEST_WORDS else f"{words[:LONGEST_WORDS]} …"


def store_failed(error: StoreFailed) -> JSONResponse:
    """The whole of it is for the log: it tells where the database is."""
    structlog.get_logger("autotune.web").error("failed", error=str(error))
    return problem(503, error.told, "try again later; the log says why")


def answer_problems(app: FastAPI) -> None:
    """Have the application's errors told as problems."""
    app.add_exception_handler(AutotuneError, _autotune)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)


def status_of(error: AutotuneError) -> int:
    return next((status for kind, status in _STATUSES if isinstance(error, kind)), 500)


async def _autotune(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, AutotuneError)
    if isinstance(error, StoreFailed):
        return store_failed(error)
    status = status_of(error)
    if status >= 500:
        structlog.get_logger("autotune.web").error("failed", error=str(error))
    detail = str(error).removesuffix(f"\n  {error.next_step}")
    return problem(status, detail, error.next_step)


async def _invalid(_request: Request, error: Exception) -> JSONResponse:
    """Without the values: what was meant for a field may be a secret."""
    assert isinstance(error, RequestValidationError)
    return problem(422, "; ".join(f"{_place(each)}: {each['msg']}" for each in error.errors()))


def _place(error: Mapping[str, Any]) -> str:
    return ".".join(map(str, error["loc"]))


async def _http(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    if error.status_code != 405:
        return problem(error.status_code, str(error.detail), headers=error.headers)
    allowed = _methods(request)
    if not allowed:
        return problem(404, f"there is nothing at {request.url.path}")
    told = ", ".join(sorted(allowed))
    return problem(405, f"{request.url.path} knows {told}", headers={"allow": told})


def _methods(request: Request) -> set[str]:
    """Of all the routes at a path: the router itself tells those of the first one."""
    found: set[str] = set()
    for template, methods in request.app.openapi()["paths"].items():
        pattern, _, _ = compile_path(template)
        if pattern.match(request.url.path):
            found |= {method.upper() for method in methods}
    return found | ({"HEAD"} if "GET" in found else set())


def _printable(content: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value
        for key, value in content.items()
    }
