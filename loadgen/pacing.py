"""Sends the requests of one phase and records when each was due, sent and answered.

Runs inside the Locust process, on gevent. Every request has a greenlet of its own; nothing that a
request waits for can hold back the next one.
"""

from __future__ import annotations

import itertools
import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
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
_MARK_S = 0.1
_BACK_OFF_S = 0.02
_DRAIN_S = 1.0

Listener: TypeAlias = Callable[[float, int, int], None]
"""Called once per answered or failed request: latency in ms from the schedule, length of the
answer, `Code` or HTTP status."""


class RequestTimedOut(GreenletExit):
    """Thrown into a request's greenlet when its time is up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """The phase is the work of ``of`` processes, of which this is number ``index`` from 0: it has
    every ``of``-th request, beginning with that one."""

    index: int = 0
    of: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A phase: a warm-up of at most ``warmup_s``, then a measured window of at most ``measure_s``;
    both are as long as that if nobody ends them before. A request times out ``timeout_s`` after it
    was due. An open loop sends for up to ``tail_s`` more. ``cap`` bounds the requests in flight."""

    warmup_s: float
    measure_s: float
    timeout_s: float
    tail_s: float
    cap: int
    share: Share = field(default_factory=Share)


class Watcher:
    """Told how a phase goes, in seconds since it began; this one does not care."""

    def opened(self, at_s: float, cpu_s: float) -> None:
        """The window opened; the process had used ``cpu_s`` of processor time."""

    def closed(self, at_s: float) -> None:
        """The window closed."""

    def sent(self, number: int, scheduled_s: float, sent_s: float) -> None:
        """A request was sent."""

    def settled(
        self, number: int, scheduled_s: float, sent_s: float, done_s: float, code: int
    ) -> None:
        """A request was answered, failed or was refused."""

    def mark(
        self, now_s: float, complete_s: float, cpu_s: float, max_in_flight: int, cap_hit: bool
    ) -> None:
        """Every `_MARK_S`; see `loadgen.stream`."""


