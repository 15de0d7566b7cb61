"""A load that several processes share: together they send what one would."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import psutil
import pytest

from autotune.core.errors import LoadFailed
from autotune.core.measurement import Ended, LoadResult
from autotune.core.workload import Arrival, ArrivalKind, InputSpec
from autotune.ports import LoadPlan, OpenLoop, Saturate
from loadgen import sizing
from loadgen.arrivals import looks_s, schedule_at_rate
from loadgen.driver import LocustDriver
from loadgen.inputs import build_samples
from loadgen.pacing import OpenLoopPhase, Share, Window
from loadgen.results import RawRun, merged
from loadgen.sizing import Sizing, highest_rate, processes_for
from tests.integration.studies import command_line
from tests.null_process import MODEL, NullServer, null_server

POISSON = Arrival(kind=ArrivalKind.POISSON)


@dataclass
class Watch:
    """Has enough at the first look if it is told so; may kill a process when the window opens."""

    enough_at_once: bool = False
    kill: psutil.Process | None = None
    seen: list[LoadResult] = field(default_factory=list)

    def opened(self) -> None:
        if self.kill is not None:
            self.kill.kill()

    def enough(self, so_far: LoadResult) -> Ended | None:
        self.seen.append(so_far)
        return Ended.DECIDED if self.enough_at_once else None

    def closed(self) -> None: ...


def plan(**changes: Any) -> LoadPlan:
    values: dict[str, Any] = {
        "mode": OpenLoop(qps=150, arrival=POISSON, seed=7),
        "warmup_s": 0.4,
        "measure_s": 1.0,
        "timeout_s": 2.0,
        "max_in_flight": 512,
    }
    return LoadPlan(**{**values, **changes})


def processes() -> list[psutil.Process]:
    mine = psutil.Process().children(recursive=True)
    return [child for child in mine if "loadgen.worker" in command_line(child)]


@pytest.fixture(scope="module")
def server() -> Iterator[NullServer]:
    with null_server() as made:
        yield made


@pytest.fixture(scope="module")
def three() -> Iterator[LocustDriver]:
    made = LocustDriver(grace_s=5, processes=lambda *_: 3)
    made.prepare(MODEL, build_samples(MODEL, InputSpec(count=4), seed=1))
    yield made
    made.close()


def test_all_of_the_schedule_is_sent_and_nothing_else(
    three: LocustDriver, server: NullServer
) -> None:
    result = three.run(server.endpoint, plan(), Watch())
    due = schedule_at_rate(POISSON, qps=150, seed=7, duration_s=1.0, looks=(1.0,))
    assert result.samples is not None
    assert result.samples.scheduled_s == pytest.approx(due)
    assert (result.scheduled, result.ok) == (len(due), len(due))
    assert len(processes()) == 3


def test_the_window_opens_and_closes_for_all_at_one_moment(
    three: LocustDriver, server: NullServer
) -> None:
    watch = Watch(enough_at_once=True)
    asked = plan(warmup_s=20.0, measure_s=10.0, until_steady=True, first_look_s=1.0)
    result = three.run(server.endpoint, asked, watch)
    assert result.steady
    assert result.ended is Ended.DECIDED
    assert 1.0 <= result.window_s < 9.0
    due = schedule_at_rate(POISSON, qps=150, seed=7, duration_s=11.0, looks=looks_s(1.0, 10.0))
    assert result.samples is not None
    sent = result.samples.scheduled_s
    assert sent == pytest.approx(due[: len(sent)], abs=1e-6)
    (seen,) = watch.seen
    assert seen.scheduled == seen.ok > 100


def test_a_burst_keeps_as_many_in_flight_as_it_should(
    three: LocustDriver, server: NullServer
) -> None:
    three.run(server.endpoint, plan(), Watch())
    burst = plan(mode=Saturate(in_flight=7), warmup_s=0.2, measure_s=0.5)
    result = three.run(server.endpoint, burst, Watch())
    assert result.max_in_flight == 7
    assert result.ok > 0


def test_one_that_dies_ends_the_phase_and_the_next_has_new_ones(
    three: LocustDriver, server: NullServer
) -> None:
    three.run(server.endpoint, plan(), Watch())
    victim = processes()[1]
    began = time.monotonic()
    with pytest.raises(LoadFailed, match="died"):
        three.run(server.endpoint, plan(measure_s=30.0), Watch(kill=victim))
    assert time.monotonic() - began < 20
    assert processes() == []
    assert three.run(server.endpoint, plan(), Watch()).ok > 0


def test_the_nth_request_of_the_window_has_the_nth_body_whoever_sends_it() -> None:
    def bodies(index: int, of: int) -> list[int]:
        window = Window(
            warmup_s=0, measure_s=1, timeout_s=1, tail_s=0, cap=1, share=Share(index=index, of=of)
        )
        phase = OpenLoopPhase(None, window, lambda *_: None, None)  # type: ignore[arg-type]
        phase._first_counted = 5
        return [phase._body(5 + number) for number in range(4)]

    alone = bodies(0, 1)
    assert alone == [0, 1, 2, 3]
    assert (bodies(0, 2), bodies(1, 2)) == ([0, 2, 4, 6], [1, 3, 5, 7])


def run_of(scheduled: list[float], **changes: Any) -> RawRun:
    times = np.array(scheduled)
    values: dict[str, Any] = {
        "scheduled_s": times,
        "sent_s": times + 0.001,
        "done_s": times + 0.01,
        "code": np.ones(len(times), dtype=np.int16),
        "opened_s": 1.0,
        "closed_s": 2.0,
        "generator_cpu": 0.2,
        "max_in_flight": 3,
        "cap_hit": False,
    }
    return RawRun(**{**values, **changes})


def test_shares_are_merged_in_the_order_in_which_requests_were_due() -> None:
    both = merged([run_of([0.0, 2.0]), run_of([1.0, 3.0], generator_cpu=0.7, cap_hit=True)])
    assert both.scheduled_s.tolist() == [0.0, 1.0, 2.0, 3.0]
    assert both.done_s.tolist() == pytest.approx([0.01, 1.01, 2.01, 3.01])
    assert (both.generator_cpu, both.max_in_flight, both.cap_hit) == (0.7, 6, True)


def test_a_rate_takes_as_many_processes_as_send_it_at_ease() -> None:
    assert processes_for(100, 4000, most=8) == 1
    assert processes_for(2000, 4000, most=8) == 1
    assert processes_for(2001, 4000, most=8) == 2
    assert processes_for(50_000, 4000, most=8) == 8


def test_what_one_can_send_is_measured_once_and_only_for_a_rate_that_may_be_too_high(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[int] = []

    class Measured:
        achieved_qps = 1000.0

    def measured(*_: Any, processes: int = 1) -> Measured:
        asked.append(processes)
        return Measured()

    monkeypatch.setattr(sizing, "highest_rate", measured)
    samples = build_samples(MODEL, InputSpec(count=2), seed=1)
    sized = Sizing(most=4)
    assert sized(MODEL, samples, 200) == 1
    assert asked == []
    assert [sized(MODEL, samples, qps) for qps in (400, 900, 9000)] == [1, 2, 4]
    assert asked == [1]


def test_the_highest_rate_is_measured_on_a_server_that_does_nothing() -> None:
    result = highest_rate(MODEL, build_samples(MODEL, InputSpec(count=2), seed=1))
    assert result.errors == {}
    assert result.achieved_qps > 10
    assert processes() == [] or all(p.is_running() for p in processes())
