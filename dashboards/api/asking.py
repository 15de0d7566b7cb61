"""Who asks, as a dependency of routes."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, HTTPException

from autotune.core.access import Identity
from dashboards.web.identity import current, refuse_viewers


def viewer() -> Identity:
    identity = current()
    if identity is None:
        raise HTTPException(401, "a token is needed", {"www-authenticate": "Bearer"})
    return identity


def operator(identity: Annotated[Identity, Depends(viewer)]) -> Identity:
    refuse_viewers()
    return identity


Viewer = Annotated[Identity, Depends(viewer)]
Operator = Annotated[Identity, Depends(operator)]
