from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pynvml
import pytest

from autotune.adapters import machine
from autotune.adapters.telemetry import choose
from autotune.adapters.telemetry.cores import available_cores
from autotune.adapters.telemetry.disturbance import Disturbance
from autotune.adapters.telemetry.nvml import Nvml
from autotune.adapters.telemetry.process_cpu import ProcessCpu
from autotune.adapters.telemetry.sampling import (
    SampledTelemetry,
    Unavailable,
    time_weighted_mean,
)
from autotune.adapters.telemetry.triton_metrics import TritonMetrics, parse_gauges
from autotune.core.measurement import TelemetryWindow
from autotune.core.model_interface import Endpoint
from tests.metrics_page import metrics_page

ENDPOINT = Endpoint(http="127.0.0.1:1", grpc="127.0.0.1:2")


class FakeSource:
    def __init__(self, name="fake", readings=(0.5,), memory=(100.0,), refuse=""):
        self.name = name
        self.memory_name = f"{name}_memory"
        self.readings = iter([*readings, *[readings[-1]] * 10_000])
        self.memory = iter([*memory, *[memory[-1]] * 10_000])
        self.refuse = refuse
        self.closed = 0

    def open(self, pids, endpoint):
        if self.refuse:
            raise Unavailable(self.refuse)
        return {"opened": self.name}

    def utilization(self):
        return next(self.readings)

    def memory_mb(self):
        return next(self.memory)

    def disturbance(self):
        return Disturbance()

    def close(self):
        self.closed += 1


def sampled(*sources, wait_s=0.05) -> TelemetryWindow:
    telemetry = SampledTelemetry(sources, interval_s=0.01)
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


def test_stopping_closes_the_source_and_ends_the_thread():
    source = FakeSource()
    sampled(source)
    assert source.closed == 1
    assert "telemetry" not in {thread.name for thread in threading.enumerate()}


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


# ------------------------------------------------------------------------------------------ NVML
class FakeNvml:
    """Two devices; the process of id ``own`` runs on the second."""

    NVMLError = pynvml.NVMLError

    def __init__(
        self,
        *,
        users=((), ()),
        rates=(10, 80),
        init_error=None,
        rate_error=None,
        reasons=0,
        reasons_error=None,
        work_error=None,
    ):
        self.users, self.rates = users, rates
        self.init_error, self.rate_error = init_error, rate_error
        self.reasons, self.reasons_error = reasons, reasons_error
        self.work, self.work_error = [], work_error
        self.instances = {}
        self.open = 0

    def nvmlInit(self):
        if self.init_error is not None:
            raise pynvml.NVMLError(self.init_error)
        self.open += 1

    def nvmlShutdown(self):
        self.open -= 1

    def nvmlDeviceGetCount(self):
        return 2

    def nvmlDeviceGetHandleByIndex(self, index):
        return index

    def nvmlDeviceGetComputeRunningProcesses(self, device):
        return [
            SimpleNamespace(pid=pid, gpuInstanceId=self.instances.get(pid))
            for pid in self.users[device]
        ]

    def nvmlDeviceGetUtilizationRates(self, device):
        if self.rate_error is not None:
            raise pynvml.NVMLError(self.rate_error)
        return SimpleNamespace(gpu=self.rates[device])

    def nvmlDeviceGetMemoryInfo(self, device):
        return SimpleNamespace(used=(device + 1) * 1_000_000_000)

    def nvmlDeviceGetCurrentClocksEventReasons(self, device):
        if self.reasons_error is not None:
            raise pynvml.NVMLError(self.reasons_error)
        return self.reasons

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, device):
        if self.reasons_error == pynvml.NVML_ERROR_NOT_SUPPORTED:
            raise pynvml.NVMLError(self.reasons_error)
        return self.reasons

    def nvmlDeviceGetProcessUtilization(self, device, since_us):
        new = [sample for sample in self.work if sample.timeStamp > since_us]
        if self.work_error is not None or not new:
            raise pynvml.NVMLError(self.work_error or pynvml.NVML_ERROR_NOT_FOUND)
        return new


