"""What NVML tells of a server's GPUs, by the real pynvml on a library that is made for it."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pynvml
import pytest

from autotune.adapters import hardware
from autotune.adapters.telemetry import parts
from autotune.adapters.telemetry.disturbance import Disturbance
from autotune.adapters.telemetry.nvml import Nvml
from autotune.adapters.telemetry.process_cpu import ProcessCpu
from autotune.adapters.telemetry.sampling import Reading, SampledTelemetry, Unavailable
from autotune.core.measurement import GAUGES, TelemetryWindow
from autotune.core.model_interface import Endpoint
from autotune.core.validity import LOST_GPU
from tests.fake_nvml import FakeNvml

ENDPOINT = Endpoint(http="127.0.0.1:1", grpc="127.0.0.1:2")
ME, OTHER, HIDDEN = os.getpid(), os.getppid(), 2**22 + 1
NO_DRIVER = pynvml.NVML_ERROR_LIBRARY_NOT_FOUND
NOT_LOADED = pynvml.NVML_ERROR_DRIVER_NOT_LOADED
NOT_SUPPORTED = pynvml.NVML_ERROR_NOT_SUPPORTED
NO_PERMISSION = pynvml.NVML_ERROR_NO_PERMISSION
SM, OCCUPANCY, TENSOR, DRAM, TX, RX, BUSY = 2, 3, 5, 10, 20, 21, 1
"""GPM's numbers of what it counts."""


class Seen:
    """A source that is open, on a library whose clock is set; ``notes`` are those of opening."""

    def __init__(self, nvml: FakeNvml, *told: str, pids=(ME,), proc: Path = parts.PROC):
        self.nvml = nvml
        self.now_s = 100.0
        nvml.set("now=100", *told)
        self.source = Nvml(clock=lambda: self.now_s, proc=proc)
        self.notes = self.source.open(list(pids), ENDPOINT)

    def after(self, seconds: float, *told: str) -> Seen:
        self.now_s += seconds
        self.nvml.set(f"now={self.now_s}", *told)
        return self

    def read(self) -> dict[str, Reading]:
        self.source.utilization()
        return dict(self.source.gauges())

    def utilization(self) -> float | None:
        return self.source.utilization()

    def disturbance(self, *told: str, looks: int = 1) -> Disturbance:
        for _ in range(looks):
            self.after(1.0, *told).source.utilization()
        return self.source.disturbance()


def window(nvml: FakeNvml, *told: str, then: str = "") -> TelemetryWindow:
    """Of a server in this process, sampled for a while, in the middle of which ``then`` is said."""
    nvml.set(*told)
    telemetry = SampledTelemetry([Nvml(), ProcessCpu()], interval_s=0.11)
    telemetry.start([ME], ENDPOINT)
    time.sleep(0.25)
    nvml.set(then)
    time.sleep(0.12)
    return telemetry.stop()


# --------------------------------------------------------------------------- whose GPUs they are
def test_the_gpus_that_the_server_uses_are_read(nvml):
    seen = Seen(nvml, "gpus=2", f"users.1={ME}", "busy.0=10", "busy.1=80", "used.1=2000")
    assert seen.utilization() == 0.8
    assert (seen.source.memory_mb(), seen.source.memory_total_mb()) == (2000, 150_000)
    assert seen.notes == {"nvml_devices": "1"}


def test_a_server_on_several_gpus_has_their_mean_and_their_sums(nvml):
    seen = Seen(
        nvml, "gpus=2", f"users={ME}", "busy.0=10", "busy.1=80", "used=2000", "power.0=100",
        "power.1=300", "metric2.0=20", "metric2.1=60", "metric20=100",
    )  # fmt: skip
    read = seen.after(1.0).read()
    assert seen.utilization() == 0.45
    assert seen.source.memory_mb() == 4000
    assert (read["power_w"].value, read["sm_active"].value) == (400, pytest.approx(0.4))
    assert read["pcie_tx_mb_s"].value == pytest.approx(2 * 104.8576)


