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

from autotune.core.errors import AutotuneError, Conflict, InputRefused, NotFound, StoreFailed

MEDIA_TYPE = "application/problem+json"


class Problem(BaseModel):
    """RFC 9457. ``detail`` says the rule that was broken and by what, ``next_step`` what to do."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    next_step: str = ""


def problem(
    status: int, detail: str, next_step: str = "", *, headers: Mapping[str, str] | None = None
) -> JSONResponse:
    body = Problem(
        title=HTTPStatus(status).phrase, status=status, detail=detail, next_step=next_step
    )
    return JSONResponse(
        body.model_dump(), status_code=status, media_type=MEDIA_TYPE, headers=dict(headers or {})
    )


def answer_problems(app: FastAPI) -> None:
    """Have the application's errors told as problems."""
    app.add_exception_handler(AutotuneError, _autotune)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)


def status_of(error: AutotuneError) -> int:
    kinds: tuple[tuple[type[AutotuneError], int], ...] = (
        (NotFound, 404),
        (Conflict, 409),
        (InputRefused, 422),
        (StoreFailed, 503),
    )
    return next((status for kind, status in kinds if isinstance(error, kind)), 502)


async def _autotune(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, AutotuneError)
    status = status_of(error)
    if status >= 500:
        structlog.get_logger("autotune.api").error("failed", error=str(error))
    detail = str(error).removesuffix(f"\n  {error.next_step}")
    return problem(status, detail, error.next_step)


async def _invalid(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    told = "; ".join(f"{_place(each)}: {each['msg']}" for each in error.errors())
    return problem(422, told)


def _place(error: Mapping[str, Any]) -> str:
    return ".".join(map(str, error["loc"]))


async def _http(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    return problem(error.status_code, str(error.detail), headers=error.headers)
