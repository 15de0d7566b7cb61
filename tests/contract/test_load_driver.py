"""What every `LoadDriver` must do, against a real HTTP server."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import psutil
import pytest

from autotune.core.errors import AutotuneError, Interrupted, LoadFailed
from autotune.core.measurement import Ended, LoadResult
from autotune.core.model_interface import Endpoint
from autotune.core.workload import Arrival, ArrivalKind, InputSpec
from autotune.ports import LoadPlan, OpenLoop, Saturate
from loadgen.arrivals import schedule_at_rate
from loadgen.driver import LocustDriver
from loadgen.inputs import build_samples
from tests.null_process import MODEL, NullServer, null_server

CONSTANT = Arrival(kind=ArrivalKind.CONSTANT)


@dataclass
class Watch:
    """Remembers when the window opened and closed; never has enough."""

    times: list[float] = field(default_factory=list)

    def opened(self) -> None:
        self.times.append(time.monotonic())

    def enough(self, so_far: LoadResult) -> Ended | None:
        return None

    def closed(self) -> None:
        self.times.append(time.monotonic())


def plan(**changes) -> LoadPlan:
    values = {
        "mode": OpenLoop(qps=200, arrival=CONSTANT, seed=1),
        "warmup_s": 0.2,
        "measure_s": 0.5,
        "timeout_s": 2.0,
        "max_in_flight": 512,
    }
    return LoadPlan(**{**values, **changes})


@pytest.fixture(scope="module")
def driver() -> Iterator[LocustDriver]:
    made = LocustDriver(grace_s=3)
    made.prepare(MODEL, build_samples(MODEL, InputSpec(count=4), seed=1))
    yield made
    made.close()


@pytest.fixture(scope="module")
def server() -> Iterator[NullServer]:
    """A good one; for others see ``null_server``."""
    with null_server() as made:
        yield made


def children() -> list[psutil.Process]:
    mine = psutil.Process().children(recursive=True)
    return [child for child in mine if "loadgen.worker" in child.cmdline()]


# --------------------------------------------------------------------------------- a good server
@pytest.fixture(scope="module")
def plain(driver, server) -> tuple[LoadResult, Watch]:
    """What became of the plan as it stands."""
    watch = Watch()
    return driver.run(server.endpoint, plan(), watch), watch


def test_every_scheduled_request_is_sent_and_answered(plain):
    result, _ = plain
    assert (result.scheduled, result.sent, result.completed, result.ok) == (100, 100, 100, 100)
    assert (result.offered_qps, result.errors) == (200, {})
    assert result.achieved_qps == pytest.approx(200, rel=0.1)
    assert result.generator_cpu > 0
    assert result.histogram


def test_the_window_is_told_when_it_opens_and_closes(plain):
    _, watch = plain
    opened, closed = watch.times
    assert closed - opened == pytest.approx(0.5, abs=0.2)


def test_fixed_times_are_kept_and_nothing_is_said_of_a_steady_state(plain):
    result, _ = plain
    assert (result.warmup_s, result.window_s) == (0.2, 0.5)
    assert (result.steady, result.ended) == (None, Ended.MAXIMUM)


def test_the_requests_sent_are_those_of_the_seeded_schedule(driver, server):
    arrival = Arrival(kind=ArrivalKind.POISSON)
    mode = OpenLoop(qps=160, arrival=arrival, seed=7)
    result = driver.run(server.endpoint, plan(mode=mode), Watch())
    due = schedule_at_rate(arrival, qps=160, seed=7, duration_s=0.5, looks=(0.5,))
    assert result.samples is not None
    assert result.samples.scheduled_s == pytest.approx(due)
    assert np.all(result.samples.sent_s >= result.samples.scheduled_s)
    assert np.all(result.samples.done_s > result.samples.sent_s)


def test_one_process_serves_all_phases(driver, server):
    driver.run(server.endpoint, plan(), Watch())
    (before,) = children()
    driver.run(server.endpoint, plan(), Watch())
    (after,) = children()
    assert before.pid == after.pid


def test_a_slow_server_gets_its_load_all_the_same(driver):
    with null_server("--mode", "delay", "--delay", "0.4") as server:
        result = driver.run(server.endpoint, plan(), Watch())
    assert result.ok == 100
    assert result.max_in_flight >= 70  # 200/s for 0.4 s: a closed loop would have fewer
    assert result.latency is not None
    assert result.latency.at(50.0) >= 400


def test_saturation_keeps_the_asked_number_in_flight(driver):
    with null_server("--mode", "delay", "--delay", "0.1") as server:
        result = driver.run(server.endpoint, plan(mode=Saturate(in_flight=5)), Watch())
    assert result.max_in_flight == 5
    assert 25 <= result.achieved_qps <= 51
    assert result.errors == {}


def test_the_samples_of_a_saturation_burst_hold_all_completions_within_the_window(driver):
    with null_server("--mode", "delay", "--delay", "0.1") as server:
        result = driver.run(server.endpoint, plan(mode=Saturate(in_flight=5)), Watch())
    assert result.samples is not None
    done = result.samples.done_s[result.samples.ok]
    inside = np.count_nonzero((done >= 0) & (done < result.window_s))
    assert inside == round(result.achieved_qps * result.window_s)
    assert np.any(result.samples.scheduled_s < 0)  # under way when the window opened


# ------------------------------------------------------------------------------------ the warm-up
STEADY = {"warmup_s": 8.0, "until_steady": True}


def test_a_warm_up_ends_when_the_latencies_are_steady(driver, server):
    result = driver.run(server.endpoint, plan(**STEADY), Watch())
    assert result.steady is True
    assert 0.5 <= result.warmup_s < 8
    assert (result.scheduled, result.ok, result.window_s) == (100, 100, 0.5)


def test_a_warm_up_without_a_steady_state_ends_at_its_longest(driver):
    with null_server("--mode", "hang") as server:
        changes = {**STEADY, "warmup_s": 0.8, "timeout_s": 0.3}
        result = driver.run(server.endpoint, plan(**changes), Watch())
    assert (result.steady, result.warmup_s) == (False, 0.8)


def test_a_warm_up_ends_when_the_requests_in_flight_only_grow(driver):
    with null_server("--mode", "queue", "--delay", "0.02") as server:  # a quarter of what is sent
        changes = {**STEADY, "timeout_s": 3.0}
        result = driver.run(server.endpoint, plan(**changes), Watch())
    assert result.steady is False
    assert result.warmup_s < 5


def test_the_arrivals_of_the_window_do_not_depend_on_the_length_of_the_warm_up(driver, server):
    mode = OpenLoop(qps=80, arrival=Arrival(kind=ArrivalKind.POISSON), seed=3)
    results = [
        driver.run(server.endpoint, plan(mode=mode, **changes), Watch())
        for changes in ({"warmup_s": 0.0}, {"warmup_s": 0.37}, STEADY)
    ]
    due = [result.samples.scheduled_s for result in results if result.samples is not None]
    assert due[0] == pytest.approx(due[1])
    assert due[0] == pytest.approx(due[2])


# -------------------------------------------------------------------------------------- the looks
@dataclass
class Judge(Watch):
    """Has enough at the look of that number (from 1 on), for ``answer``."""

    last: int = 1
    answer: Ended = Ended.DECIDED
    slow_s: float = 0.0
    looks: list[LoadResult] = field(default_factory=list)

    def enough(self, so_far: LoadResult) -> Ended | None:
        time.sleep(self.slow_s)
        self.looks.append(so_far)
        return self.answer if len(self.looks) == self.last else None


LONG = {"measure_s": 20.0, "first_look_s": 0.6}


def test_a_window_closes_when_the_observer_has_enough(driver, server):
    judge = Judge(last=2, answer=Ended.HOPELESS)
    result = driver.run(server.endpoint, plan(**LONG), judge)
    assert result.ended is Ended.HOPELESS
    assert 0.85 < result.window_s < 8
    opened, closed = judge.times
    assert closed - opened == pytest.approx(result.window_s, abs=0.2)
    assert result.scheduled == result.ok == pytest.approx(200 * result.window_s, abs=2)


def test_a_look_sees_the_window_so_far_and_the_result_begins_with_it(driver, server):
    judge = Judge(last=2)
    result = driver.run(server.endpoint, plan(**LONG), judge)
    first, second = judge.looks
    assert 0 < first.window_s < second.window_s < result.window_s
    assert first.ok == first.scheduled == pytest.approx(200 * first.window_s, abs=2)
    assert first.latency is not None
    assert first.generator_cpu > 0
    for look in judge.looks:
        assert look.samples is not None
        assert result.samples is not None
        for name in ("scheduled_s", "sent_s", "done_s"):
            whole = getattr(result.samples, name)
            assert getattr(look.samples, name) == pytest.approx(whole[: look.scheduled])


def test_a_look_counts_what_was_open_too_long_as_missed_and_leaves_out_what_is_not(driver):
    judge = Judge()
    with null_server("--mode", "hang") as server:
        changes = {"first_look_s": 0.9, "measure_s": 10.0, "tail_s": 0.4, "timeout_s": 1.0}
        result = driver.run(server.endpoint, plan(**changes), judge)
    (look,) = judge.looks
    assert 0.4 < look.window_s <= result.window_s - 0.4
    assert look.latency is not None
    assert look.latency.at(50.0) == 1000
    assert (look.ok, look.errors) == (0, {"timeout": look.scheduled})
    assert look.sent == look.scheduled
    assert result.errors == {"timeout": result.scheduled}


def test_a_look_waits_a_little_until_what_was_due_by_then_is_answered(driver):
    judge = Judge()
    with null_server("--mode", "delay", "--delay", "0.1") as server:
        changes = {**LONG, "first_look_s": 1.2}
        result = driver.run(server.endpoint, plan(**changes), judge)
    (look,) = judge.looks
    assert look.ok == look.scheduled
    assert 1.0 < look.window_s <= result.window_s - 0.08


def test_a_look_at_slow_answers_sees_the_window_up_to_the_first_request_that_is_open(driver):
    judge = Judge(last=2)
    with null_server("--mode", "delay", "--delay", "0.5") as server:
        changes = {**LONG, "tail_s": 5.0}
        result = driver.run(server.endpoint, plan(**changes), judge)
    for look in judge.looks:
        assert look.ok == look.scheduled > 0
        assert look.window_s <= result.window_s - 0.4


def test_a_window_of_which_the_observer_never_has_enough_is_as_long_as_it_may_be(driver, server):
    judge = Judge(last=0)
    result = driver.run(server.endpoint, plan(measure_s=1.5, first_look_s=0.6), judge)
    assert len(judge.looks) in {2, 3}  # 0.6, 0.9, and 1.35 of 1.5 s: the last may come too late
    assert (result.ended, result.window_s, result.scheduled) == (Ended.MAXIMUM, 1.5, 300)


def test_the_load_goes_on_while_a_look_takes_long(driver, server):
    judge = Judge(slow_s=1.5)
    result = driver.run(server.endpoint, plan(measure_s=1.5, first_look_s=0.6), judge)
    assert len(judge.looks) == 1  # the others were due before it was over
    assert (result.ended, result.window_s, result.ok) == (Ended.MAXIMUM, 1.5, 300)


def test_a_burst_can_be_looked_at_too(driver):
    judge = Judge()
    with null_server("--mode", "delay", "--delay", "0.05") as server:
        result = driver.run(server.endpoint, plan(mode=Saturate(in_flight=4), **LONG), judge)
    (look,) = judge.looks
    assert look.ok == look.scheduled > 0
    assert result.ended is Ended.DECIDED


def test_a_cap_that_was_hit_only_before_the_window_is_not_held_against_it(driver):
    with null_server("--stall-at", "1", "--delay", "0.5") as server:
        changes = {"warmup_s": 1.2, "max_in_flight": 60}
        result = driver.run(server.endpoint, plan(**changes), Watch())
    assert not result.in_flight_cap_hit
    assert result.ok == 100
    assert result.max_in_flight < 60


# --------------------------------------------------------------------------- servers in trouble
def test_a_stall_shows_in_the_latencies_of_all_requests_that_were_due_meanwhile(driver):
    """Coordinated omission: a closed loop would record one slow request, not fifty."""
    with null_server("--stall-at", "60", "--delay", "1") as server:
        result = driver.run(server.endpoint, plan(measure_s=1.5), Watch())
    assert result.samples is not None
    latency = result.samples.done_s - result.samples.scheduled_s
    assert result.ok == 300
    assert np.count_nonzero(latency > 0.45) >= 80
    assert latency.max() >= 0.9


@pytest.mark.parametrize(
    ("mode", "kind", "said"),
    [
        ("503", "http_503", "busy"),
        ("close", "connection", ""),
        ("cut", "connection", ""),
        ("error200", "bad_answer", "no instance left"),
        ("short200", "bad_answer", '"model_name": "null"'),
    ],
)
def test_failures_are_counted_by_kind_and_the_first_words_of_each_kept(driver, mode, kind, said):
    with null_server("--mode", mode) as server:
        result = driver.run(server.endpoint, plan(), Watch())
    assert result.errors == {kind: 100}
    assert (result.ok, result.error_rate, result.achieved_qps) == (0, 1.0, 0.0)
    assert said in result.error_texts.get(kind, "")


def test_a_server_that_is_not_there_is_a_result(driver):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound but not listening: connections are refused
        endpoint = Endpoint(http=f"127.0.0.1:{taken.getsockname()[1]}", grpc="")
        result = driver.run(endpoint, plan(), Watch())
        saturated = driver.run(endpoint, plan(mode=Saturate(in_flight=3)), Watch())
    assert result.errors == {"connection": 100}
    assert 0 < saturated.scheduled < 1000
    assert saturated.ok == 0


def test_requests_that_are_never_answered_time_out(driver):
    with null_server("--mode", "hang") as server:
        began = time.monotonic()
        result = driver.run(server.endpoint, plan(timeout_s=0.5), Watch())
    assert result.errors == {"timeout": 100}
    assert result.latency is not None
    assert result.latency.at(50.0) == 500
    assert result.completed == 0
    assert time.monotonic() - began < 10


def test_the_in_flight_cap_holds_and_is_reported(driver):
    with null_server("--mode", "hang") as server:
        result = driver.run(server.endpoint, plan(max_in_flight=10, timeout_s=3), Watch())
    assert result.in_flight_cap_hit
    assert result.max_in_flight == 10
    assert result.errors["unsent"] >= 90
    assert result.sent + result.errors["unsent"] == 100


# ------------------------------------------------------------------------------ a bad generator
class Saboteur(Watch):
    """Kills the load process when the window opens."""

    def opened(self) -> None:
        for child in children():
            child.kill()


def test_a_load_process_that_dies_fails_the_phase_and_is_replaced(driver, server):
    with pytest.raises(LoadFailed, match="died"):
        driver.run(server.endpoint, plan(), Saboteur())
    assert driver.run(server.endpoint, plan(), Watch()).ok == 100


def test_a_load_process_that_died_between_phases_is_replaced(driver, server):
    driver.run(server.endpoint, plan(), Watch())
    (child,) = children()
    child.kill()
    child.wait(10)
    assert driver.run(server.endpoint, plan(), Watch()).ok == 100


class Freezer(Watch):
    """Stops the load process when the window closes, so that it never gives its result."""

    def closed(self) -> None:
        for child in children():
            child.suspend()


def test_a_load_process_that_overruns_its_deadline_is_killed(driver, server):
    with null_server("--mode", "hang") as silent, pytest.raises(LoadFailed, match="'done'"):
        driver.run(silent.endpoint, plan(timeout_s=0.5), Freezer())
    assert children() == []
    assert driver.run(server.endpoint, plan(), Watch()).ok == 100


class Slow(Watch):
    """Still busy with the opening when the phase is long over."""

    def opened(self) -> None:
        time.sleep(1.5)
        super().opened()


def test_a_window_that_is_slow_to_open_does_not_lose_the_result(driver, server):
    watch = Slow()
    result = driver.run(server.endpoint, plan(), watch)
    assert result.ok == 100
    assert len(watch.times) == 2


class Unscheduled(LocustDriver):
    """Names a schedule that is not there."""

    def _save(self, *_: object) -> str:
        return str(self._path / "none.npy")


def test_a_phase_that_cannot_begin_fails_with_its_reason():
    broken = Unscheduled(start_timeout_s=20)
    try:
        broken.prepare(MODEL, build_samples(MODEL, InputSpec(count=1), seed=1))
        with pytest.raises(LoadFailed, match=r"none\.npy"):
            broken.run(Endpoint(http="127.0.0.1:1", grpc=""), plan(), Watch())
    finally:
        broken.close()


class Broken(Watch):
    def opened(self) -> None:
        raise RuntimeError("no statistics")


def test_an_error_of_the_window_stops_the_load_and_propagates(driver, server):
    with pytest.raises(RuntimeError, match="no statistics"):
        driver.run(server.endpoint, plan(), Broken())
    assert children() == []


class Interrupter(Watch):
    """Has a signal sent to this process a moment after the window opened."""

    def opened(self) -> None:
        self.timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGUSR1))
        self.timer.start()


def test_an_interruption_ends_the_phase_at_once(driver, server):
    def stop(*_: object) -> None:
        raise Interrupted("stopped")

    before = signal.signal(signal.SIGUSR1, stop)
    watch = Interrupter()
    try:
        with pytest.raises(Interrupted):
            driver.run(server.endpoint, plan(measure_s=30), watch)
    finally:
        watch.timer.join()
        signal.signal(signal.SIGUSR1, before)
    assert watch.times == []  # the window never closed
    assert children() == []


class Unlucky(Watch):
    """Cannot judge."""

    def enough(self, so_far: LoadResult) -> Ended | None:
        raise RuntimeError("no judgement")


def test_an_error_of_a_look_stops_the_load_and_propagates(driver, server):
    with pytest.raises(RuntimeError, match="no judgement"):
        driver.run(server.endpoint, plan(**LONG), Unlucky())
    assert children() == []


class Lost(LocustDriver):
    """Has a stream file on a disk that is full."""

    def _stream(self, plan: LoadPlan, index: int) -> str | None:
        return "/dev/full"


def test_a_stream_that_cannot_be_written_says_so_and_is_no_failure_of_the_load(server):
    full = Lost(start_timeout_s=20)
    try:
        full.prepare(MODEL, build_samples(MODEL, InputSpec(count=1), seed=1))
        with pytest.raises(AutotuneError, match="No space left") as error:
            full.run(server.endpoint, plan(**LONG), Watch())
        assert not isinstance(error.value, LoadFailed)
    finally:
        full.close()
    assert children() == []


def test_running_before_preparing_fails():
    unprepared = LocustDriver()
    with pytest.raises(LoadFailed, match="prepare"):
        unprepared.run(Endpoint(http="127.0.0.1:1", grpc=""), plan(), Watch())
    unprepared.close()


def test_closing_twice_leaves_no_process_and_no_file(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    before = {child.pid for child in children()}
    made = LocustDriver()
    made.prepare(MODEL, build_samples(MODEL, InputSpec(count=1), seed=1))
    pids = {child.pid for child in children()} - before
    assert pids
    made.close()
    made.close()
    assert not pids & {child.pid for child in children()}
    assert list(tmp_path.iterdir()) == []


ORPHAN_MAKER = """
import os, signal, sys
from autotune.core.workload import InputSpec
from loadgen.driver import LocustDriver
from loadgen.inputs import build_samples
from tests.null_process import MODEL
driver = LocustDriver()
driver.prepare(MODEL, build_samples(MODEL, InputSpec(count=1), seed=1))
print(driver._workers[0].pid, flush=True)
sys.stdin.read()
"""


def test_a_load_process_dies_with_its_parent(tmp_path):
    parent = subprocess.Popen(
        [sys.executable, "-c", ORPHAN_MAKER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    with parent:
        assert parent.stdout is not None
        worker = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
        parent.wait(10)
    try:
        worker.wait(10)
    except psutil.TimeoutExpired:
        worker.kill()
        raise


SPIN = """
import os, time
from loadgen.worker import _come_first
def real_time():
    return os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK == os.SCHED_RR
_come_first()
print(real_time())
deadline = time.monotonic() + 10
while real_time() and time.monotonic() < deadline:
    pass
print(real_time())
_come_first()
print(real_time(), flush=True)
os._exit(0)  # as the load process ends: the interpreter takes its signal handlers down
"""


def test_a_real_time_load_process_that_never_sleeps_steps_down_until_the_next_phase():
    ended = subprocess.run(
        [sys.executable, "-c", SPIN],
        check=False,
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 0, ended.stderr
    if ended.stdout.split()[0] == "False":
        pytest.skip("real-time scheduling is not allowed here")
    assert ended.stdout.split() == ["True", "False", "True"]