def test_what_one_of_several_gpus_does_not_tell_is_unknown_not_zero(nvml):
    refusals = (f"nvmlDeviceGetPowerUsage.1={NOT_SUPPORTED}", "unmeasured5.1=3")
    seen = Seen(nvml, "gpus=2", f"users={ME}", "power=100", "metric5=50", *refusals)
    read = seen.after(1.0).read()
    assert not {"power_w", "tensor_active"} & set(read)
    assert "sm_active" in read
    assert seen.source.disturbance().notes["nvml_power_w"] == "NVML: Not Supported"


def test_a_lost_gpu_beside_the_servers_does_not_matter(nvml):
    lost = f"nvmlDeviceGetHandleByIndex_v2.0={pynvml.NVML_ERROR_GPU_IS_LOST}"
    seen = Seen(nvml, "gpus=2", f"users.1={ME}", "busy.1=80", lost)
    assert seen.utilization() == 0.8
    assert LOST_GPU not in seen.source.disturbance().notes


def test_foreign_processes_on_the_device_are_noted(nvml):
    notes = Seen(nvml, f"users={ME},{OTHER}").notes
    assert notes["nvml_foreign_processes"] == str(OTHER)


def test_processes_hidden_by_a_namespace_are_taken_for_the_servers_with_a_note(nvml):
    seen = Seen(nvml, "gpus=2", f"users.1={HIDDEN}", "busy.1=10")
    assert seen.utilization() == 0.1
    assert "hidden" in seen.notes["nvml_processes"]


OURS = (OTHER, ME)
"""A server's processes: the first is its own, the second a model's."""


@pytest.mark.parametrize(
    ("told", "apart", "devices"),
    [
        (f"users={OTHER} users.1={OTHER},{ME}", True, "1"),
        (f"users={OTHER} users.1={OTHER},{ME}", False, "0, 1"),
        (f"users={OTHER}", False, "0, 1"),
    ],
    ids=["model apart", "not apart", "no model"],  # a process's id is none that all runners share
)
def test_where_models_run_apart_the_gpus_are_theirs_not_all_that_the_server_opened(
    nvml, told, apart, devices
):
    nvml.set("gpus=2", *told.split())
    seen = Nvml(models_apart=apart)
    assert seen.open(OURS, ENDPOINT)["nvml_devices"] == devices
    assert "nvml_foreign_processes" not in seen.open(OURS, ENDPOINT)


def test_a_server_whose_models_compute_on_the_processor_alone_is_not_judged_by_its_gpus(nvml):
    nvml.set("gpus=2", f"users={OTHER}")
    with pytest.raises(Unavailable, match="no model of the server has a process on a GPU"):
        Nvml(models_apart=True).open(OURS, ENDPOINT)
    assert nvml.begun == 0


def files_open(tmp_path: Path, *files: str) -> Path:
    """A ``/proc`` in which this process has these files open."""
    folder = tmp_path / str(ME) / "fd"
    folder.mkdir(parents=True)
    for number, file in enumerate(files):
        (folder / str(number)).symlink_to(file)
    return tmp_path


CUDA = "/dev/nvidia-uvm"


def test_where_no_process_is_listed_open_device_files_tell_the_servers_gpus(nvml, tmp_path):
    proc = files_open(tmp_path, CUDA, "/dev/nvidiactl", "/dev/nvidia1")
    seen = Seen(nvml, "gpus=2", "busy.1=60", "used=900", "work.1=77:50", proc=proc)
    assert seen.utilization() == 0.6
    assert seen.notes["nvml_devices"] == "1"
    assert "whose files it has open" in seen.notes["nvml_processes"]
    assert seen.disturbance("work.1=77:50").foreign_gpu == ()


def test_of_several_open_device_files_those_of_gpus_in_use_count(nvml, tmp_path):
    proc = files_open(tmp_path, CUDA, "/dev/nvidia0", "/dev/nvidia1")
    seen = Seen(nvml, "gpus=2", "reserved=600", "used.1=900", proc=proc)
    assert seen.notes["nvml_devices"] == "1"


