"""What a study file says of GPUs, of the price of the hardware, and of objectives on either."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.core.errors import InputRefused
from autotune.studyfile import at_its_line, read_definition
from tests.unit.test_studyfile import GOOD, refusal, studied


def with_server(text: str, *, more: str = "") -> str:
    return f"{GOOD}server: {text}\n{more}"


def test_gpus_are_named_by_index_uuid_or_slice(tmp_path: Path) -> None:
    uuid = "GPU-5b1c9cb5-0d1a-7a3c-9a5e-2f6f0f4f7c11"
    study = studied(tmp_path, with_server(f"{{devices: [0, {uuid}]}}"))
    assert study.server.devices == ("0", uuid)
    one = studied(tmp_path, with_server("{devices: MIG-5b1c9cb5-0d1a-7a3c-9a5e-2f6f0f4f7c11}"))
    assert one.server.devices == ("MIG-5b1c9cb5-0d1a-7a3c-9a5e-2f6f0f4f7c11",)
    old = studied(tmp_path, with_server("{devices: [MIG-GPU-5b1c9cb5-0d1a/1/0]}"))
    assert old.server.devices == ("MIG-GPU-5b1c9cb5-0d1a/1/0",)
    assert read_definition(study.definition) == study


@pytest.mark.parametrize("name", ["first", "-1", "true", "GPU-", "0:1", "MIG-GPU-5b1c9cb5"])
def test_what_is_no_gpus_name_is_refused_with_its_line(tmp_path: Path, name: str) -> None:
    told = refusal(tmp_path, with_server(f"\n  devices: [{name}]"))
    assert "study.yaml:11: server.devices.0: must be a GPU's index" in told


@pytest.mark.parametrize(
    ("server", "told"),
    [
        ("{devices: [0, 0]}", "names a GPU twice"),
        (
            "{devices: []}",
            "study.yaml:10: server.devices: names no GPU (got [])\n  leave the key out",
        ),
        ("{devices: null}", "server.devices: names GPUs: leave the key out for every GPU"),
        ("{devices: all}", "server.devices: names GPUs: leave the key out for every GPU"),
        ("{devices: [MIG-aa, MIG-bb]}", "one MIG slice, and no other GPU beside it"),
        ("{devices: [0, MIG-bb]}", "one MIG slice, and no other GPU beside it"),
        ("{launch: docker, image: i, gpus: all, devices: [0]}", "says the same as server.devices"),
        ("{launch: remote, http: h, grpc: g, devices: [0]}", "no effect with launch 'remote'"),
        ("{price_per_hour: 0}", "price_per_hour"),
    ],
)
def test_gpus_and_prices_that_cannot_be_are_refused(tmp_path: Path, server: str, told: str) -> None:
    text = with_server(server)
    if "remote" in server:
        text = text.replace("model:\n  onnx: model.onnx", "model: {name: m}")
    assert told in refusal(tmp_path, text)


def test_a_study_without_devices_is_stored_so_and_read_again(tmp_path: Path) -> None:
    study = studied(tmp_path, GOOD)
    assert "devices" not in study.definition["server"]
    assert read_definition(study.definition) == study
    old = {**study.definition, "server": {**study.definition["server"], "devices": []}}
    assert read_definition(old).server == study.server


def test_what_this_machine_has_against_a_key_is_told_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text(with_server("\n  devices:\n    - 0\n    - 7"))
    refused = InputRefused(
        "server.devices names a GPU that this machine does not have",
        value="7",
        next_step="it has 0",
        place=("server", "devices", 1),
    )
    told = str(at_its_line(tmp_path / "study.yaml", refused))
    assert "study.yaml:13: server.devices.1: names a GPU that this machine does not have" in told
    assert "(got '7')" in told
    assert "it has 0" in told


def test_a_refusal_of_no_key_and_a_file_that_is_gone_change_nothing(tmp_path: Path) -> None:
    refused = InputRefused("no")
    assert at_its_line(tmp_path / "study.yaml", refused) is refused
    placed = InputRefused("no", place=("server",))
    assert at_its_line(tmp_path / "study.yaml", placed) is placed


def test_energy_and_cost_can_be_objectives(tmp_path: Path) -> None:
    text = with_server(
        "{price_per_hour: 2.5}", more="objectives: [cost_per_1000, energy_j_per_1000, p95_ms]\n"
    )
    study = studied(tmp_path, text)
    assert study.server.price_per_hour == 2.5
    assert [(o.metric, o.maximize) for o in study.objectives] == [
        ("cost_per_1000", False),
        ("energy_j_per_1000", False),
        ("p95_ms", False),
    ]


def test_a_cost_without_a_price_is_refused_with_its_line(tmp_path: Path) -> None:
    told = refusal(tmp_path, f"{GOOD}objectives:\n  - p95_ms\n  - cost_per_1000\n")
    assert "study.yaml:12: objectives.1: cost_per_1000 needs a price, and none is given" in told
    assert "server: {price_per_hour: 2.5}" in told


def test_a_cost_without_a_saturation_burst_is_refused(tmp_path: Path) -> None:
    text = with_server("{price_per_hour: 2}", more="objectives: [cost_per_1000]\n")
    told = refusal(tmp_path, text.replace("target_qps: 60", "target_qps: 60\n  saturation_s: 0"))
    assert "cost_per_1000 follows from saturation_qps, so its burst needs time" in told
