"""Who asks, as a dependency of routes."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, HTTPException

from autotune.core.access import Identity, Role
from dashboards.web.identity import current


def viewer() -> Identity:
    identity = current()
    if identity is None:
        raise HTTPException(401, "a token is needed")
    return identity


def operator(identity: Annotated[Identity, Depends(viewer)]) -> Identity:
    if not identity.role.may(Role.OPERATE):
        raise HTTPException(403, f"the role {identity.role} may look, not change anything")
    return identity


Viewer = Annotated[Identity, Depends(viewer)]
Operator = Annotated[Identity, Depends(operator)]