def test_an_old_driver_tells_memory_in_use_with_what_it_reserves(old_nvml, tmp_path):
    proc = files_open(tmp_path, CUDA, "/dev/nvidia0")
    assert Seen(old_nvml, "major=7", "used=900", proc=proc).notes["nvml_devices"] == "0"


def test_open_device_files_tell_which_of_the_hidden_processes_are_the_servers(nvml, tmp_path):
    proc = files_open(tmp_path, CUDA, "/dev/nvidia1")
    hidden = (f"users.0={HIDDEN}", f"users.1={HIDDEN + 1}")
    seen = Seen(nvml, "gpus=2", "used=900", *hidden, proc=proc)
    assert seen.notes["nvml_devices"] == "1"


@pytest.mark.parametrize(
    ("files", "told"),
    [
        (["/dev/nvidiactl", "/dev/nvidia0"], "used=900"),  # NVML alone opens these
        ([CUDA, "/dev/nvidiactl"], "used=900"),
        ([CUDA, "/dev/nvidia0"], "reserved=600"),  # CUDA was looked for, and not used
        ([CUDA, "/dev/nvidia0"], f"used=900 users={OTHER}"),  # it is another's
    ],
)
def test_a_server_that_uses_no_gpu_is_not_judged_by_an_idle_one(nvml, tmp_path, files, told):
    with pytest.raises(Unavailable, match="no process on a GPU"):
        Seen(nvml, told, proc=files_open(tmp_path, *files))


@pytest.mark.parametrize(
    ("told", "why"),
    [
        (f"users={OTHER}", "no process on a GPU"),
        ("users=", "no process on a GPU"),
        ("gpus=0", "no process on a GPU"),
        (f"nvmlInitWithFlags={NO_DRIVER}", "Library Not Found"),
        (f"nvmlInitWithFlags={NOT_LOADED}", "Driver Not Loaded"),
        (f"nvmlDeviceGetCount_v2={NO_PERMISSION}", "Insufficient Permissions"),
        (
            f"nvmlDeviceGetComputeRunningProcesses_v3={NO_PERMISSION}",
            "who uses GPU 0 is not told: NVML: Insufficient Permissions",
        ),
    ],
)
def test_nvml_is_not_available_without_a_driver_or_a_process_of_the_server_on_a_gpu(
    nvml, told, why
):
    with pytest.raises(Unavailable, match=why):
        Seen(nvml, told)
    assert nvml.begun == 0


def test_nvml_is_not_available_for_a_remote_server(nvml):
    with pytest.raises(Unavailable, match="not on this machine"):
        Seen(nvml, pids=())


def test_without_a_gpu_the_processes_are_measured_and_the_notes_say_why(nvml):
    seen = window(nvml, f"nvmlInitWithFlags={NO_DRIVER}")
    assert seen.source == "process_cpu"
    assert seen.notes["nvml"].startswith("NVML")
    assert seen.gauges == {}


def test_closing_ends_nvml_and_frees_what_was_taken(nvml):
    seen = Seen(nvml, f"users={ME}")
    assert (nvml.begun, nvml.samples) == (1, 2)
    seen.source.close()
    assert (nvml.begun, nvml.samples) == (0, 0)


