"""Sends the requests of one phase and records when each was due, sent and answered.

Runs inside the Locust process, on gevent. Every request has a greenlet of its own; nothing that a
request waits for can hold back the next one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import gevent
import numpy as np
from gevent import Greenlet, GreenletExit
from geventhttpclient.response import HTTPParseError

from loadgen.results import Code, RawRun
from loadgen.timer import PreciseTimer
from loadgen.transport import InferClient

_NEVER = float("nan")
_SWEEP_S = 0.01
_BACK_OFF_S = 0.02
_DRAIN_S = 1.0

Listener: TypeAlias = Callable[[float, int, int], None]
"""Called once per answered or failed request: latency in ms from the schedule, length of the
answer, `Code` or HTTP status."""


class RequestTimedOut(GreenletExit):
    """Thrown into a request's greenlet when its time is up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A phase: ``warmup_s``, then the measured window; a request times out ``timeout_s`` after
    it was due. ``cap`` bounds the requests in flight."""

    warmup_s: float
    measure_s: float
    timeout_s: float
    cap: int

    @property
    def closes_s(self) -> float:
        return self.warmup_s + self.measure_s


class Phase:
    """What an open loop and a saturating one have in common: sending, recording, timing out."""

    def __init__(self, client: InferClient, window: Window, listener: Listener) -> None:
        self._client = client
        self._window = window
        self._listener = listener
        self._start = 0.0
        self._scheduled: list[float] = []
        self._sent: list[float] = []
        self._done: list[float] = []
        self._code: list[int] = []
        self._in_flight: dict[int, Greenlet[..., None]] = {}
        self._max_in_flight = 0
        self._cap_hit = False
        self._cpu: list[tuple[float, float]] = []

    def run(self, start: float) -> RawRun:
        """Load from ``start`` (a time of `time.monotonic`) on, until every request of the window
        has been answered or has timed out."""
        self._start = start
        sweeper = gevent.spawn(self._sweep)
        try:
            self._load()
            self._drain()
        finally:
            sweeper.kill()
            gevent.killall(list(self._in_flight.values()))
            self._client.close()
        return self._recorded()

    def _load(self) -> None:
        raise NotImplementedError

    def _now(self) -> float:
        return time.monotonic() - self._start

    # ------------------------------------------------------------------------- one request
    def _spawn(self, number: int) -> None:
        self._in_flight[number] = gevent.spawn(self._send, number)
        self._max_in_flight = max(self._max_in_flight, len(self._in_flight))

    def _send(self, number: int) -> None:
        self._sent[number] = self._now()
        length = 0
        try:
            code, length = self._client.infer(number)
            self._done[number] = self._now()
        except RequestTimedOut:
            code = Code.TIMEOUT
        except (OSError, HTTPParseError):
            code = Code.CONNECTION
        self._settle(number, code)
        self._listener((self._now() - self._scheduled[number]) * 1e3, length, code)

    def _settle(self, number: int, code: int) -> None:
        self._code[number] = code
        self._in_flight.pop(number, None)

    # -------------------------------------------------------------------------- housekeeping
    def _sweep(self) -> None:
        """Throw time-outs (requests are in flight in the order they were due) and read the
        processor clock when the window opens and closes."""
        while True:
            now = self._now()
            while self._in_flight:
                oldest = next(iter(self._in_flight))
                if self._scheduled[oldest] + self._window.timeout_s > now:
                    break
                self._in_flight.pop(oldest).kill(RequestTimedOut, block=False)
            marks = (self._window.warmup_s, self._window.closes_s)
            if len(self._cpu) < 2 and now >= marks[len(self._cpu)]:
                self._cpu.append((now, time.process_time()))
            gevent.sleep(_SWEEP_S)

    def _drain(self) -> None:
        """Let requests that are not counted end by themselves for a moment."""
        until = self._now() + _DRAIN_S
        while self._in_flight and self._now() < until:
            gevent.sleep(_SWEEP_S)

    def _recorded(self) -> RawRun:
        return RawRun(
            scheduled_s=np.array(self._scheduled, dtype=np.float64),
            sent_s=np.array(self._sent, dtype=np.float64),
            done_s=np.array(self._done, dtype=np.float64),
            code=np.array(self._code, dtype=np.int16),
            generator_cpu=self._cpu_share(),
            max_in_flight=self._max_in_flight,
            cap_hit=self._cap_hit,
        )

    def _cpu_share(self) -> float:
        (opened, used_before), (closed, used_after) = self._cpu
        return (used_after - used_before) / (closed - opened)


class OpenLoopPhase(Phase):
    """Sends at the times of a schedule, come what may, and goes on after the window closed until
    the window's last request is settled, so that the end of the window is loaded like the rest."""

    def __init__(
        self, client: InferClient, window: Window, listener: Listener, schedule: list[float]
    ) -> None:
        super().__init__(client, window, listener)
        count = len(schedule)
        self._scheduled = schedule
        self._sent = [_NEVER] * count
        self._done = [_NEVER] * count
        self._code = [int(Code.PENDING)] * count
        self._unsettled = sum(window.warmup_s <= due < window.closes_s for due in schedule)

    def _load(self) -> None:
        timer = PreciseTimer()
        try:
            for number, due in enumerate(self._scheduled):
                while (now := self._now()) < due:
                    if self._finished(now):
                        return
                    timer.sleep_until(self._start + min(due, now + _SWEEP_S))
                self._admit(number, due)
            latest = self._window.closes_s + self._window.timeout_s + _DRAIN_S
            while not self._finished(self._now()) and self._now() < latest:
                gevent.sleep(_SWEEP_S)
        finally:
            timer.close()

    def _admit(self, number: int, due: float) -> None:
        if len(self._in_flight) < self._window.cap:
            self._spawn(number)
            return
        self._cap_hit = self._cap_hit or due < self._window.closes_s
        self._settle(number, Code.UNSENT)

    def _finished(self, now: float) -> bool:
        return now >= self._window.closes_s and self._unsettled == 0 and len(self._cpu) == 2

    def _settle(self, number: int, code: int) -> None:
        super()._settle(number, code)
        if self._window.warmup_s <= self._scheduled[number] < self._window.closes_s:
            self._unsettled -= 1


class SaturatePhase(Phase):
    """Keeps a number of requests in flight until the window closes."""

    def __init__(
        self, client: InferClient, window: Window, listener: Listener, in_flight: int
    ) -> None:
        super().__init__(client, window, listener)
        self._wanted = min(in_flight, window.cap)

    def _load(self) -> None:
        gevent.sleep(max(0.0, -self._now()))
        for _ in range(self._wanted):
            self._next()
        while self._in_flight or self._now() < self._window.closes_s or len(self._cpu) < 2:
            gevent.sleep(_SWEEP_S)

    def _next(self) -> None:
        number = len(self._scheduled)
        self._scheduled.append(self._now())
        self._sent.append(_NEVER)
        self._done.append(_NEVER)
        self._code.append(int(Code.PENDING))
        self._spawn(number)

    def _send(self, number: int) -> None:
        super()._send(number)
        if self._code[number] != Code.OK:
            gevent.sleep(_BACK_OFF_S)  # a server that refuses at once must not be spun on
        if self._now() < self._window.closes_s:
            self._next()