ME, OTHER, HIDDEN = os.getpid(), os.getppid(), 2**22 + 1


def test_nvml_reads_the_devices_that_the_server_uses():
    source = Nvml(library=FakeNvml(users=((), (ME,))))
    notes = source.open([ME], ENDPOINT)
    assert (source.utilization(), source.memory_mb()) == (0.8, 2000)
    assert notes == {"nvml_devices": "1"}


def test_foreign_processes_on_the_device_are_noted():
    notes = Nvml(library=FakeNvml(users=((), (ME, OTHER)))).open([ME], ENDPOINT)
    assert notes["nvml_foreign_processes"] == str(OTHER)


def test_processes_hidden_by_a_namespace_are_taken_for_the_servers_with_a_note():
    source = Nvml(library=FakeNvml(users=((HIDDEN,), ())))
    notes = source.open([ME], ENDPOINT)
    assert source.utilization() == 0.1
    assert "hidden" in notes["nvml_processes"]


@pytest.mark.parametrize(
    "library",
    [
        FakeNvml(users=((), (OTHER,))),
        FakeNvml(users=((), ())),
        FakeNvml(init_error=pynvml.NVML_ERROR_LIBRARY_NOT_FOUND),
        FakeNvml(init_error=pynvml.NVML_ERROR_DRIVER_NOT_LOADED),
    ],
)
def test_nvml_is_not_available_without_a_driver_or_a_process_of_the_server_on_a_gpu(library):
    with pytest.raises(Unavailable):
        Nvml(library=library).open([ME], ENDPOINT)
    assert library.open == 0


def test_nvml_is_not_available_for_a_remote_server():
    with pytest.raises(Unavailable, match="not on this machine"):
        Nvml(library=FakeNvml()).open([], ENDPOINT)


def test_rates_that_a_device_does_not_have_are_unknown_not_zero():
    library = FakeNvml(users=((), (ME,)), rate_error=pynvml.NVML_ERROR_NOT_SUPPORTED)
    source = Nvml(library=library)
    source.open([ME], ENDPOINT)
    assert (source.utilization(), source.memory_mb()) == (None, 2000)


def test_closing_shuts_nvml_down():
    library = FakeNvml(users=((), (ME,)))
    source = Nvml(library=library)
    source.open([ME], ENDPOINT)
    source.close()
    assert library.open == 0


def looked_at(library: FakeNvml, *, pids=(ME,), looks: int = 1) -> Disturbance:
    source = Nvml(library=library)
    source.open(list(pids), ENDPOINT)
    for _ in range(looks):
        source.utilization()
    return source.disturbance()


def work(pid: int, percent: int, at_us: int = 5) -> SimpleNamespace:
    return SimpleNamespace(pid=pid, smUtil=percent, timeStamp=at_us)


def test_a_device_left_alone_has_no_disturbance():
    assert looked_at(FakeNvml(users=((), (ME,)))) == Disturbance()


HEAT = pynvml.nvmlClocksEventReasonHwThermalSlowdown


@pytest.mark.parametrize("error", [None, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND])
def test_a_device_that_slows_down_for_heat_is_throttled_with_older_drivers_too(error):
    library = FakeNvml(users=((), (ME,)), reasons=HEAT, reasons_error=error)
    found = looked_at(library, looks=3)
    assert found.throttled == ("GPU slowed by its hardware for heat in 3 of 3 readings",)


def test_a_power_limit_is_noted_and_no_throttling():
    reasons = pynvml.nvmlClocksEventReasonSwPowerCap | pynvml.nvmlClocksEventReasonGpuIdle
    found = looked_at(FakeNvml(users=((), (ME,)), reasons=reasons))
    assert found.throttled == ()
    assert found.notes == {"nvml_power_cap": "held to its power limit in 1 of 1 readings"}