# ------------------------------------------------------------------------------- the counters
@pytest.mark.parametrize(
    ("gauge", "told", "value", "source"),
    [
        ("sm_active", f"metric{SM}=64", 0.64, "gpm"),
        ("sm_occupancy", f"metric{OCCUPANCY}=31", 0.31, "gpm"),
        ("tensor_active", f"metric{TENSOR}=48", 0.48, "gpm"),
        ("dram_active", f"metric{DRAM}=22", 0.22, "gpm"),
        ("pcie_rx_mb_s", f"metric{RX}=1000", 1048.576, "gpm"),
        ("pcie_tx_mb_s", f"metric{TX}=500", 524.288, "gpm"),
        ("power_w", "power=412.5", 412.5, "nvml"),
        ("energy_j", "energy=1012.5", 12.5, "nvml"),
        ("sm_clock_mhz", "sm_clock=1980", 1980, "nvml"),
        ("memory_clock_mhz", "memory_clock=2619", 2619, "nvml"),
        ("temperature_c", "celsius=61", 61, "nvml"),
    ],
)
def test_each_counter_arrives_in_its_unit_with_its_source(nvml, gauge, told, value, source):
    seen = Seen(nvml, f"users={ME}", "energy=1000", *([told] if source == "gpm" else []))
    read = seen.after(1.0, told).read()
    assert read[gauge] == Reading(value=pytest.approx(value), source=source)
    assert set(read) == set(GAUGES)


def test_every_gauge_is_sampled_over_the_window(nvml):
    seen = window(nvml, f"users={ME}", "busy=70", f"metric{SM}=64", "power=400", "used=900")
    assert (seen.utilization, seen.source) == (pytest.approx(0.7), "nvml")
    assert (seen.memory_mb, seen.memory_total_mb) == (900, 150_000)
    assert set(seen.gauges) == set(GAUGES)
    for gauge in seen.gauges.values():
        at = [moment for moment, _ in gauge.series]
        assert len(at) >= 2
        assert at == sorted(at)
        assert 0 < at[0] <= at[-1] < 5
    assert seen.gauges["sm_active"].value == pytest.approx(0.64)


def test_a_counter_is_the_mean_since_the_reading_before(nvml):
    seen = Seen(nvml, f"users={ME}", f"metric{SM}=100")
    assert seen.after(1.0, f"metric{SM}=0").after(3.0).read()["sm_active"].value == 0.25
    assert seen.after(1.0).read()["sm_active"].value == 0


def test_readings_less_than_a_tenth_of_a_second_apart_are_left_to_the_next(nvml):
    seen = Seen(nvml, f"users={ME}", f"metric{SM}=100")
    assert "sm_active" not in seen.after(0.09).read()
    assert "power_w" in seen.read()
    assert seen.after(0.06, f"metric{SM}=40").read()["sm_active"].value == pytest.approx(1.0)


@pytest.mark.parametrize("told", [f"unmeasured{TENSOR}={NOT_SUPPORTED}", f"metric{TENSOR}=nan"])
def test_a_counter_that_the_gpu_does_not_have_is_missing_not_zero(nvml, told):
    seen = Seen(nvml, f"users={ME}", f"metric{SM}=50", told)
    read = seen.after(1.0).read()
    assert "tensor_active" not in read
    assert read["sm_active"].value == 0.5


@pytest.mark.parametrize(
    ("gauge", "function"),
    [
        ("power_w", "nvmlDeviceGetPowerUsage"),
        ("sm_clock_mhz", "nvmlDeviceGetClockInfo"),
        ("temperature_c", "nvmlDeviceGetTemperature"),
    ],
)
def test_what_the_gpu_does_not_tell_is_missing_and_a_note_says_why(nvml, gauge, function):
    seen = Seen(nvml, f"users={ME}", f"{function}={NOT_SUPPORTED}")
    assert gauge not in seen.read()
    assert seen.source.disturbance().notes[f"nvml_{gauge}"] == "NVML: Not Supported"


def test_rates_that_a_gpu_does_not_have_are_those_of_its_counters(nvml):
    refusal = f"nvmlDeviceGetUtilizationRates={NOT_SUPPORTED}"
    seen = Seen(nvml, f"users={ME}", f"metric{BUSY}=30", refusal)
    assert seen.after(1.0).utilization() == pytest.approx(0.3)


def test_rates_that_nothing_tells_are_unknown_not_zero(nvml):
    refusal = f"nvmlDeviceGetUtilizationRates={NOT_SUPPORTED}"
    seen = Seen(nvml, f"users={ME}", "major=8", "used=2000", refusal)
    assert (seen.utilization(), seen.source.memory_mb()) == (None, 2000)


