"""Ctrl-C and SIGTERM become an `Interrupted`, so that every ``finally`` ends what was started."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from autotune.core.errors import Interrupted

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def interruptible() -> Iterator[None]:
    """Raise Interrupted in the main thread at the first signal; further ones are ignored while
    the run cleans up after itself (it does so within bounded time). A signal that is ignored
    already stays so: ``nohup`` means it."""
    before = {each: signal.getsignal(each) for each in SIGNALS}
    heard = [each for each in SIGNALS if before[each] is not signal.SIG_IGN]

    def interrupt(signum: int, _frame: FrameType | None) -> None:
        for each in heard:
            signal.signal(each, signal.SIG_IGN)
        raise Interrupted(f"stopped by {signal.Signals(signum).name}")

    for each in heard:
        signal.signal(each, interrupt)
    try:
        yield
    finally:
        for each in heard:
            signal.signal(each, before[each])
