"""How answers are written."""

from __future__ import annotations

import json
from typing import Any

from fastapi.responses import JSONResponse

from autotune.core.plain import finite
from dashboards.api.problems import MEDIA_TYPE, Problem


class FiniteJson(JSONResponse):
    """JSON knows no NaN and no infinity: what is unknown is null."""

    def render(self, content: Any) -> bytes:
        return json.dumps(finite(content), ensure_ascii=False, allow_nan=False).encode()


def told(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The problems that a route may answer with, for its description."""
    schema = {"model": Problem, "content": {MEDIA_TYPE: {}}}
    words = {
        400: "The body cannot be read.",
        401: "A token is needed, or this one is not valid.",
        403: "The token's role does not allow it, or another site asks.",
        404: "There is no such thing.",
        409: "It does not go with what there is.",
        413: "The body is too large.",
        421: "The service does not go by that name.",
        422: "It was refused, with the rule, the value and the next step.",
        429: "Too many wrong tokens came from there.",
        502: "The server that it is about does not answer as it should.",
        503: "The database does not answer, or cannot be written.",
    }
    return {status: {**schema, "description": words[status]} for status in statuses}
