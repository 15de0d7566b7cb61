"""Who is asking: known to whatever answers a request, pages' callbacks included."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from autotune.core.access import Identity, Role
from autotune.core.errors import InputRefused

_asking: ContextVar[Identity | None] = ContextVar("autotune_asking", default=None)


class NotAllowed(InputRefused):
    """The asker's role does not allow it."""


@contextmanager
def asked_by(identity: Identity | None) -> Iterator[None]:
    """For the time of one request."""
    token = _asking.set(identity)
    try:
        yield
    finally:
        _asking.reset(token)


def current() -> Identity | None:
    """Who asks in this request; None outside of one, and on the paths that are open to all."""
    return _asking.get()


def may_operate() -> bool:
    identity = current()
    return identity is not None and identity.role.may(Role.OPERATE)


def refuse_viewers() -> None:
    """NotAllowed unless whoever asks may change something."""
    if not may_operate():
        raise NotAllowed(
            "the role view may look, and change nothing",
            next_step="log in with a token of the role operate",
        )
