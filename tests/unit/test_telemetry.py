from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from autotune.adapters import machine
from autotune.adapters.telemetry import choose
from autotune.adapters.telemetry.cores import available_cores
from autotune.adapters.telemetry.disturbance import Disturbance
from autotune.adapters.telemetry.process_cpu import ProcessCpu
from autotune.adapters.telemetry.sampling import (
    Reading,
    SampledTelemetry,
    Source,
    Unavailable,
    time_weighted_mean,
)
from autotune.adapters.telemetry.triton_metrics import TritonMetrics, parse_gauges
from autotune.core.measurement import TelemetryWindow
from autotune.core.model_interface import Endpoint
from tests.metrics_page import answering, metrics_page

ENDPOINT = Endpoint(http="127.0.0.1:1", grpc="127.0.0.1:2")


class FakeSource(Source):
    name = memory_name = ""

    def __init__(self, name="fake", readings=(0.5,), memory=(100.0,), refuse="", gauges=({},)):
        self.name = name
        self.memory_name = f"{name}_memory"
        self.readings = iter([*readings, *[readings[-1]] * 10_000])
        self.memory = iter([*memory, *[memory[-1]] * 10_000])
        self.refuse = refuse
        self.told = iter([*gauges, *[gauges[-1]] * 10_000])
        self.closed = 0

    def open(self, pids, endpoint):
        if self.refuse:
            raise Unavailable(self.refuse)
        return {"opened": self.name}

    def gauges(self):
        return {name: Reading(value=value, source="g") for name, value in next(self.told).items()}

    def utilization(self):
        return next(self.readings)

    def memory_mb(self):
        return next(self.memory)

    def disturbance(self):
        return Disturbance()

    def close(self):
        self.closed += 1


def sampled(*sources, wait_s=0.05, **how) -> TelemetryWindow:
    telemetry = SampledTelemetry(sources, interval_s=0.01, **how)
    telemetry.start([1], ENDPOINT)
    time.sleep(wait_s)
    return telemetry.stop()


# ------------------------------------------------------------------------------------- sampling
def test_a_window_has_the_mean_the_series_and_the_name_of_its_source():
    window = sampled(FakeSource(readings=(0.5,)))
    assert window.utilization == pytest.approx(0.5)
    assert (window.source, window.memory_source) == ("fake", "fake_memory")
    assert window.series
    assert all(at >= 0 and value == 0.5 for at, value in window.series)


def test_the_larger_of_the_memory_readings_counts():
    assert sampled(FakeSource(memory=(100.0, 300.0))).memory_mb == 300


def test_a_source_that_is_not_available_is_passed_over_and_says_why():
    window = sampled(FakeSource("gpu", refuse="no driver"), FakeSource("cpu"))
    assert window.source == "cpu"
    assert window.notes == {"gpu": "no driver", "opened": "cpu"}


def test_without_any_source_everything_is_unknown():
    window = sampled(FakeSource("gpu", refuse="no driver"))
    assert (window.utilization, window.source, window.memory_mb) == (None, None, None)
    assert window.notes == {"gpu": "no driver"}


def test_readings_that_are_unknown_make_the_utilization_unknown_not_zero():
    window = sampled(FakeSource(readings=(None,), memory=(None,)))
    assert (window.utilization, window.source, window.series) == (None, None, ())
    assert (window.memory_mb, window.memory_source) == (None, None)


def test_a_gauge_has_its_mean_its_source_and_the_readings_that_there_were():
    gauges = ({}, {"power_w": 300.0}, {}, {"power_w": 300.0})
    gauge = sampled(FakeSource(gauges=gauges)).gauges["power_w"]
    assert (gauge.value, gauge.source) == (300.0, "g")
    assert gauge.series
    assert {value for _, value in gauge.series} == {300.0}
    assert [at for at, _ in gauge.series] == sorted(at for at, _ in gauge.series)


def test_a_gauge_that_was_never_read_is_missing():
    assert sampled(FakeSource(gauges=({},))).gauges == {}