def test_memory_that_is_not_told_is_unknown_not_zero(nvml):
    seen = Seen(nvml, f"users={ME}", f"nvmlDeviceGetMemoryInfo={NOT_SUPPORTED}")
    assert (seen.source.memory_mb(), seen.source.memory_total_mb()) == (None, None)


def test_a_gpu_before_hopper_has_no_such_counters_but_all_else(nvml):
    seen = Seen(nvml, f"users={ME}", "major=8", "energy=5")
    read = seen.after(1.0, "energy=8").read()
    assert set(read) == {
        "power_w", "energy_j", "sm_clock_mhz", "memory_clock_mhz", "temperature_c",
    }  # fmt: skip
    assert read["energy_j"].value == 3
    assert seen.notes["gpm"] == "NVML: Not Supported"


@pytest.mark.parametrize("function", ["nvmlGpmSampleGet", "nvmlGpmQueryDeviceSupport"])
def test_counters_that_need_permission_are_missing_and_a_note_says_why(nvml, function):
    seen = Seen(nvml, f"users={ME}", f"{function}={NO_PERMISSION}")
    assert "sm_active" not in seen.after(1.0).read()
    assert seen.notes["gpm"] == "NVML: Insufficient Permissions"
    assert nvml.samples == 0


# ------------------------------------------------------------------------------- old drivers
def test_without_an_energy_counter_power_is_integrated(old_nvml):
    seen = Seen(old_nvml, f"users={ME}", "major=6", "power=200")
    assert seen.after(2.0).read()["energy_j"] == Reading(value=400.0, source="nvml_power")
    assert seen.after(1.0, "power=50").read()["energy_j"].value == 450.0


def test_an_old_driver_lists_its_processes_and_says_that_it_has_no_counters(old_nvml):
    seen = Seen(old_nvml, f"users={ME}", "major=7", "busy=40")
    assert seen.utilization() == 0.4
    assert seen.notes["gpm"] == "NVML: Function Not Found"


# ------------------------------------------------------------------------------------- slices
SLICED = ("slices.0=2", f"users.0:1={ME}")


def test_a_slice_is_read_by_its_own_counters_and_memory(nvml):
    seen = Seen(nvml, *SLICED, f"metric{BUSY}.0:1=70", f"metric{SM}.0:1=35", "used.0:1=900")
    assert seen.after(1.0).utilization() == pytest.approx(0.7)
    assert seen.source.gauges()["sm_active"] == Reading(value=pytest.approx(0.35), source="gpm")
    assert (seen.source.memory_mb(), seen.source.memory_total_mb()) == (900, 18_000)
    assert seen.notes["nvml_devices"] == "0:1"


def test_what_a_slice_does_not_count_is_missing(nvml):
    read = Seen(nvml, *SLICED).after(1.0).read()
    assert not {"pcie_rx_mb_s", "pcie_tx_mb_s"} & set(read)


def test_power_and_energy_of_a_slice_are_called_those_of_the_whole_gpu(nvml):
    seen = Seen(nvml, *SLICED, "energy=1", "power=300")
    read = seen.after(1.0, "energy=4").read()
    assert read["power_w"] == Reading(value=300, source="nvml_whole_gpu")
    assert read["energy_j"] == Reading(value=3, source="nvml_whole_gpu")
    assert "whole GPU" in seen.notes["nvml_mig"]


def test_power_of_two_slices_of_a_gpu_is_counted_once(nvml):
    seen = Seen(nvml, "slices.0=2", f"users.0:0={ME}", f"users.0:1={ME}", "power=300")
    assert seen.read()["power_w"].value == 300


def test_a_slice_before_hopper_has_no_utilization_at_all(nvml):
    seen = Seen(nvml, *SLICED, "major=8")
    assert seen.after(1.0).utilization() is None
    assert seen.notes["gpm"] == "NVML: Not Supported"


