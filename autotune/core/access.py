"""Who may do what."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Role(StrEnum):
    VIEW = "view"
    OPERATE = "operate"

    def may(self, needed: Role) -> bool:
        return self is Role.OPERATE or needed is Role.VIEW


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """A token as it is known here: by the SHA-256 of its secret. Revoked ones are kept for the
    audit, under their name."""

    id: int
    name: str
    role: Role
    digest: str
    created_at: float
    last_used_at: float | None = None
    revoked_at: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Who asks: a token's name, or ``local`` on an interface that needs none. ``token`` tells the
    token from every other (empty: none), in whatever database: one of the same name is somebody
    else's, and so is one of the same number in another service's."""

    name: str
    role: Role
    token: str = ""