def test_energy_is_what_was_counted_by_the_end_not_a_mean():
    source = FakeSource(gauges=({"energy_j": 1.0}, {"energy_j": 7.0}))
    assert sampled(source, clock=lambda: 3.0).gauges["energy_j"].value == 7.0


def test_energy_that_was_used_while_the_source_was_opened_is_like_the_rest():
    now = [0.0]
    opened = threading.Event()

    class Slow(FakeSource):
        def open(self, pids, endpoint):
            now[0] = 1.0
            return {}

        def memory_mb(self):
            opened.set()
            return 1.0

    telemetry = SampledTelemetry([Slow(gauges=({"energy_j": 6.0},))], clock=lambda: now[0])
    telemetry.start([1], ENDPOINT)
    assert opened.wait(10)
    now[0] = 4.0
    assert telemetry.stop().gauges["energy_j"].value == 8.0


def test_energy_is_unknown_where_its_end_is():
    window = sampled(FakeSource(gauges=({"energy_j": 1.0, "power_w": 5.0}, {"power_w": 5.0})))
    assert set(window.gauges) == {"power_w"}


def test_stopping_closes_the_source_and_ends_the_thread():
    source = FakeSource()
    sampled(source)
    assert source.closed == 1
    assert "telemetry" not in {thread.name for thread in threading.enumerate()}


class Hanging(FakeSource):
    """Does not come back from one of its methods until it is let go."""

    silence = "gone"

    def __init__(self, where):
        super().__init__("gpu")
        self.free = threading.Event()
        self.hung = threading.Event()
        setattr(self, where, self.hang)

    def hang(self, *_):
        self.hung.set()
        self.free.wait(10)
        raise Unavailable("it was let go")


@pytest.mark.parametrize("where", ["open", "utilization", "memory_mb", "gauges", "disturbance"])
def test_a_source_that_hangs_holds_nobody_up_and_is_not_asked_again(where):
    hanging, processor = Hanging(where), FakeSource("cpu")
    telemetry = SampledTelemetry([hanging, processor], interval_s=0.01, patience_s=0.5)
    telemetry.start([1], ENDPOINT)
    assert where == "disturbance" or hanging.hung.wait(10)
    window = telemetry.stop()
    assert (window.utilization, window.source, window.gauges) == (None, None, {})
    assert window.notes["gone"] == "gpu has not answered for 0.5 s"

    telemetry.start([1], ENDPOINT)
    after = telemetry.stop()
    assert after.source == "cpu"
    assert after.notes["gpu"] == "has not answered for 0.5 s, and is not asked any more"
    assert "gone" not in after.notes

    was = after.series
    hanging.free.set()  # what it says at last belongs to no window
    assert after.series == was


def test_a_source_that_breaks_is_closed_and_its_error_is_told():
    class Broken(FakeSource):
        def utilization(self):
            raise ZeroDivisionError

    source = Broken()
    telemetry = SampledTelemetry([source], interval_s=0.01)
    telemetry.start([1], ENDPOINT)
    with pytest.raises(ZeroDivisionError):
        telemetry.stop()
    assert source.closed == 1
    assert telemetry.stop() == TelemetryWindow()


def test_stopping_what_was_not_started_gives_an_empty_window():
    assert SampledTelemetry([FakeSource()]).stop() == TelemetryWindow()


class FakeWatch:
    def begin(self, pids, endpoint):
        self.pids = pids

    def end(self):
        return Disturbance(foreign_cpu=0.3, throttled=("hot",), notes={"seen": str(self.pids)})


@pytest.mark.parametrize("refuse", ["", "no driver"])
def test_what_watches_saw_is_in_the_window_whatever_the_source(refuse):
    telemetry = SampledTelemetry([FakeSource("gpu", refuse=refuse)], watches=[FakeWatch()])
    telemetry.start([7], ENDPOINT)
    window = telemetry.stop()
    assert (window.foreign_cpu, window.throttled) == (0.3, ("hot",))
    assert window.notes["seen"] == "[7]"


