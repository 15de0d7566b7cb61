"""What the doctor says of GPUs, on a library that answers as GPUs do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import psutil
import pynvml
import pytest

from autotune.adapters.check import Check
from autotune.adapters.examine_gpus import gpu_checks
from tests.fake_nvml import OLD, FakeNvml

ME = os.getpid()
LOST = pynvml.NVML_ERROR_GPU_IS_LOST
NO_PERMISSION = pynvml.NVML_ERROR_NO_PERMISSION


def checked(nvml: FakeNvml, *told: str) -> dict[str, Check]:
    nvml.set(*told)
    found = {check.name: check for check in gpu_checks()}
    assert (nvml.begun, nvml.samples) == (0, 0)
    return found


def test_a_gpu_is_named_with_its_memory_capability_and_uuid(nvml: FakeNvml) -> None:
    found = checked(nvml, "used=1200", "reserved=600")
    assert (found["GPU"].state, found["GPU"].detail) == ("ok", "driver 580.65.06, CUDA up to 13.0")
    assert found["GPU 0"].detail == (
        "NVIDIA H200, compute capability 9.0, 150,000 MB (1,200 in use);"
        " GPU-00000000-0000-0000-0000-000000000000"
    )


def test_a_hopper_tells_everything(nvml: FakeNvml) -> None:
    telemetry = checked(nvml)["GPU telemetry"]
    assert telemetry.state == "ok"
    assert telemetry.detail == (
        "utilization, memory, power, energy counter, clocks, temperature, throttling, work per"
        " process, GPM (SM, tensor, DRAM, PCIe)"
    )


def test_what_an_older_gpu_lacks_is_told_with_the_reason(nvml: FakeNvml) -> None:
    telemetry = checked(nvml, "major=8")["GPU telemetry"]
    assert telemetry.detail.endswith("; without GPM (SM, tensor, DRAM, PCIe): Not Supported")
    assert (telemetry.state, telemetry.next_step) == ("warning", "")


def test_what_an_old_driver_lacks_is_told_with_the_next_step(old_nvml: FakeNvml) -> None:
    telemetry = checked(old_nvml, "major=7")["GPU telemetry"]
    assert telemetry.detail.endswith("PCIe): Function Not Found")
    assert "throttling" in telemetry.detail.partition("; without ")[0]
    assert telemetry.next_step == "a newer driver tells it"


def test_what_needs_permission_is_told_with_the_next_step(nvml: FakeNvml) -> None:
    telemetry = checked(nvml, f"nvmlGpmSampleGet={NO_PERMISSION}")["GPU telemetry"]
    assert telemetry.detail.endswith("PCIe): Insufficient Permissions")
    assert telemetry.next_step.startswith("root is told it")


def test_slices_stand_in_place_of_their_gpu(nvml: FakeNvml) -> None:
    found = checked(nvml, "slices.0=2")
    assert "GPU 0" not in found
    assert found["GPU 0:1"].detail.startswith("NVIDIA H200 MIG 1g.18gb, compute capability 9.0, 18")
    assert "MIG-" in found["GPU 0:1"].detail
    assert found["GPU telemetry"].detail.startswith("utilization, ")
    assert found["GPU telemetry"].detail.endswith("; without work per process: Not Supported")


def test_gpus_that_tell_different_things_have_a_line_each(nvml: FakeNvml) -> None:
    found = checked(nvml, "gpus=3", "major.1=8")
    assert {"GPU 0, 2 telemetry", "GPU 1 telemetry"} <= set(found)


def test_a_lost_gpu_is_missing_and_the_others_are_told(nvml: FakeNvml) -> None:
    found = checked(nvml, "gpus=2", f"nvmlDeviceGetHandleByIndex_v2.0={LOST}")
    assert (found["GPU 0"].state, found["GPU 0"].detail) == ("missing", "NVML: GPU is lost")
    assert found["GPU 1"].state == "ok"


def test_a_gpu_that_is_lost_only_when_asked_is_missing(nvml: FakeNvml) -> None:
    assert checked(nvml, f"nvmlDeviceGetMemoryInfo={LOST}")["GPU 0"].state == "missing"


def test_a_gpu_that_does_not_tell_its_memory_is_not_lost(nvml: FakeNvml) -> None:
    found = checked(nvml, f"nvmlDeviceGetMemoryInfo={pynvml.NVML_ERROR_NOT_SUPPORTED}")["GPU 0"]
    assert (found.state, found.next_step) == ("ok", "")
    assert "memory unknown" in found.detail


@pytest.mark.parametrize(
    ("error", "state", "advice"),
    [
        (LOST, "missing", "Xid"),
        (pynvml.NVML_ERROR_RESET_REQUIRED, "missing", "Xid"),
        (pynvml.NVML_ERROR_UNKNOWN, "missing", "Xid"),
        (NO_PERMISSION, "warning", "root is told it"),
        (pynvml.NVML_ERROR_NOT_SUPPORTED, "warning", ""),
    ],
)
def test_only_a_gpu_that_is_gone_is_to_be_reset(
    nvml: FakeNvml, error: int, state: str, advice: str
) -> None:
    found = checked(nvml, "gpus=2", f"nvmlDeviceGetHandleByIndex_v2.1={error}")["GPU 1"]
    assert found.state == state
    assert found.next_step.startswith(advice) or advice in found.next_step
    assert bool(found.next_step) is bool(advice)


def test_processes_on_a_gpu_are_named(nvml: FakeNvml) -> None:
    busy = checked(nvml, "gpus=2", f"users.1={ME},{2**22 + 1}")["GPU processes"]
    name = psutil.Process(ME).name()
    assert busy.detail == (
        f"GPU 1 is in use by {name} (process {ME}), process {2**22 + 1}, which cannot be seen from"
        " here"
    )
    assert "stop it first" in busy.next_step


def test_a_gpu_without_processes_is_free(nvml: FakeNvml) -> None:
    free = checked(nvml, "reserved=600")["GPU processes"]
    assert (free.state, free.detail) == ("ok", "none")


def test_a_gpu_whose_memory_is_in_use_is_not_called_free(nvml: FakeNvml) -> None:
    busy = checked(nvml, "used=900")["GPU processes"]
    assert busy.state == "warning"
    assert "not listed" in busy.detail


def test_processes_that_are_not_told_are_no_free_gpu(nvml: FakeNvml) -> None:
    refusal = f"nvmlDeviceGetComputeRunningProcesses_v3={NO_PERMISSION}"
    assert checked(nvml, refusal)["GPU processes"].state == "warning"


def test_without_a_driver_one_line_says_so(nvml: FakeNvml) -> None:
    (only,) = checked(nvml, f"nvmlInitWithFlags={pynvml.NVML_ERROR_LIBRARY_NOT_FOUND}").values()
    assert only.detail == (
        "none seen (NVML Shared Library Not Found): utilization is then the CPU share of the"
        " server's processes"
    )
    assert only.next_step == ""


def test_a_driver_without_a_gpu_says_how_a_container_gets_one(nvml: FakeNvml) -> None:
    (only,) = checked(nvml, "gpus=0").values()
    assert only.state == "warning"
    assert "--gpus" in only.next_step


def test_a_driver_that_answers_nothing_is_told(nvml: FakeNvml) -> None:
    (only,) = checked(nvml, f"nvmlDeviceGetCount_v2={pynvml.NVML_ERROR_UNKNOWN}").values()
    assert only.detail == "there is a driver, which says: Unknown Error"


# ------------------------------------------------------------------------------ the whole command
def doctor(library: Path, told: str, *options: str, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "autotune", "doctor", "--no-load", *options],
        env=environment(library, told, folder),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr
    return done.stdout


def environment(library: Path, told: str, folder: Path) -> Mapping[str, str]:
    """Of a machine whose library path holds the fake library, and that has nothing built yet."""
    return {
        **os.environ,
        "LD_LIBRARY_PATH": str(library.parent),
        "FAKE_NVML": told,
        "AUTOTUNE_CACHE": str(folder / "cache"),
        "AUTOTUNE_WORK": str(folder / "work"),
        "COLUMNS": "100",
    }


def test_the_doctor_finds_the_gpu_that_the_machines_library_tells_of(
    nvml_of: Callable[..., Path], tmp_path: Path
) -> None:
    text = doctor(nvml_of(), "users=1 used=900", "--json", folder=tmp_path)
    found = {check["name"]: check for check in json.loads(text)}
    assert found["GPU 0"]["detail"].startswith("NVIDIA H200, compute capability 9.0")
    assert "process 1" in found["GPU processes"]["detail"]
    assert "CPU" in found["ONNX Runtime"]["detail"]
    assert "package tensorrt" in found["TensorRT"]["detail"]
    assert found["tensorrt"]["detail"].startswith("TensorRT is not installed")


def test_the_doctor_prints_what_an_old_driver_does_not_tell(
    nvml_of: Callable[..., Path], tmp_path: Path
) -> None:
    text = doctor(nvml_of(OLD), "major=6", folder=tmp_path)
    assert "driver 470.65.06, CUDA up to 11.4" in text
    assert "a newer driver tells it" in text
    assert "needs its package tensorrt" in " ".join(text.split())
