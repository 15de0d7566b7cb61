"""Takes one phase of the load processes from its start to its result.

Tells the observer when the window opens and closes, ends the warm-up when a steady state is seen,
and asks at every look whether the window is enough. All times are of `time.monotonic`, which
the load process reads too; a clock that is set changes nothing here.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from autotune.core.measurement import Ended
from autotune.core.steady import GROWTH_SHARE, steady
from autotune.ports import LoadPlan, OpenLoop, WindowObserver
from loadgen.arrivals import looks_s
from loadgen.process import LoadFleet
from loadgen.results import RawRun, merged, summarise
from loadgen.stream import StreamsReader

_FIRST_CHECK_S = 0.5
_CHECK_S = 0.25
_POLL_S = 0.05
_PATIENCE = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """What became of a phase. ``steady``: whether a steady state was seen before the window opened
    (None: not looked for); ``ended``: why it closed."""

    recorded: RawRun
    steady: bool | None
    ended: Ended


@dataclass(frozen=True, slots=True, kw_only=True)
class Conduct:
    """A phase that begins at ``start``, a time of `time.monotonic`. ``grace_s`` is by how much the
    processes may be late for any of their moments, by the plan; ``streams`` and ``results`` are the
    files that each of them writes."""

    fleet: LoadFleet
    plan: LoadPlan
    window: WindowObserver
    start: float
    grace_s: float
    streams: Sequence[Path]
    results: Sequence[Path]

    def run(self) -> Course:
        """To the end of the phase. LoadFailed if the process dies or is too late; what the observer
        raises passes through."""
        plan, fleet, grace_s = self.plan, self.fleet, self.grace_s
        reader = StreamsReader(self.streams)
        was_steady = self._warm_up(reader) if plan.until_steady else None
        opened = fleet.expect("opened", self.start + plan.warmup_s + grace_s)
        self.window.opened()
        answer = self._looks(reader, opened)
        closed = fleet.expect("closed", opened[0]["at"] + plan.measure_s + grace_s)
        self.window.closed()
        done = fleet.expect("done", closed[0]["at"] + plan.timeout_s + grace_s)
        recorded = merged([_read(path, of) for path, of in zip(self.results, done, strict=True)])
        for path in self.results:
            path.unlink()
        if recorded.closed_s >= recorded.opened_s + plan.measure_s:
            answer = None  # it came too late to close anything
        return Course(recorded=recorded, steady=was_steady, ended=answer or Ended.MAXIMUM)

    def _warm_up(self, reader: StreamsReader) -> bool:
        """Have the window opened as soon as a steady state is seen, or it is seen that there will
        be none, since the requests in flight only grow: whether one was, before it opened."""
        check = self.start + _FIRST_CHECK_S
        while not self.fleet.wait(check):
            reader.read()
            was_steady = steady(reader.latencies_ms())
            if was_steady or self._grows(reader):
                self.fleet.send({"do": "open", "at_s": self._since_start_s() + self.fleet.lead_s})
                return was_steady
            check = max(check + _CHECK_S, time.monotonic())
        return False

    def _since_start_s(self) -> float:
        return max(0.0, time.monotonic() - self.start)

    def _closing_s(self) -> float:
        """Now, where one process hears of it; a moment that all of several hear of before it."""
        alone = len(self.fleet.members) == 1
        return self._since_start_s() + (0.0 if alone else self.fleet.lead_s)

    def _grows(self, reader: StreamsReader) -> bool:
        mode, growth = self.plan.mode, reader.growth_qps()
        return (
            isinstance(mode, OpenLoop)
            and growth is not None
            and growth.low > GROWTH_SHARE * mode.qps
        )

    def _looks(self, reader: StreamsReader, opened: Sequence[dict[str, Any]]) -> Ended | None:
        """Have the window closed when the observer has enough of it: its answer; None when the
        window closes by itself."""
        moments = looks_s(self.plan.first_look_s, self.plan.measure_s)
        for look_s, next_s in itertools.pairwise(moments):
            if time.monotonic() >= opened[0]["at"] + next_s:
                continue  # the observer took so long that there is more to see already
            so_far = self._so_far(reader, opened, look_s)
            if so_far is None:
                continue
            result = summarise(so_far, timeout_s=self.plan.timeout_s, histogram=False)
            answer = self.window.enough(result)
            if answer is not None:
                self.fleet.send({"do": "close", "at_s": self._closing_s()})
                return answer
        return None

    def _so_far(
        self, reader: StreamsReader, opened: Sequence[dict[str, Any]], look_s: float
    ) -> RawRun | None:
        """The window so far, as soon as ``look_s`` of it are known: what was due in them is mostly
        answered soon after. Where it is not, what is known a little later. None if the window
        closes before, and while its very first requests are open."""
        at, opened_s = opened[0]["at"], opened[0]["at_s"]
        moment, latest = at + look_s, at + (1 + _PATIENCE) * look_s
        used = [each["cpu_s"] for each in opened]
        while not self.fleet.wait(moment):
            reader.read()
            run = reader.window(opened_s=opened_s, cpu_opened_s=used, tail_s=self.plan.tail_s)
            known = run is not None and run.closed_s >= run.opened_s + look_s
            if known or time.monotonic() >= latest:
                return run
            moment = max(moment, time.monotonic()) + _POLL_S
        return None


def _read(path: Path, done: dict[str, Any]) -> RawRun:
    with np.load(path, allow_pickle=False) as archive:
        return RawRun(
            scheduled_s=archive["scheduled_s"],
            sent_s=archive["sent_s"],
            done_s=archive["done_s"],
            code=archive["code"],
            opened_s=float(done["opened_s"]),
            closed_s=float(done["closed_s"]),
            generator_cpu=float(done["generator_cpu"]),
            max_in_flight=int(done["max_in_flight"]),
            cap_hit=bool(done["cap_hit"]),
            texts=dict(done["texts"]),
        )
