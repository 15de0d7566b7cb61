"""Callbacks that keep the event loop free: Dash runs a plain function on it, and one page would
wait for another's database."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from typing import Any, ParamSpec, TypeVar

from anyio import to_thread

P = ParamSpec("P")
R = TypeVar("R")


def in_thread(work: Callable[P, R]) -> Callable[P, Awaitable[R]]:
    """``work`` as a coroutine function that runs it in a thread, in the caller's context (Dash's
    ``ctx`` is known there)."""

    @functools.wraps(work)
    async def run(*args: P.args, **kwargs: P.kwargs) -> R:
        return await to_thread.run_sync(functools.partial(work, *args, **kwargs))

    return run


def answers(dash_app: Any, *wiring: Any, **options: Any) -> Callable[[Callable[P, R]], None]:
    """``@answers(dash_app, Output(…), Input(…))``: `Dash.callback` for a function that may ask the
    desks. What it raises of `autotune.core.errors` is told on the page (see `shell.tell`)."""

    def register(work: Callable[P, R]) -> None:
        dash_app.callback(*wiring, **options)(in_thread(work))

    return register