def test_a_device_that_does_not_tell_why_it_slows_down_says_so():
    library = FakeNvml(users=((), (ME,)), reasons_error=pynvml.NVML_ERROR_NOT_SUPPORTED)
    assert "not told" in looked_at(library).notes["nvml_clocks"]


def test_only_other_processes_that_work_on_the_device_are_foreign():
    library = FakeNvml(users=((), (ME, OTHER)))
    source = Nvml(library=library)
    source.open([ME], ENDPOINT)
    library.work = [work(ME, 90), work(OTHER, 60), work(1, 2)]
    source.utilization()
    assert source.disturbance().foreign_gpu == (OTHER,)


def test_work_from_before_the_window_is_not_foreign():
    library = FakeNvml(users=((), (ME, OTHER)))
    library.work = [work(OTHER, 60)]
    assert looked_at(library).foreign_gpu == ()


def test_children_of_the_server_that_came_later_are_its_own():
    library = FakeNvml(users=((), (OTHER,)))
    source = Nvml(library=library)
    source.open([OTHER], ENDPOINT)
    library.work = [work(ME, 60)]
    source.utilization()
    assert source.disturbance().foreign_gpu == ()


def test_where_work_is_not_told_those_on_the_same_part_of_the_device_are_foreign():
    library = FakeNvml(users=((), (ME, OTHER, 1)), work_error=pynvml.NVML_ERROR_NOT_SUPPORTED)
    library.instances = {ME: 3, OTHER: 3, 1: 4}
    assert looked_at(library).foreign_gpu == (OTHER,)


def test_processes_hidden_by_a_namespace_are_not_taken_for_foreign():
    library = FakeNvml(users=((HIDDEN,), ()), work_error=pynvml.NVML_ERROR_NOT_SUPPORTED)
    assert looked_at(library).foreign_gpu == ()


def test_without_a_gpu_the_processes_are_measured_and_the_notes_say_why():
    gone = FakeNvml(init_error=pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)
    telemetry = SampledTelemetry([Nvml(library=gone), ProcessCpu()], interval_s=0.02)
    telemetry.start([ME], ENDPOINT)
    time.sleep(0.1)
    window = telemetry.stop()
    assert window.source == "process_cpu"
    assert window.notes["nvml"].startswith("NVML")


# ---------------------------------------------------------------------------------- Triton's page
PAGE = """# HELP nv_gpu_utilization GPU utilization rate [0.0 - 1.0)
# TYPE nv_gpu_utilization gauge
nv_gpu_utilization{gpu_uuid="GPU-a"} 0.250000
nv_gpu_utilization{gpu_uuid="GPU-b"} 0.750000
nv_gpu_utilization_other{gpu_uuid="GPU-b"} 9
nv_gpu_memory_used_bytes{gpu_uuid="GPU-a"} 1e9
nv_gpu_memory_used_bytes{gpu_uuid="GPU-b"} 5e8 1700000000000
"""


def test_only_the_named_metric_is_read_from_a_page():
    assert parse_gauges(PAGE, "nv_gpu_utilization") == [0.25, 0.75]
    assert parse_gauges(PAGE, "nv_gpu_memory_used_bytes") == [1e9, 5e8]
    assert parse_gauges("nv_gpu_utilization NaN\n", "nv_gpu_utilization") == []


def test_the_servers_own_gpu_metrics_are_averaged_and_its_memory_summed():
    source = TritonMetrics()
    with metrics_page(lambda: PAGE) as endpoint:
        source.open([], endpoint)
        assert (source.utilization(), source.memory_mb()) == (0.5, 1500)


def test_a_metrics_page_that_goes_away_is_unknown_not_zero():
    source = TritonMetrics()
    with metrics_page(lambda: PAGE) as endpoint:
        source.open([], endpoint)
    assert (source.utilization(), source.memory_mb()) == (None, None)


@pytest.mark.parametrize(("page", "status"), [("up 1\n", 200), (PAGE, 404)])
def test_a_page_without_gpus_is_not_available(page, status):
    with metrics_page(page, status) as endpoint, pytest.raises(Unavailable):
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
