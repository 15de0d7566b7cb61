"""A timer that wakes a greenlet within microseconds.

libev's epoll backend rounds every wait up to whole milliseconds, which alone would make requests
half a millisecond late. Linux's timerfd is a descriptor that becomes readable at a given time, so
that the event loop wakes for it as it does for an answer. Python has it from 3.13 on; before, it
is called through libc.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time

import gevent
from gevent.hub import get_hub

_CLOCK_MONOTONIC = 1
_TFD_NONBLOCK_CLOEXEC = os.O_NONBLOCK | getattr(os, "O_CLOEXEC", 0)
_TFD_TIMER_ABSTIME = 1


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _Itimerspec(ctypes.Structure):
    _fields_ = (("interval", _Timespec), ("value", _Timespec))


class PreciseTimer:
    """Sleeps one greenlet until a time of `time.monotonic`; falls back to gevent's own timer
    (millisecond steps) where there is no timerfd."""

    def __init__(self) -> None:
        self._fd = _create()
        self._spec = _Itimerspec()
        self._watcher = get_hub().loop.io(self._fd, 1) if self._fd >= 0 else None

    def sleep_until(self, when: float) -> None:
        """Return at ``when``, at once if that is past."""
        if when <= time.monotonic():
            return
        if self._watcher is None:
            gevent.sleep(max(0.0, when - time.monotonic()))
            return
        seconds = int(when)
        self._spec.value.seconds = seconds
        self._spec.value.nanoseconds = int((when - seconds) * 1e9)
        _libc.timerfd_settime(self._fd, _TFD_TIMER_ABSTIME, ctypes.byref(self._spec), None)
        get_hub().wait(self._watcher)
        os.read(self._fd, 8)

    def close(self) -> None:
        if self._watcher is not None:
            self._watcher.stop()
            self._watcher.close()
            self._watcher = None
            os.close(self._fd)


_libc = ctypes.CDLL(None, use_errno=True)


def _create() -> int:
    if not sys.platform.startswith("linux") or not hasattr(_libc, "timerfd_create"):
        return -1
    return int(_libc.timerfd_create(_CLOCK_MONOTONIC, _TFD_NONBLOCK_CLOEXEC))
