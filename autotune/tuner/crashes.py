"""A server that crashes before anything is measured is started once more.

On a machine that is overloaded Triton has been seen to die while it loads what it loads well a
minute later: one crash there says nothing of a candidate, and two do. Under load every crash
counts: whoever puts the candidate into service would have it, too. What a server refuses it refuses
again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from autotune.core.errors import CandidateFailed, ServerCrashed, ServerFailed
from autotune.ports import Server

T = TypeVar("T")


def despite_a_crash(step: Callable[[], T], server: Server, tell: Callable[[str], None]) -> T:
    """What the step comes to, which begins with `Server.start` or `Server.apply`; where the server
    crashes in it, what it comes to when it is taken again, which is told: a server that has crashed
    is started anew by both. What then goes wrong passes, as does all that is no crash;
    ServerCrashed says that it was the second time.

    It is not closed in between: what is tuned where it is served would be put back."""
    try:
        return step()
    except ServerFailed as exc:
        crash = _crash(exc, server)
        if crash is None:
            raise
        tell(f"the server crashed, and is started once more: {crash.rule}")
        return _second(step)


def revive(server: Server, tell: Callable[[str], None] = lambda _: None) -> None:
    """Start it if it does not live."""
    if not server.alive():
        despite_a_crash(server.start, server, tell)


def _second(step: Callable[[], T]) -> T:
    try:
        return step()
    except ServerCrashed as exc:
        raise ServerCrashed(
            f"it crashed twice: {exc.rule}",
            value=exc.value,
            next_step=exc.next_step
            or "look into the server's log; if other work keeps this machine busy, stop that",
        ) from exc


def _crash(failure: ServerFailed, server: Server) -> ServerCrashed | None:
    """The crash that a failure is or comes of: a client knows only that it has no answer."""
    if isinstance(failure, ServerCrashed):
        return failure
    if isinstance(failure, CandidateFailed) or server.alive():
        return None
    try:
        server.mark()
    except ServerCrashed as crash:
        return crash
    except ServerFailed:
        pass
    return None
