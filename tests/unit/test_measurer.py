"""The order of one measurement's steps, on fakes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest

from autotune.core.errors import LoadFailed
from autotune.core.measurement import BatchStat, LoadResult, Purpose, ServerWindow, TelemetryWindow
from autotune.core.model_interface import Endpoint
from autotune.ports import Applied, LoadPlan, Saturate, StatisticsMark, WindowObserver
from autotune.studyfile import study_from_options
from autotune.tuner.measure import Measurer
from autotune.tuner.phases import at_target
from search_spaces.candidate import Candidate
from tests.fakes import FakeClock, FakeLoad, FakeServer, FakeTelemetry, load_result

ONE = Candidate({"instances": 1})
APPLIED = Applied(seconds=1.0, restarted=False, instances=1)
STUDY = study_from_options(
    {
        "study": "s",
        "model": {"onnx": "m.onnx", "name": "m"},
        "workload": {"target_qps": 60.0, "headroom": 1.0, "measure_s": 10.0},
        "sla": {"p95_ms": 80.0},
        "space": {"instances": [1, 2]},
    }
)
PHASE = at_target(STUDY)


@dataclass(slots=True)
class BusyServer(FakeServer):
    """Ends what it was left with, an execution every ``each_s``."""

    each_s: float = 0.02
    busy_until: float = 0.0

    def mark(self) -> StatisticsMark:
        return int(min(self.clock.seconds, self.busy_until) / self.each_s)

    def between(self, start: StatisticsMark, end: StatisticsMark) -> ServerWindow:
        window = FakeServer.between(self, start, end)
        return replace(window, batches={1: BatchStat(executions=1, compute_ms=self.each_s * 1000)})


@dataclass(slots=True)
class Spy(FakeTelemetry):
    running: bool = field(default=False)

    def start(self, pids: object, endpoint: Endpoint) -> None:
        self.running = True

    def stop(self) -> TelemetryWindow:
        self.running = False
        return TelemetryWindow()


class BrokenLoad(FakeLoad):
    def run(self, endpoint: Endpoint, plan: LoadPlan, window: WindowObserver) -> LoadResult:
        window.opened()
        raise LoadFailed("the load generator died")


class FaultyLoad(FakeLoad):
    """A tenth of the requests at the target rate are answered with an error, at once."""

    def run(self, endpoint: Endpoint, plan: LoadPlan, window: WindowObserver) -> LoadResult:
        result = FakeLoad.run(self, endpoint, plan, window)
        if isinstance(plan.mode, Saturate):
            return result
        good = load_result(20.0, offered_qps=60, window_s=10, kept=0.9)
        return replace(good, errors={"http_500": 60})


def measurer(load: FakeLoad, telemetry: FakeTelemetry | None = None) -> Measurer:
    return Measurer(
        study=STUDY, load=load, telemetry=telemetry or FakeTelemetry(), clock=load.server.clock
    )


@pytest.mark.parametrize("each_s", [0.02, 2.0])
def test_a_saturated_server_is_let_drain_however_long_one_execution_takes(each_s: float) -> None:
    server = BusyServer(FakeClock(), each_s=each_s, busy_until=1030.0)
    server.apply(ONE)
    measurement = measurer(FakeLoad(server)).measure(server, ONE, APPLIED, Purpose.TRIAL, PHASE)
    assert measurement.saturation_qps == pytest.approx(server.capacity_qps)
    assert server.clock.seconds >= server.busy_until


def test_a_server_that_never_falls_idle_is_not_waited_for_without_end() -> None:
    server = BusyServer(FakeClock(), busy_until=1e9)
    server.apply(ONE)
    measurer(FakeLoad(server)).measure(server, ONE, APPLIED, Purpose.TRIAL, PHASE)
    assert server.clock.seconds < 1100


def test_errors_that_are_answered_in_time_are_no_saturation() -> None:
    server = FakeServer(FakeClock(), service_ms=5.0)
    server.apply(ONE)
    load = FaultyLoad(server)
    measurement = measurer(load).measure(server, ONE, APPLIED, Purpose.TRIAL, PHASE)
    assert len(load.plans) == 2
    assert measurement.saturation_qps == pytest.approx(server.capacity_qps)


def test_telemetry_ends_with_a_phase_that_fails_within_its_window() -> None:
    server = FakeServer(FakeClock())
    server.apply(ONE)
    spy = Spy()
    with pytest.raises(LoadFailed):
        measurer(BrokenLoad(server), spy).measure(server, ONE, APPLIED, Purpose.TRIAL, PHASE)
    assert not spy.running


class BusyBurst(FakeLoad):
    """A burst in which the generator's core is full."""

    def run(self, endpoint: Endpoint, plan: LoadPlan, window: WindowObserver) -> LoadResult:
        result = FakeLoad.run(self, endpoint, plan, window)
        busy = isinstance(plan.mode, Saturate)
        return replace(result, generator_cpu=0.97) if busy else result


class Neighbour(FakeTelemetry):
    """Others take a third of the processor in every second window: the burst's."""

    windows = 0

    def start(self, pids: object, endpoint: Endpoint) -> None:
        self.windows += 1

    def stop(self) -> TelemetryWindow:
        return TelemetryWindow(foreign_cpu=0.33 if self.windows == 2 else 0.01)


def test_a_burst_that_the_generator_bounds_is_a_lower_bound_without_an_interval() -> None:
    server = FakeServer(FakeClock(), service_ms=5.0)
    server.apply(ONE)
    measured = measurer(BusyBurst(server)).measure(server, ONE, APPLIED, Purpose.TRIAL, PHASE)
    assert measured.valid
    assert measured.saturation_qps == pytest.approx(server.capacity_qps)
    assert "saturation_qps" not in measured.intervals
    assert "at least this" in measured.telemetry.notes["saturation"]


def test_a_burst_that_a_neighbour_disturbs_makes_the_measurement_invalid() -> None:
    server = FakeServer(FakeClock(), service_ms=5.0)
    server.apply(ONE)
    busy = measurer(FakeLoad(server), Neighbour())
    measured = busy.measure(server, ONE, APPLIED, Purpose.TRIAL, PHASE)
    assert not measured.valid
    assert "in the saturation burst, others took 33%" in measured.invalid_because[0]