def test_each_start_begins_anew():
    telemetry = SampledTelemetry([FakeSource()], interval_s=0.01)
    for _ in range(2):
        telemetry.start([1], ENDPOINT)
        window = telemetry.stop()
        assert len(window.series) <= 3


def test_the_mean_weighs_each_reading_by_the_time_since_the_one_before():
    assert time_weighted_mean([(1.0, 0.0), (4.0, 1.0)]) == pytest.approx(0.75)


def test_the_mean_leaves_out_unknown_readings_and_their_time():
    assert time_weighted_mean([(1.0, 0.5), (9.0, None), (10.0, 1.0)]) == pytest.approx(0.75)
    assert time_weighted_mean([(1.0, None)]) is None
    assert time_weighted_mean([]) is None


# ------------------------------------------------------------------------------------- processes
SPIN = """
import sys, time
print("up", flush=True)
sys.stdin.readline()
until = time.process_time() + 0.3
while time.process_time() < until: pass
print("spun", flush=True)
sys.stdin.readline()
"""
PARENT = f"""
import subprocess, sys
print("up", flush=True)
sys.stdin.readline()
subprocess.run([sys.executable, "-c", {SPIN!r}])
"""


@contextmanager
def process(code: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as started:
        assert started.stdout is not None
        assert started.stdout.readline() == "up\n"
        try:
            yield started
        finally:
            started.kill()


def say(started: subprocess.Popen[str]) -> str:
    assert started.stdin is not None
    assert started.stdout is not None
    started.stdin.write("\n")
    started.stdin.flush()
    return started.stdout.readline()


def cpu_s(source: ProcessCpu, began: float, utilization: float | None) -> float:
    assert utilization is not None
    return utilization * (time.monotonic() - began) * available_cores(os.getpid())


def test_the_processor_time_of_a_process_is_its_utilization():
    source = ProcessCpu()
    with process(SPIN) as spinning:
        began = time.monotonic()
        source.open([spinning.pid], ENDPOINT)
        assert say(spinning) == "spun\n"
        used = cpu_s(source, began, source.utilization())
    assert 0.25 <= used <= 0.6


def test_children_that_appear_later_are_counted():
    source = ProcessCpu(rescan_s=0)
    with process(PARENT) as parent:
        began = time.monotonic()
        source.open([parent.pid], ENDPOINT)
        assert say(parent) == "up\n"
        assert say(parent) == "spun\n"
        used = cpu_s(source, began, source.utilization())
        assert 0.25 <= used <= 1.0
        say_end(parent)


def say_end(started: subprocess.Popen[str]) -> None:
    """Let the grandchild end before its parent is killed."""
    say(started)
    started.wait(10)


def test_an_idle_process_has_a_utilization_of_about_zero():
    source = ProcessCpu()
    with process(SPIN) as idle:
        source.open([idle.pid], ENDPOINT)
        time.sleep(0.2)
        utilization = source.utilization()
    assert utilization is not None
    assert utilization < 0.1


def test_the_memory_of_processes_is_their_proportional_set_size():
    source = ProcessCpu()
    with process("block = b'x' * 50_000_000\n" + SPIN) as big:
        source.open([big.pid], ENDPOINT)
        memory_mb = source.memory_mb()
    assert source.memory_name == "process_pss"
    assert memory_mb is not None
    assert 50 <= memory_mb <= 150


def test_a_process_that_dies_meanwhile_is_no_error():
    source = ProcessCpu()
    with process(SPIN) as dying:
        source.open([dying.pid], ENDPOINT)
        dying.kill()
        dying.wait(10)
        assert source.utilization() == 0
        assert source.memory_mb() is None


@pytest.mark.parametrize("pids", [[], [2**22 + 1]])
def test_process_cpu_is_not_available_without_processes(pids):
    with pytest.raises(Unavailable):
        ProcessCpu().open(pids, ENDPOINT)


# ----------------------------------------------------------------------------------------- cores
def group(tmp_path, lines: str, **files: str):
    proc, cgroups = tmp_path / "proc", tmp_path / "cgroup"
    folder = proc / str(os.getpid())
    folder.mkdir(parents=True)
    (folder / "cgroup").write_text(lines)
    for name, text in files.items():
        path = cgroups / name.replace("__", "/").replace("cpu_", "cpu.")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return {"proc": proc, "cgroups": cgroups}


def test_without_a_quota_the_affinity_counts(tmp_path):
    places = group(tmp_path, "0::/a\n", a__cpu_max="max 100000\n")
    assert available_cores(os.getpid(), **places) == len(os.sched_getaffinity(0))


def test_a_quota_bounds_the_cores(tmp_path):
    places = group(tmp_path, "0::/a\n", a__cpu_max="50000 100000\n")
    assert available_cores(os.getpid(), **places) == 0.5


def test_the_quota_of_an_outer_group_bounds_the_cores_too(tmp_path):
    places = group(tmp_path, "0::/a/b\n", a__cpu_max="25000 100000\n", a__b__cpu_max="max 100000")
    assert available_cores(os.getpid(), **places) == 0.25


def test_a_quota_of_the_first_control_group_version_bounds_the_cores(tmp_path):
    places = group(
        tmp_path,
        "4:memory:/x\n1:cpu:/a\n",
        cpu__a__cpu_cfs_quota_us="50000\n",
        cpu__a__cpu_cfs_period_us="100000\n",
    )
    assert available_cores(os.getpid(), **places) == 0.5


# ---------------------------------------------------------------------------------- Triton's page
PAGE = """# HELP nv_gpu_utilization GPU utilization rate [0.0 - 1.0)
# TYPE nv_gpu_utilization gauge
nv_gpu_utilization{gpu_uuid="GPU-a"} 0.250000
nv_gpu_utilization{gpu_uuid="GPU-b"} 0.750000
nv_gpu_utilization_other{gpu_uuid="GPU-b"} 9
nv_gpu_memory_used_bytes{gpu_uuid="GPU-a"} 1e9
nv_gpu_memory_used_bytes{gpu_uuid="GPU-b"} 5e8 1700000000000
nv_gpu_memory_total_bytes{gpu_uuid="GPU-a"} 4e9
nv_gpu_memory_total_bytes{gpu_uuid="GPU-b"} 4e9
"""
POWER = """nv_gpu_power_usage{gpu_uuid="GPU-a"} 250
nv_gpu_power_usage{gpu_uuid="GPU-b"} 150.5
"""


def test_only_the_named_metric_is_read_from_a_page():
    assert parse_gauges(PAGE, "nv_gpu_utilization") == [0.25, 0.75]
    assert parse_gauges(PAGE, "nv_gpu_memory_used_bytes") == [1e9, 5e8]
    for no_number in ("NaN", "+Inf", "-Inf", "none"):
        assert parse_gauges(f"nv_gpu_utilization {no_number}\n", "nv_gpu_utilization") == []


def test_the_servers_own_gpu_metrics_are_averaged_and_its_memory_summed():
    source = TritonMetrics()
    with metrics_page(lambda: PAGE) as endpoint:
        source.open([], endpoint)
        assert (source.utilization(), source.memory_mb()) == (0.5, 1500)
        assert source.memory_total_mb() == 8000


def energy(joules: float) -> str:
    return f'nv_energy_consumption{{gpu_uuid="GPU-a"}} {joules}\n'


def test_the_servers_own_power_is_summed_and_its_energy_counted_from_the_beginning():
    pages = iter([PAGE + POWER + energy(1000.0), PAGE + POWER + energy(1012.5)])
    source = TritonMetrics()
    with metrics_page(lambda: next(pages)) as endpoint:
        source.open([], endpoint)
        source.utilization()
        assert source.gauges() == {
            "power_w": Reading(value=400.5, source="triton_metrics"),
            "energy_j": Reading(value=12.5, source="triton_metrics"),
        }


def test_the_energy_of_a_server_that_began_anew_is_unknown():
    pages = iter([PAGE + energy(1000.0), PAGE + energy(3.0)])
    source = TritonMetrics()
    with metrics_page(lambda: next(pages)) as endpoint:
        source.open([], endpoint)
        source.utilization()
        assert source.gauges() == {}


def test_a_server_that_tells_no_power_has_no_gauges():
    source = TritonMetrics()
    with metrics_page(lambda: PAGE) as endpoint:
        source.open([], endpoint)
        source.utilization()
        assert source.gauges() == {}


NO_POWER = 'nv_gpu_power_usage{gpu_uuid="GPU-a"} 0\n'


def test_memory_that_triton_cannot_read_is_unknown_not_zero():
    source = TritonMetrics()
    page = "nv_gpu_utilization 0.5\nnv_gpu_memory_used_bytes 0\nnv_gpu_memory_total_bytes 0\n"
    with metrics_page(lambda: page) as endpoint:
        source.open([], endpoint)
        assert (source.memory_mb(), source.memory_total_mb()) == (None, None)


@pytest.mark.parametrize("power", [NO_POWER, NO_POWER + POWER])
def test_power_and_energy_that_triton_cannot_read_are_unknown_not_zero(power):
    source = TritonMetrics()
    with metrics_page(lambda: PAGE + power + energy(0.0)) as endpoint:
        source.open([], endpoint)
        source.utilization()
        assert source.gauges() == {}


@pytest.mark.parametrize(
    "answer",
    [b"", b"no HTTP\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nnv_gpu_ut"],
)
def test_a_server_that_ends_within_its_answer_has_no_page(answer):
    with answering(answer) as endpoint, pytest.raises(Unavailable, match="cannot be read"):
        TritonMetrics().open([], endpoint)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("ftp://h/metrics", "not an HTTP metrics URL"),
        ("http://h:port/metrics", "cannot be read.*nonnumeric port"),
        ("http://[::1/metrics", "cannot be read.*Invalid IPv6"),
    ],
)
def test_what_is_no_url_of_a_page_is_not_available(url, why):
    endpoint = Endpoint(http="127.0.0.1:1", grpc="127.0.0.1:2", metrics_url=url)
    with pytest.raises(Unavailable, match=why):
        TritonMetrics().open([], endpoint)