class Phase:
    """What an open loop and a saturating one have in common: sending, recording, timing out, and
    the opening and closing of the window."""

    def __init__(
        self,
        client: InferClient,
        window: Window,
        listener: Listener,
        watcher: Watcher | None = None,
    ) -> None:
        self._client = client
        self._window = window
        self._listener = listener
        self._watcher = watcher or Watcher()
        self._start = 0.0
        self._scheduled: list[float] = []
        self._sent: list[float] = []
        self._done: list[float] = []
        self._code: list[int] = []
        self._in_flight: dict[int, Greenlet[..., None]] = {}
        self._max_in_flight = 0
        self._cap_hit = False
        self._opens_at = window.warmup_s
        self._closes_at = math.inf
        self._cpu: list[tuple[float, float]] = []
        self._first_counted = sys.maxsize
        self._unsettled = 0
        self._begun = 0
        self._next_due = math.inf

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

    # --------------------------------------------------------------------------- the window
    def open(self, at_s: float) -> None:
        """Let the window open then, in seconds since the phase began, unless it has by that time.
        The moment holds even if it is heard of late: several processes have it in common."""
        if not self._opened:
            self._opens_at = min(self._opens_at, at_s)

    def close(self, at_s: float) -> None:
        """Close the window then, unless it has closed by that time or was never open. Of a moment
        that is past, what was due since does not count."""
        if not self._opened or self._closed:
            return
        self._closes_at = max(self._opens_at, min(self._closes_at, at_s))
        self._unsettled = sum(self._counts(self._scheduled[each]) for each in self._in_flight)
        self._tick(self._now())

    @property
    def _opened(self) -> bool:
        return len(self._cpu) > 0

    @property
    def _closed(self) -> bool:
        return len(self._cpu) > 1

    def _tick(self, now: float) -> None:
        """Open and close the window when its time has come: at the planned time, however late
        this is called, so that it is exactly as long as it was meant to be."""
        if not self._opened and now >= self._opens_at:
            self._cpu.append((now, time.process_time()))
            self._closes_at = self._opens_at + self._window.measure_s
            self._first_counted = len(self._scheduled)
            self._max_in_flight = len(self._in_flight)
            self._watcher.opened(self._opens_at, self._cpu[0][1])
        if self._opened and not self._closed and now >= self._closes_at:
            self._cpu.append((now, time.process_time()))
            self._watcher.closed(self._closes_at)

    def _counts(self, due: float) -> bool:
        return self._opened and self._opens_at <= due < self._closes_at

    def _load(self) -> None:
        raise NotImplementedError

    def _now(self) -> float:
        return time.monotonic() - self._start

    # ------------------------------------------------------------------------- one request
    def _admit(self, due: float) -> None:
        """Send a request that is due, or refuse it where there are too many in flight."""
        number = len(self._scheduled)
        self._scheduled.append(due)
        self._sent.append(_NEVER)
        self._done.append(_NEVER)
        self._code.append(int(Code.PENDING))
        self._unsettled += self._counts(due)
        if len(self._in_flight) >= self._window.cap:
            self._cap_hit = self._cap_hit or self._counts(due)
            self._settle(number, Code.UNSENT)
            return
        self._in_flight[number] = gevent.spawn(self._send, number)
        if not self._closed:
            self._max_in_flight = max(self._max_in_flight, len(self._in_flight))

    def _send(self, number: int) -> None:
        self._sent[number] = self._now()
        self._watcher.sent(number, self._scheduled[number], self._sent[number])
        length = 0
        try:
            code, length = self._client.infer(self._body(number))
            self._done[number] = self._now()
        except RequestTimedOut:
            code = Code.TIMEOUT
        except (OSError, HTTPParseError) as exc:
            code = Code.CONNECTION
            self._client.keep(code, str(exc))
        self._settle(number, code)
        self._listener((self._now() - self._scheduled[number]) * 1e3, length, code)

    def _body(self, number: int) -> int:
        """The window's n-th request has the n-th body, however many there were before it, and
        whichever process sends it."""
        mine = number - self._first_counted if number >= self._first_counted else number
        return mine * self._window.share.of + self._window.share.index

    def _settle(self, number: int, code: int) -> None:
        self._code[number] = code
        self._in_flight.pop(number, None)
        self._unsettled -= self._counts(self._scheduled[number])
        self._watcher.settled(
            number, self._scheduled[number], self._sent[number], self._done[number], code
        )

    # -------------------------------------------------------------------------- housekeeping
    def _sweep(self) -> None:
        """Throw time-outs (requests are in flight in the order they were due), tend the window
        and tell the watcher how far it has come."""
        marked = 0.0
        while True:
            now = self._now()
            self._tick(now)
            while self._in_flight:
                oldest = next(iter(self._in_flight))
                if self._scheduled[oldest] + self._window.timeout_s > now:
                    break
                self._in_flight.pop(oldest).kill(RequestTimedOut, block=False)
            if now - marked >= _MARK_S:
                marked = now
                self._mark(now)
            gevent.sleep(_SWEEP_S)

    def _mark(self, now: float) -> None:
        self._watcher.mark(
            now, self._complete_s(now), time.process_time(), self._max_in_flight, self._cap_hit
        )

    def _complete_s(self, now: float) -> float:
        """The time up to which every request that was due has been sent or refused."""
        while self._begun < len(self._scheduled):
            waits = math.isnan(self._sent[self._begun]) and self._code[self._begun] == Code.PENDING
            if waits:
                return self._scheduled[self._begun]
            self._begun += 1
        return min(now, self._next_due)

    def _drain(self) -> None:
        """Let requests that are not counted end by themselves for a moment."""
        until = self._now() + _DRAIN_S
        while self._in_flight and self._now() < until:
            gevent.sleep(_SWEEP_S)

    def _recorded(self) -> RawRun:
        (opened, used_before), (closed, used_after) = self._cpu
        return RawRun(
            scheduled_s=np.array(self._scheduled, dtype=np.float64),
            sent_s=np.array(self._sent, dtype=np.float64),
            done_s=np.array(self._done, dtype=np.float64),
            code=np.array(self._code, dtype=np.int16),
            opened_s=self._opens_at,
            closed_s=self._closes_at,
            generator_cpu=(used_after - used_before) / (closed - opened),
            max_in_flight=self._max_in_flight,
            cap_hit=self._cap_hit,
            texts=self._client.texts,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """When requests are due, in seconds, ascending: in the warm-up since the phase began, in the
    window and after it since the window opened."""

    warm_up: list[float]
    window: list[float]


class OpenLoopPhase(Phase):
    """Sends at the times of two schedules, come what may; the opening of the window ends that of
    the warm-up. Goes on after the window closed until the window's last request is settled, so that
    the end of the window is loaded like the rest."""

    def __init__(
        self,
        client: InferClient,
        window: Window,
        listener: Listener,
        arrivals: Arrivals,
        watcher: Watcher | None = None,
    ) -> None:
        super().__init__(client, window, listener, watcher)
        self._arrivals = arrivals

    def _load(self) -> None:
        timer = PreciseTimer()
        try:
            self._load_before(timer)
            self._load_window(timer)
        finally:
            timer.close()

    def _load_before(self, timer: PreciseTimer) -> None:
        for due in itertools.chain(self._arrivals.warm_up, (math.inf,)):
            self._next_due = due
            while (now := self._now()) < min(due, self._opens_at):
                timer.sleep_until(self._start + min(due, self._opens_at, now + _SWEEP_S))
            self._tick(now)
            if self._opened:
                return
            self._admit(due)

    def _load_window(self, timer: PreciseTimer) -> None:
        opened = self._opens_at
        for offset in itertools.chain(self._arrivals.window, (math.inf,)):
            self._next_due = opened + offset
            if not self._wait(timer):
                return
            self._admit(self._next_due)

    def _wait(self, timer: PreciseTimer) -> bool:
        """Wait until the next request is due; False when the phase has ended before that."""
        while True:
            now = self._now()
            self._tick(now)
            due = self._next_due
            if due >= self._closes_at + self._window.tail_s:
                due = math.inf
            if now >= due:
                return True
            if self._finished(now):
                return False
            next_turn = self._closes_at if self._closes_at > now else math.inf
            timer.sleep_until(self._start + min(due, next_turn, now + _SWEEP_S))

    def _finished(self, now: float) -> bool:
        """Asked when every request that was due has been admitted."""
        latest = self._closes_at + self._window.timeout_s + _DRAIN_S
        return self._closed and (self._unsettled == 0 or now >= latest)


class SaturatePhase(Phase):
    """Keeps a number of requests in flight until the window closes."""

    def __init__(
        self,
        client: InferClient,
        window: Window,
        listener: Listener,
        in_flight: int,
        watcher: Watcher | None = None,
    ) -> None:
        super().__init__(client, window, listener, watcher)
        self._wanted = min(in_flight, window.cap)

    def _load(self) -> None:
        gevent.sleep(max(0.0, -self._now()))
        for _ in range(self._wanted):
            self._admit(self._now())
        while self._in_flight or self._unsettled or not self._closed:
            gevent.sleep(_SWEEP_S)
            self._tick(self._now())

    def _send(self, number: int) -> None:
        super()._send(number)
        if self._code[number] != Code.OK:
            gevent.sleep(_BACK_OFF_S)  # a server that refuses at once must not be spun on
        now = self._now()
        self._tick(now)
        if not self._closed:
            self._admit(now)
