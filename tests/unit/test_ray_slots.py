"""What a trial is given on a node of a Ray cluster, and what it says that this is."""

from __future__ import annotations

import os
from dataclasses import replace

import pynvml
import pytest

pytest.importorskip("ray", reason="Ray comes with the extra `ray`, for Python below 3.14")

from autotune.adapters.ray import slots
from autotune.adapters.ray.slots import UNKNOWN_GPU, Slot, Taken, process_here, taken
from autotune.core.kinds import Kind
from tests.fake_nvml import FakeNvml

SLICE = "MIG-00000000-0000-0000-0001-000000000001"
NO_PERMISSION = pynvml.NVML_ERROR_NO_PERMISSION


@pytest.fixture(autouse=True)
def _what_cuda_is_told_ends_with_the_test(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "FASTEST_FIRST")


def given(visible: str) -> Taken:
    """A slot on a GPU, as Ray tells CUDA which."""
    os.environ["CUDA_VISIBLE_DEVICES"] = visible
    with taken(Slot(cpus=1, gpu=True)) as mine:
        return mine


def test_a_slice_is_of_another_kind_than_its_gpu(nvml: FakeNvml) -> None:
    nvml.set("gpus=2", "slices.1=2")
    whole, sliced = given("0").kind, given(SLICE).kind
    assert whole.gpus == ("NVIDIA H200",)
    assert sliced.gpus == ("NVIDIA H200 MIG 1g.18gb",)
    assert whole.driver == sliced.driver == "580.65.06"


def test_gpus_are_numbered_as_ray_numbers_them(nvml: FakeNvml) -> None:
    nvml.set("gpus=2", "major.1=8")
    assert given("1").kind.gpus == ("NVIDIA A100",)
    assert os.environ["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"


@pytest.mark.parametrize("visible", ["", "7"])
def test_a_gpu_that_is_not_shown_is_unknown(nvml: FakeNvml, visible: str) -> None:
    assert given(visible).kind.gpus == (UNKNOWN_GPU,)


def test_a_device_is_known_again_by_its_gpu_else_by_its_cores() -> None:
    on = Taken(kind=Kind(processor="p", cores=2), pinned=(4, 5))
    assert on.device == "cores 4, 5"
    assert on.place == f"{process_here()}, cores 4, 5"
    gpu = replace(on, gpu="3")
    assert gpu.device == "GPU 3", "its cores may be others the next time"
    assert gpu.place == f"{process_here()}, GPU 3, cores 4, 5"
    assert not replace(on, pinned=()).device


def test_a_gpu_that_does_not_tell_its_name_is_unknown(nvml: FakeNvml) -> None:
    nvml.set(f"nvmlDeviceGetName={NO_PERMISSION}")
    assert given("0").kind.gpus == (UNKNOWN_GPU,)


def test_a_slot_of_cores_has_them_to_itself_while_it_lasts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = os.sched_getaffinity(0)
    monkeypatch.setattr(slots, "_CORE", f"\0a test's, {os.getpid()}")  # others may run beside it
    monkeypatch.setattr(slots, "available_cores", lambda _pid: float(len(before)))
    with taken(Slot(cpus=1)) as first:
        assert os.sched_getaffinity(0) == set(first.pinned)
        assert len(first.pinned) == 1
        os.sched_setaffinity(0, before)
        with taken(Slot(cpus=len(before))) as second:
            assert second.pinned == (), "one of them is the first's"
    assert os.sched_getaffinity(0) == before


def test_where_a_quota_says_how_much_of_the_cores_is_a_containers_none_is_pinned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = os.sched_getaffinity(0)
    monkeypatch.setattr(slots, "available_cores", lambda _pid: len(before) - 0.5)
    with taken(Slot(cpus=1)) as mine:
        assert mine.pinned == ()
        assert os.sched_getaffinity(0) == before