def test_processes_of_a_slice_may_be_listed_with_the_whole_gpu(nvml):
    refusals = [f"nvmlDeviceGetComputeRunningProcesses_v3.0:{s}={NOT_SUPPORTED}" for s in (0, 1)]
    seen = Seen(nvml, *SLICED, f"users.0:0={OTHER}", *refusals)
    assert seen.notes["nvml_devices"] == "0:1"
    assert "nvml_foreign_processes" not in seen.notes


def test_only_those_on_the_same_slice_are_foreign(nvml):
    seen = Seen(nvml, "slices.0=2", f"users.0:0={OTHER}", f"users.0:1={ME},1")
    assert seen.disturbance().foreign_gpu == (1,)


# ------------------------------------------------------------------------------ a GPU that goes
def test_a_gpu_that_is_lost_leaves_its_utilization_unknown_and_says_so(nvml):
    seen = window(nvml, f"users={ME}", "busy=70", then="lost=0")
    assert (seen.utilization, seen.source, seen.gauges) == (None, None, {})
    assert seen.notes[LOST_GPU] == "NVML: GPU is lost"


@pytest.mark.parametrize(
    "error",
    [pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED, pynvml.NVML_ERROR_UNKNOWN],
)
def test_a_gpu_that_was_lost_between_two_windows_is_not_taken_for_a_server_without_one(nvml, error):
    telemetry = SampledTelemetry([Nvml(), ProcessCpu()], interval_s=0.01)
    nvml.set("gpus=2", f"users.1={ME}", "busy=70", "used=500", f"reasons={HARDWARE}")
    telemetry.start([ME], ENDPOINT)
    before = telemetry.stop()
    assert (before.source, len(before.throttled)) == ("nvml", 1)
    nvml.set(f"nvmlDeviceGetHandleByIndex_v2.1={error}")
    telemetry.start([ME], ENDPOINT)
    after = telemetry.stop()
    assert after.notes[LOST_GPU].startswith("NVML: GPU 1: ")
    assert (after.utilization, after.memory_mb, after.gauges) == (None, None, {})
    assert (after.throttled, nvml.begun) == ((), 0)


def test_a_gpu_that_a_later_server_does_not_use_is_not_missed(nvml):
    telemetry = SampledTelemetry([Nvml(), ProcessCpu()], interval_s=0.01)
    nvml.set(f"users={ME}")
    telemetry.start([ME], ENDPOINT)
    telemetry.stop()
    nvml.set("users=")
    telemetry.start([ME], ENDPOINT)
    assert telemetry.stop().source == "process_cpu"


def test_wherever_a_gpu_is_lost_nothing_breaks_and_everything_is_given_back(nvml):
    lost = []
    for reads in range(40):
        nvml.set("reset")
        try:
            seen = Seen(nvml, f"users={ME}", f"lost={reads}")
        except Unavailable:
            continue
        finally:
            assert (nvml.begun, nvml.samples) in ((0, 0), (1, 2), (1, 0))
        seen.after(1.0).read()
        seen.source.memory_mb()
        lost.append(LOST_GPU in seen.source.disturbance().notes)
        seen.source.close()
        assert (nvml.begun, nvml.samples) == (0, 0)
    assert lost == sorted(lost, reverse=True)
    assert set(lost) == {True, False}


# -------------------------------------------------------------------------------- disturbances
def test_a_gpu_left_alone_has_no_disturbance(nvml):
    assert Seen(nvml, f"users={ME}").disturbance() == Disturbance()


HEAT = pynvml.nvmlClocksEventReasonHwThermalSlowdown
HARDWARE = pynvml.nvmlClocksEventReasonHwSlowdown


def test_a_gpu_that_slows_down_for_heat_is_throttled(nvml):
    found = Seen(nvml, f"users={ME}", f"reasons={HEAT | HARDWARE}").disturbance(looks=3)
    assert found.throttled == ("GPU slowed by its hardware for heat in 3 of 3 readings",)


def test_a_gpu_that_slows_down_is_throttled_with_older_drivers_too(old_nvml):
    found = Seen(old_nvml, f"users={ME}", f"reasons={HARDWARE}").disturbance()
    assert found.throttled == ("GPU slowed by its hardware in 1 of 1 readings",)


