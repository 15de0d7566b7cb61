from __future__ import annotations

from collections.abc import Iterator

import pytest

from autotune.adapters.telemetry import choose
from autotune.adapters.telemetry.disturbance import Disturbance
from autotune.adapters.telemetry.emulated import Emulated
from autotune.adapters.telemetry.sampling import Unavailable
from autotune.core.model_interface import Endpoint
from tests.fakes import FakeClock
from tests.metrics_page import metrics_page


class Server:
    """A metrics page with the busy seconds of each device, half of them by each of two instances,
    or without any."""

    def __init__(self) -> None:
        self.busy_s: dict[str, float] = {}

    def page(self) -> str:
        lines = [
            f'emulated_device_busy_seconds{{device="{name}",process="{process}"}} {seconds / 2}'
            for name, seconds in self.busy_s.items()
            for process in (11, 12)
        ]
        return "\n".join(["nv_inference_count 3", *lines, ""])


class Memory:
    name = "process_cpu"
    memory_name = "process_pss"

    def __init__(self, refuse: str = "") -> None:
        self.refuse = refuse
        self.closed = 0

    def open(self, pids, endpoint):
        if self.refuse:
            raise Unavailable(self.refuse)
        return {"cores": "2"}

    def utilization(self):
        raise AssertionError("the processor's share is not that of the emulated device")

    def memory_mb(self):
        return 300.0

    def disturbance(self):
        return Disturbance()

    def close(self):
        self.closed += 1


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def endpoint(server: Server) -> Iterator[Endpoint]:
    with metrics_page(server.page) as endpoint:
        yield endpoint


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def opened(endpoint: Endpoint, clock: FakeClock, memory: Memory | None = None) -> Emulated:
    source = Emulated(memory, clock=clock.now)
    source.open([1], endpoint)
    return source


def test_the_utilization_is_the_busy_seconds_per_second_since_the_last_reading(
    server, endpoint, clock
):
    server.busy_s = {"a": 5.0}
    source = opened(endpoint, clock)
    for busy, share in ((0.5, 0.25), (2.0, 1.0), (0.0, 0.0)):
        server.busy_s["a"] += busy
        clock.sleep(2.0)
        assert source.utilization() == pytest.approx(share)


def test_several_devices_are_averaged(server, endpoint, clock):
    server.busy_s = {"a": 0.0, "b": 0.0}
    source = opened(endpoint, clock)
    server.busy_s = {"a": 1.0, "b": 0.5}
    clock.sleep(1.0)
    assert source.utilization() == pytest.approx(0.75)


def test_what_was_told_ahead_of_its_time_counts_in_the_next_reading(server, endpoint, clock):
    server.busy_s = {"a": 0.0}
    source = opened(endpoint, clock)
    server.busy_s["a"] += 1.25
    clock.sleep(1.0)
    assert source.utilization() == pytest.approx(1.0)
    server.busy_s["a"] += 0.25
    clock.sleep(1.0)
    assert source.utilization() == pytest.approx(0.5)


def test_a_counter_that_began_anew_is_unknown_once_not_negative(server, endpoint, clock):
    server.busy_s = {"a": 9.0}
    source = opened(endpoint, clock)
    server.busy_s["a"] = 0.5
    clock.sleep(1.0)
    assert source.utilization() is None
    server.busy_s["a"] = 1.0
    clock.sleep(1.0)
    assert source.utilization() == pytest.approx(0.5)


def test_the_memory_is_that_of_the_servers_processes(server, endpoint, clock):
    server.busy_s, memory = {"a": 0.0}, Memory()
    source = opened(endpoint, clock, memory)
    assert (source.memory_mb(), source.memory_name) == (300.0, "process_pss")
    source.close()
    assert memory.closed == 1


def test_memory_that_cannot_be_read_is_unknown_and_says_why(server, endpoint, clock):
    server.busy_s, memory = {"a": 0.0}, Memory(refuse="the processes are gone")
    source = Emulated(memory, clock=clock.now)
    assert source.open([1], endpoint)["process_cpu"] == "the processes are gone"
    assert source.memory_mb() is None
    source.close()
    assert memory.closed == 0


@pytest.mark.parametrize("remote", [False, True])
def test_an_emulated_device_is_asked_before_any_other(server, endpoint, remote):
    server.busy_s = {"a": 0.0}
    telemetry = choose(remote=remote)
    telemetry.start([], endpoint)
    window = telemetry.stop()
    assert (window.utilization, window.source) == (0.0, "emulated")
    assert window.notes["emulated_devices"] == "a"


def test_a_server_without_one_is_passed_over_and_says_so(endpoint):
    telemetry = choose(remote=True)
    telemetry.start([], endpoint)
    window = telemetry.stop()
    assert (window.utilization, window.source) == (None, None)
    assert window.notes["emulated"] == "the server reports no emulated device"
