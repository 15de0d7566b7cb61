"""Desks that do only for operators what changes something or tells too much, whatever page or route
asks them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import Any, ParamSpec, TypeVar, cast

from autotune.service_ports import Desks
from dashboards.web.identity import refuse_viewers

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

ACTING = {
    "studies": frozenset({"submit"}),
    "jobs": frozenset({"cancel"}),
    "schedules": frozenset({"add", "set_state", "remove", "run_now"}),
    "promotions": frozenset({"propose", "approve", "reject", "roll_back"}),
}
"""By desk, what changes something: all that takes ``by``."""
PRIVATE = {"jobs": frozenset({"log"})}
"""What only operators read."""


def for_operators(desks: Desks) -> Desks:
    """NotAllowed for what acts or is private, unless the request's asker may operate."""
    return replace(
        desks,
        studies=_held(desks.studies, ACTING["studies"]),
        jobs=_held(desks.jobs, ACTING["jobs"] | PRIVATE["jobs"]),
        schedules=_held(desks.schedules, ACTING["schedules"]),
        promotions=_held(desks.promotions, ACTING["promotions"]),
    )


def _held(desk: T, acting: frozenset[str]) -> T:
    return cast("T", _Held(desk, acting))


class _Held:
    def __init__(self, desk: object, acting: frozenset[str]) -> None:
        self._desk = desk
        self._acting = acting

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._desk, name)
        return _by_operators(found) if name in self._acting else found


def _by_operators(act: Callable[P, R]) -> Callable[P, R]:
    @wraps(act)
    def acted(*args: P.args, **kwargs: P.kwargs) -> R:
        refuse_viewers()
        return act(*args, **kwargs)

    return acted