def test_a_power_limit_is_noted_and_no_throttling(nvml):
    reasons = pynvml.nvmlClocksEventReasonSwPowerCap | pynvml.nvmlClocksEventReasonGpuIdle
    found = Seen(nvml, f"users={ME}", f"reasons={reasons}").disturbance()
    assert found.throttled == ()
    assert found.notes == {"nvml_power_cap": "held to its power limit in 1 of 1 readings"}


def test_a_gpu_that_does_not_tell_why_it_slows_down_says_so(nvml):
    refusal = f"nvmlDeviceGetCurrentClocksEventReasons={NOT_SUPPORTED}"
    found = Seen(nvml, f"users={ME}", refusal).disturbance()
    assert "not told" in found.notes["nvml_clocks"]


def test_only_other_processes_that_work_on_the_gpu_are_foreign(nvml):
    seen = Seen(nvml, f"users={ME},{OTHER}")
    assert seen.disturbance(f"work={ME}:90,{OTHER}:60,1:2").foreign_gpu == (OTHER,)


def test_samples_of_no_process_and_of_more_than_there_is_are_left_out(nvml):
    seen = Seen(nvml, f"users={ME}")
    assert seen.disturbance("work=0:60,1:4000").foreign_gpu == ()


@pytest.mark.parametrize("told", ["stale=0", "stale=1"])  # 1: a driver that tells more than asked
def test_work_from_before_the_window_is_not_foreign(nvml, told):
    seen = Seen(nvml, f"users={ME},{OTHER}", f"work={OTHER}:60", told)
    assert seen.disturbance().foreign_gpu == ()


def test_children_of_the_server_that_came_later_are_its_own(nvml):
    seen = Seen(nvml, f"users={OTHER}", pids=(OTHER,))
    assert seen.disturbance(f"work={ME}:60").foreign_gpu == ()


@pytest.mark.parametrize("error", [NOT_SUPPORTED, NO_PERMISSION])
def test_where_work_is_not_told_those_on_the_same_gpu_are_foreign(nvml, error):
    seen = Seen(nvml, f"users={ME},{OTHER}", f"nvmlDeviceGetProcessUtilization={error}")
    assert seen.disturbance().foreign_gpu == (OTHER,)


def test_work_that_could_not_be_read_just_now_accuses_nobody(nvml):
    refusal = f"nvmlDeviceGetProcessUtilization={pynvml.NVML_ERROR_TIMEOUT}"
    seen = Seen(nvml, f"users={ME},{OTHER}", refusal)
    assert seen.disturbance().foreign_gpu == ()


def test_work_of_which_the_beginning_could_not_be_read_accuses_nobody(nvml):
    function, told = "nvmlDeviceGetProcessUtilization", f"users={ME},{OTHER} work={OTHER}:60"
    seen = Seen(nvml, *told.split(), f"{function}={pynvml.NVML_ERROR_TIMEOUT}")
    assert seen.disturbance(f"{function}=0").foreign_gpu == ()
    assert seen.disturbance(f"work={OTHER}:60").foreign_gpu == (OTHER,)


def test_processes_hidden_by_a_namespace_are_not_taken_for_foreign(nvml):
    seen = Seen(nvml, f"users={HIDDEN}", f"nvmlDeviceGetProcessUtilization={NOT_SUPPORTED}")
    assert seen.disturbance(f"work={HIDDEN}:90").foreign_gpu == ()


# ------------------------------------------------------------------------------ this machine's
def test_of_several_gpus_the_least_capable_decides(nvml):
    nvml.set("gpus=2", "major.1=8")
    here = hardware.seen()
    assert (here.compute_capability, here.gpu) == ((8, 0), "NVIDIA A100")
    assert here.driver == "580.65.06"


def test_a_gpu_in_slices_has_its_own_capability(nvml):
    nvml.set("slices.0=2")
    assert hardware.seen().compute_capability == (9, 0)
