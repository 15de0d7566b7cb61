"""Which GPUs a server may use: named, counted, handed on and refused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import Event

import pynvml
import pytest

from autotune.adapters import hardware
from autotune.adapters.examine_gpus import gpu_checks
from autotune.adapters.telemetry import parts
from autotune.adapters.telemetry.parts import DriverHangs
from autotune.adapters.tonight import changing
from autotune.adapters.triton import devices
from autotune.adapters.triton.config import parse
from autotune.adapters.triton.environment import ServerEnvironment
from autotune.adapters.triton.launchers import BinaryLauncher, EmbeddedLauncher
from autotune.adapters.triton.ports import Ports
from autotune.adapters.triton.repository import ServedModel
from autotune.bootstrap.models import gpus_of, hardware_of, served_model
from autotune.bootstrap.session import configuration_in_service
from autotune.core.errors import InputRefused, ServerFailed
from autotune.core.study import Launch, ModelSource, ServerSpec
from search_spaces.candidate import Candidate
from tests.fake_nvml import FakeNvml
from tests.runner_bench import study

PORTS = Ports(http=1, grpc=2, metrics=3)
TWO_WHOLE = {"0": "0", "GPU-a": "0", "1": "1", "GPU-b": "1"}
SECOND = "GPU-00000000-0000-0000-0001-000000000000"
SLICED = {"MIG-a": "0:0", "MIG-b": "0:1"}


# ------------------------------------------------------------------------------- said to CUDA
def test_pinned_gpus_are_told_to_cuda_by_what_it_numbers_no_other_way(nvml: FakeNvml) -> None:
    nvml.set("gpus=2")
    assert devices.variables(["1", "GPU-a"]) == {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": f"{SECOND},GPU-a",
    }


def test_a_pinned_gpu_behind_one_that_is_not_ours_is_told_by_its_uuid(nvml: FakeNvml) -> None:
    nvml.set("gpus=2", f"nvmlDeviceGetHandleByIndex_v2.0={pynvml.NVML_ERROR_NO_PERMISSION}")
    devices.refuse_missing(["1"])
    assert devices.variables(["1"])["CUDA_VISIBLE_DEVICES"] == SECOND


def test_a_pinned_slice_is_told_as_it_is_named(nvml: FakeNvml) -> None:
    nvml.set("slices.0=2")
    (uuid, _) = devices.names()
    assert devices.variables([uuid])["CUDA_VISIBLE_DEVICES"] == uuid


def test_without_pins_a_server_inherits_what_there_is() -> None:
    assert devices.variables([]) == {}


def test_docker_reads_a_line_of_csv_so_a_list_is_quoted() -> None:
    assert devices.docker_arguments(["0", "2"], None) == ['--gpus="device=0,2"']
    assert devices.docker_arguments([], "all") == ["--gpus=all"]
    assert devices.docker_arguments([], None) == []


def test_the_embedded_server_and_a_binary_are_started_with_the_pinned_gpus(
    nvml: FakeNvml, tmp_path: Path
) -> None:
    nvml.set("gpus=2")
    binary = tmp_path / "tritonserver"
    binary.write_text("#!/bin/sh\n")
    binary.chmod(0o755)
    launchers = [
        EmbeddedLauncher(lambda: _environment(tmp_path), ["1"]),
        BinaryLauncher(binary, ["1"]),
    ]
    for launcher in launchers:
        command = launcher.command(tmp_path, PORTS, {})
        assert command.variables["CUDA_VISIBLE_DEVICES"] == SECOND


def _environment(folder: Path) -> ServerEnvironment:
    return ServerEnvironment(root=folder, tritonserver=folder, backends=folder, libraries=folder)


# ---------------------------------------------------------------------------------- refused
def test_gpus_are_known_by_index_and_by_uuid(nvml: FakeNvml) -> None:
    nvml.set("gpus=2")
    here = devices.names()
    assert {name for name in here if name.isdigit()} == {"0", "1"}
    assert sorted(here.values()) == ["0", "0", "1", "1"]


def test_slices_are_known_by_uuid_alone(nvml: FakeNvml) -> None:
    nvml.set("slices.0=2")
    here = devices.names()
    assert sorted(here.values()) == ["0:0", "0:1"]
    assert not any(name.isdigit() for name in here)


def test_a_gpu_that_is_not_there_is_refused_with_those_that_are(nvml: FakeNvml) -> None:
    nvml.set("gpus=2")
    with pytest.raises(InputRefused) as refused:
        devices.refuse_missing(["0", "7"])
    assert "(got '7')" in str(refused.value)
    assert "it has 0 (GPU-" in str(refused.value)


def test_the_refusal_says_which_key_of_the_study_names_it(nvml: FakeNvml) -> None:
    nvml.set("gpus=2")
    with pytest.raises(InputRefused) as refused:
        devices.refuse_missing(["0", "7"])
    assert refused.value.place == ("server", "devices", 1)


def test_a_server_that_is_started_again_on_a_gpu_that_is_gone_has_failed(
    nvml: FakeNvml, tmp_path: Path
) -> None:
    nvml.set("gpus=2", f"nvmlDeviceGetHandleByIndex_v2.1={pynvml.NVML_ERROR_GPU_IS_LOST}")
    launcher = EmbeddedLauncher(lambda: _environment(tmp_path), ["1"])
    with pytest.raises(ServerFailed, match="is gone") as failed:
        launcher.command(tmp_path, PORTS, {})
    assert "Xid" in failed.value.next_step


def test_a_driver_that_hangs_is_an_error_with_the_next_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with hanging_driver(monkeypatch), pytest.raises(DriverHangs, match="does not answer") as found:
        devices.names()
    assert "nvidia-smi" in found.value.next_step


@contextmanager
def hanging_driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """NVML does not come back while this lasts."""
    free = Event()
    monkeypatch.setattr(parts, "PATIENCE_S", 0.1)
    monkeypatch.setattr(pynvml, "nvmlInit", free.wait)
    monkeypatch.setattr(pynvml, "nvmlShutdown", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetCount", lambda: 0)
    yield
    free.set()


def test_a_study_whose_gpus_are_all_hidden_asks_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with hanging_driver(monkeypatch):
        assert gpus_of(ServerSpec()) == 0
        assert hardware_of(ServerSpec()).compute_capability is None


def test_what_is_seen_of_a_machine_whose_driver_hangs_is_no_gpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with hanging_driver(monkeypatch):
        assert hardware.seen().compute_capability is None
        assert changing()["gpus"] == []


def test_the_doctor_tells_a_driver_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    with hanging_driver(monkeypatch):
        (check,) = gpu_checks()
    assert (check.name, check.state) == ("GPU", "missing")
    assert "does not answer" in check.detail
    assert "nvidia-smi" in check.next_step


# ------------------------------------------------------------------- what variants are built for
@pytest.mark.parametrize(
    ("chosen", "visible", "capability"),
    [
        ((), None, (7, 0)),
        (("0",), None, (9, 0)),
        ((SECOND,), None, (7, 0)),
        ((), "0", (9, 0)),
        ((), "", None),
        (("0",), "1", (9, 0)),
    ],
)
def test_the_weakest_of_the_gpus_that_a_study_may_use_decides_what_runs(
    nvml: FakeNvml,
    chosen: tuple[str, ...],
    visible: str | None,
    capability: tuple[int, int] | None,
) -> None:
    nvml.set("gpus=2", "major.1=7")
    assert hardware.seen(chosen, visible).compute_capability == capability


def test_docker_is_not_handed_what_hides_gpus_from_this_process(
    nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    server = ServerSpec(launch=Launch.DOCKER, image="i", gpus="all")
    assert hardware_of(server).compute_capability == (9, 0)
    assert gpus_of(server) == 1


def test_any_gpu_is_refused_where_there_is_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "names", dict)
    with pytest.raises(InputRefused, match="NVML sees none here"):
        devices.refuse_missing(["0"])


def test_a_gpu_that_is_named_by_its_index_and_its_uuid_is_refused(nvml: FakeNvml) -> None:
    uuid = next(name for name in devices.names() if not name.isdigit())
    with pytest.raises(InputRefused, match="names a GPU twice"):
        devices.refuse_missing(["0", uuid])


def test_a_study_on_a_gpu_that_is_not_there_is_refused_before_its_model_is_looked_at(
    nvml: FakeNvml, tmp_path: Path
) -> None:
    with pytest.raises(InputRefused, match="does not have"):
        served_model(
            study(server={"devices": [3]}), cache_dir=tmp_path, work_dir=tmp_path, say=print
        )


# ---------------------------------------------------------------------------------- counted
@pytest.mark.parametrize(
    ("pinned", "here", "count"),
    [
        ([], {}, 0),
        ([], TWO_WHOLE, 2),
        (["GPU-b"], TWO_WHOLE, 1),
        (["0", "1"], TWO_WHOLE, 2),
        ([], SLICED, 1),
        (["MIG-b"], SLICED, 1),
        ([], {**SLICED, "1": "1", "GPU-b": "1"}, 1),
    ],
)
def test_a_process_sees_what_it_is_given_or_all_and_of_slices_one(
    pinned: list[str], here: Mapping[str, str], count: int
) -> None:
    assert devices.seen(pinned, here) == count


@pytest.mark.parametrize(
    ("gpus", "count"),
    [
        (None, 0),
        ("all", 2),
        ("3", 3),
        ("1,capabilities=utility", 1),
        ("driver=nvidia,count=3", 3),
        ("count=all", 2),
        ("device=0", 1),
        ('"device=0,1"', 2),
        ("'device=0,1,capabilities=utility'", 2),
        ("all,capabilities=compute", 2),
    ],
)
def test_a_container_sees_as_many_gpus_as_docker_is_told(gpus: str | None, count: int) -> None:
    assert devices.handed_on(gpus, TWO_WHOLE) == count


def test_a_container_that_is_given_gpus_has_one_at_least() -> None:
    assert devices.handed_on("all", {}) == 1


@pytest.mark.parametrize(
    ("spec", "count"),
    [
        (ServerSpec(), 2),
        (ServerSpec(devices=("1",)), 1),
        (ServerSpec(launch=Launch.BINARY), 2),
        (ServerSpec(launch=Launch.DOCKER, image="i"), 0),
        (ServerSpec(launch=Launch.DOCKER, image="i", gpus="all"), 2),
        (ServerSpec(launch=Launch.DOCKER, image="i", devices=("0",)), 1),
        (ServerSpec(launch=Launch.REMOTE), 0),
    ],
)
def test_the_gpus_that_a_server_sees_depend_on_how_it_is_launched(
    nvml: FakeNvml, spec: ServerSpec, count: int
) -> None:
    nvml.set("gpus=2")
    assert gpus_of(spec) == count


@pytest.mark.parametrize(
    ("told", "here", "count"),
    [
        (None, TWO_WHOLE, 2),
        ("1", TWO_WHOLE, 1),
        ("1,0", TWO_WHOLE, 2),
        ("0, 1", TWO_WHOLE, 2),
        ("GPU-b", TWO_WHOLE, 1),
        ("1,GPU-b", TWO_WHOLE, 1),
        ("0,7,1", TWO_WHOLE, 1),  # what is behind one that there is not is not shown
        ("", TWO_WHOLE, 0),
        ("-1", TWO_WHOLE, 0),
        ("NoDevFiles", TWO_WHOLE, 0),
        ("MIG-b", SLICED, 1),
        ("0", SLICED, 1),
        ("1", SLICED, 0),
        ("0", {}, 0),
        ("0", {"3": "3", "GPU-d": "3"}, 1),  # the only one that a control group leaves to it
        ("3", {"3": "3", "GPU-d": "3"}, 0),
    ],
)
def test_a_process_sees_what_its_batch_system_has_given_it(
    told: str | None, here: Mapping[str, str], count: int
) -> None:
    assert devices.seen([], devices.visible(here, told)) == count


@pytest.mark.parametrize(
    ("spec", "count"),
    [
        (ServerSpec(), 1),
        (ServerSpec(launch=Launch.BINARY), 1),
        (ServerSpec(devices=("0", "2")), 2),  # said in place of what is set here
        (ServerSpec(launch=Launch.DOCKER, image="i", gpus="all"), 3),  # a container inherits none
    ],
)
def test_the_gpus_that_cuda_shows_here_are_those_that_a_server_inherits(
    nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch, spec: ServerSpec, count: int
) -> None:
    nvml.set("gpus=3")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2")
    assert gpus_of(spec) == count


# --------------------------------------------------------------------------- instance groups
GROUP = "name: 'm' instance_group {{ {} }}"


@pytest.mark.parametrize(
    ("group", "gpus"),
    [
        ("kind: KIND_GPU gpus: [ 0, 1 ]", 2),
        ("gpus: [ 1 ]", 2),
        ("kind: KIND_GPU", 0),
        ("kind: KIND_CPU", 0),
        ("count: 2", 0),
    ],
)
def test_groups_that_name_gpus_within_range_or_none_pass(group: str, gpus: int) -> None:
    devices.refuse_out_of_range(parse(GROUP.format(group), "t"), gpus)


@pytest.mark.parametrize(
    ("group", "gpus", "told"),
    [
        ("kind: KIND_GPU gpus: [ 0, 2 ]", 2, "it sees 2, numbered from 0"),
        ("gpus: [ 1 ]", 1, "it sees 1, numbered from 0"),
        ("kind: KIND_GPU gpus: [ 0 ]", 0, "it sees none"),
    ],
)
def test_a_group_that_names_a_gpu_which_the_server_does_not_see_is_refused(
    group: str, gpus: int, told: str
) -> None:
    with pytest.raises(InputRefused, match=told):
        devices.refuse_out_of_range(parse(GROUP.format(group), "t"), gpus)


def test_a_study_pinned_to_one_gpu_is_refused_a_group_on_the_second(
    nvml: FakeNvml, tmp_path: Path
) -> None:
    nvml.set("gpus=2")
    model = tmp_path / "models" / "m"
    (model / "1").mkdir(parents=True)
    (model / "1" / "model.py").write_text("")
    (model / "config.pbtxt").write_text(
        'backend: "python" max_batch_size: 1'
        ' input { name: "x" data_type: TYPE_FP32 dims: 4 }'
        ' output { name: "y" data_type: TYPE_FP32 dims: 4 }'
        " instance_group { kind: KIND_GPU gpus: 1 }"
    )
    source = {"repository": str(tmp_path / "models"), "name": "m"}
    whole = study(model=source)
    pinned = study(model=source, server={"devices": [1]})
    assert isinstance(whole.model, ModelSource)
    where = {"cache_dir": tmp_path, "work_dir": tmp_path / "work", "say": print}
    assert served_model(whole, **where).name == "m"
    with pytest.raises(InputRefused, match=r"gpus: \[1\]"):
        served_model(pinned, **where)


@pytest.mark.parametrize(
    ("config", "instances"),
    [
        ("backend: 'python'", 1),
        ("backend: 'onnxruntime'", 1),
        ("backend: 'onnxruntime' instance_group { kind: KIND_CPU }", 2),
        ("backend: 'onnxruntime' instance_group { kind: KIND_GPU gpus: [ 0 ] count: 3 }", 3),
    ],
)
def test_what_is_in_service_on_a_gpu_host_is_the_count_on_each_of_its_gpus(
    nvml: FakeNvml, config: str, instances: int
) -> None:
    nvml.set("gpus=2")
    model = ServedModel(
        name="m",
        repository=Path("r"),
        config=parse(f"name: 'm' max_batch_size: 4 {config}", "t"),
        digest="d",
        source=Path("r/m"),
    )
    asked = study(
        server={"launch": "binary", "binary": "tritonserver"}, space={"instances": [1, 2, 3]}
    )
    assert configuration_in_service(asked, model) == Candidate({"instances": instances})