def test_a_metrics_page_that_goes_away_is_unknown_not_zero():
    source = TritonMetrics()
    with metrics_page(lambda: PAGE) as endpoint:
        source.open([], endpoint)
    assert (source.utilization(), source.memory_mb()) == (None, None)


@pytest.mark.parametrize(
    ("page", "status", "why"), [("up 1\n", 200, "no GPU"), (PAGE, 404, "cannot be read")]
)
def test_a_page_without_gpus_is_not_available(page, status, why):
    with metrics_page(lambda: page, status) as endpoint, pytest.raises(Unavailable, match=why):
        TritonMetrics().open([], endpoint)


def test_a_remote_server_is_read_by_its_metrics():
    telemetry = choose(remote=True, interval_s=0.02)
    with metrics_page(lambda: PAGE) as endpoint:
        telemetry.start([], endpoint)
        time.sleep(0.1)
        window = telemetry.stop()
    assert (window.utilization, window.source) == (pytest.approx(0.5), "triton_metrics")


def test_a_remote_server_without_metrics_is_unknown():
    telemetry = choose(remote=True)
    telemetry.start([], ENDPOINT)
    window = telemetry.stop()
    assert (window.utilization, window.source) == (None, None)
    assert "no metrics URL" in window.notes["triton_metrics"]


# ----------------------------------------------------------------------------------- this machine
def test_a_machine_is_busy_by_a_share_of_its_processor():
    assert 0 <= machine.busy_percent() <= 100
