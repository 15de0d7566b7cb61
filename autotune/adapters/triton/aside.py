"""Calls that an interruption does not break off half-way.

A signal's handler may raise at any line of the main thread, also where a library has taken a lock
and not yet begun to guard it: gRPC's was then held for ever, and with it every later call.
"""

from __future__ import annotations

import _thread
import time
from collections.abc import Callable, Sequence
from typing import NoReturn, TypeVar

T = TypeVar("T")

_FIRST_POLL_S = 0.001
_LONGEST_POLL_S = 0.02


def aside(call: Callable[[], T], *, within_s: float, to_the_end: bool = False) -> T:
    """What the call comes to, made by a thread of its own; TimeoutError if it has not ended in
    time. ``to_the_end``: whoever is interrupted waits for its end all the same.

    There is no lock between the two threads, for the same reason."""
    ended: list[Callable[[], T]] = []

    def made() -> None:
        try:
            value = call()
        except BaseException as error:  # noqa: BLE001 - it is the caller's
            ended.append(_raising(error))
        else:
            ended.append(lambda: value)

    deadline = time.monotonic() + within_s
    _thread.start_new_thread(made, ())
    try:
        _wait(ended, deadline)
    except BaseException:
        if to_the_end:
            _wait(ended, deadline)
        raise
    if not ended:
        raise TimeoutError(f"not ended within {within_s:g} s")
    return ended[0]()


def _raising(error: BaseException) -> Callable[[], NoReturn]:
    def again() -> NoReturn:
        raise error

    return again


def _wait(ended: Sequence[object], deadline: float) -> None:
    pause_s = _FIRST_POLL_S
    while not ended and time.monotonic() < deadline:
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_POLL_S)
