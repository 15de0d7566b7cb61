"""Takes one phase of the load process from its start to its result.

Tells the observer when the window opens and closes, ends the warm-up when a steady state is seen,
and asks at every look whether the window is enough. All times are of `time.monotonic`, which
the load process reads too; a clock that is set changes nothing here.
"""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from autotune.core.measurement import Ended
from autotune.core.steady import GROWTH_SHARE, steady
from autotune.ports import LoadPlan, OpenLoop, WindowObserver
from loadgen.arrivals import looks_s
from loadgen.process import LoadProcess
from loadgen.results import RawRun, summarise
from loadgen.stream import StreamReader

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
    """A phase that began at ``start``, a time of `time.monotonic`. ``grace_s`` is by how much the
    process may be late for any of its moments, by the plan; ``stream`` and ``result`` are the files
    that it writes."""

    process: LoadProcess
    plan: LoadPlan
    window: WindowObserver
    start: float
    grace_s: float
    stream: Path
    result: Path

    def run(self) -> Course:
        """To the end of the phase. LoadFailed if the process dies or is too late; what the observer
        raises passes through."""
        plan, process, grace_s = self.plan, self.process, self.grace_s
        reader = StreamReader(self.stream)
        was_steady = self._warm_up(reader) if plan.until_steady else None
        opened = process.expect("opened", self.start + plan.warmup_s + grace_s)
        self.window.opened()
        answer = self._looks(reader, opened)
        closed = process.expect("closed", opened["at"] + plan.measure_s + grace_s)
        self.window.closed()
        done = process.expect("done", closed["at"] + plan.timeout_s + grace_s)
        recorded = _read(self.result, done)
        self.result.unlink()
        if recorded.closed_s >= recorded.opened_s + plan.measure_s:
            answer = None  # it came too late to close anything
        return Course(recorded=recorded, steady=was_steady, ended=answer or Ended.MAXIMUM)

    def _warm_up(self, reader: StreamReader) -> bool:
        """Have the window opened as soon as a steady state is seen, or it is seen that there will
        be none, since the requests in flight only grow: whether one was, before it opened."""
        check = self.start + _FIRST_CHECK_S
        while not self.process.wait(check):
            reader.read()
            was_steady = steady(reader.latencies_ms())
            if was_steady or self._grows(reader):
                self.process.send({"do": "open"})
                return was_steady
            check = max(check + _CHECK_S, time.monotonic())
        return False

    def _grows(self, reader: StreamReader) -> bool:
        mode, growth = self.plan.mode, reader.growth_qps()
        return (
            isinstance(mode, OpenLoop)
            and growth is not None
            and growth.low > GROWTH_SHARE * mode.qps
        )

    def _looks(self, reader: StreamReader, opened: dict[str, Any]) -> Ended | None:
        """Have the window closed when the observer has enough of it: its answer; None when the
        window closes by itself."""
        moments = looks_s(self.plan.first_look_s, self.plan.measure_s)
        for look_s, next_s in itertools.pairwise(moments):
            if time.monotonic() >= opened["at"] + next_s:
                continue  # the observer took so long that there is more to see already
            so_far = self._so_far(reader, opened, look_s)
            if so_far is None:
                continue
            result = summarise(so_far, timeout_s=self.plan.timeout_s, histogram=False)
            answer = self.window.enough(result)
            if answer is not None:
                self.process.send({"do": "close"})
                return answer
        return None

    def _so_far(self, reader: StreamReader, opened: dict[str, Any], look_s: float) -> RawRun | None:
        """The window so far, as soon as ``look_s`` of it are known: what was due in them is mostly
        answered soon after. Where it is not, what is known a little later. None if the window
        closes before, and while its very first requests are open."""
        moment, latest = opened["at"] + look_s, opened["at"] + (1 + _PATIENCE) * look_s
        while not self.process.wait(moment):
            reader.read()
            run = reader.window(
                opened_s=opened["at_s"], cpu_opened_s=opened["cpu_s"], tail_s=self.plan.tail_s
            )
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
