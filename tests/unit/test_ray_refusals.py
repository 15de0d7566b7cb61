"""What is refused of a study on a Ray cluster, and of a cluster, before anything is begun."""

from __future__ import annotations

import importlib.util
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray", reason="Ray comes with the extra `ray`, for Python below 3.14")

from ray._private import worker

from autotune.adapters.ray import cluster
from autotune.adapters.ray.cluster import Devices, Node, connected, slot_for
from autotune.adapters.ray.slots import Slot
from autotune.bootstrap.executors import OnRay, open_study
from autotune.bootstrap.ray_session import open_on_ray
from autotune.core.errors import InputRefused
from autotune.core.kinds import Kind
from autotune.core.study import Study
from autotune.studyfile import study_from_options


def study(**server: Any) -> Study:
    return study_from_options(
        {
            "study": "s",
            "model": {"repository": "models", "name": "m"}
            if "http" not in server
            else {"name": "m"},
            "server": server,
            "workload": {"target_qps": 50.0},
            "sla": {"p95_ms": 80.0},
            "space": {"instances": [1, 2, 4]},
        }
    )


@pytest.mark.parametrize(
    ("server", "rule"),
    [
        ({"launch": "remote", "http": "h:8000", "grpc": "h:8001"}, "a remote server"),
        ({"launch": "docker", "image": "i"}, "a container of Docker's"),
        (
            {"launch": "binary", "binary": "/t", "devices": ["0"]},
            "server.devices is decided by Ray",
        ),
        ({"ports": [8000, 8001, 8002]}, "server.ports cannot be fixed"),
    ],
)
def test_what_ray_decides_is_not_for_the_study_to_say(
    server: dict[str, Any], rule: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTOTUNE_WORK", str(tmp_path / "work"))
    opened = open_on_ray(
        study(**server),
        OnRay(),
        db=str(tmp_path / "a.db"),
        out=tmp_path / "out",
        resume=False,
        listen=lambda _: None,
    )
    with pytest.raises(InputRefused, match=rule) as refused, opened:
        pass
    assert "--executor local" in refused.value.next_step
    assert not (tmp_path / "a.db").exists()


def test_a_client_outside_the_cluster_is_told_where_to_run() -> None:
    with pytest.raises(InputRefused, match="Ray's client") as refused, connected("ray://h:10001"):
        pass
    assert "--num-cpus=0" in refused.value.next_step


def test_where_ray_is_missing_it_is_told_how_it_is_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    opened = open_study(
        study(), db="a.db", out=tmp_path, resume=False, listen=lambda _: None, ray=OnRay()
    )
    with pytest.raises(InputRefused) as refused, opened:
        pass
    assert refused.value.next_step == "pip install 'triton-autotune[ray]'"


@pytest.mark.parametrize("secret", ["u:hush@h/d", "u@h/d?password=hush"])
@pytest.mark.parametrize("option", ["{}", "--db={}"])
def test_a_password_that_ray_would_show_at_every_node_is_refused(
    secret: str, option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    db = f"postgresql+psycopg://{secret}"
    monkeypatch.setattr(sys, "orig_argv", ["python", "autotune", "tune", option.format(db)])
    opened = open_study(
        study(), db=db, out=tmp_path, resume=False, listen=lambda _: None, ray=OnRay()
    )
    with pytest.raises(InputRefused, match="stands on the command line") as refused, opened:
        pass
    assert "AUTOTUNE_DB" in refused.value.next_step
    assert "hush" not in str(refused.value)


def test_a_password_that_is_not_on_the_command_line_is_no_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTOTUNE_WORK", str(tmp_path / "work"))
    remote = study(launch="remote", http="h:8000", grpc="h:8001")
    db = "postgresql+psycopg://u:hush@h/d"
    opened = open_study(
        remote, db=db, out=tmp_path, resume=False, listen=lambda _: None, ray=OnRay()
    )
    with pytest.raises(InputRefused, match="a remote server"), opened:
        pass


@pytest.mark.parametrize("options", [{"slots": 0}, {"cpus": -1}])
def test_a_trial_needs_at_least_a_slot_and_a_core(options: dict[str, int]) -> None:
    with pytest.raises(InputRefused, match="at least 1"):
        OnRay(**options)


def test_a_trial_has_one_gpu_or_none() -> None:
    with pytest.raises(InputRefused, match="--slot-gpus is 0 or 1"):
        OnRay(gpus=2)


def test_an_address_that_is_empty_is_not_taken_for_another() -> None:
    with pytest.raises(InputRefused, match="--ray-address is empty") as refused:
        OnRay(address="")
    assert refused.value.next_step.startswith("auto: the cluster that this machine is part of")


def node(name: str, **resources: float) -> Node:
    return Node(id=name, host=name, resources=resources)


def test_a_slot_is_a_gpu_with_its_share_of_the_cores_where_there_is_one() -> None:
    assert slot_for([node("a", CPU=64)], None) == Slot(cpus=2)
    assert slot_for([node("a", CPU=64), node("b", CPU=64, GPU=8)], None) == Slot(cpus=8, gpu=True)
    assert slot_for([node("b", CPU=64, GPU=8)], 4) == Slot(cpus=4, gpu=True)
    assert Slot(cpus=8, gpu=True).fit_into({"CPU": 64.0, "GPU": 2.0}) == 2
    assert Slot(cpus=2).fit_into({"CPU": 5.0}) == 2


def test_only_the_nodes_of_the_kind_are_asked_for() -> None:
    kind = Kind(processor="p", cores=2)
    devices = Devices(slot=Slot(cpus=2), kind=kind, nodes={"a": 1, "b": 1}, many=2)
    assert devices.selector() == {"ray.io/node-id": "in(a,b)"}


def test_ray_sends_no_usage_data() -> None:
    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"


@pytest.mark.parametrize("address", ["127.0.0.1:99999", "127.0.0.1:", "h:x"])
def test_what_is_no_port_is_refused_at_once(address: str) -> None:
    with pytest.raises(InputRefused, match="no Ray cluster") as refused, connected(address):
        pass
    assert "from 1 to 65535" in refused.value.next_step


@pytest.fixture
def unheard() -> Iterator[str]:
    """An address where nothing listens."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{bound.getsockname()[1]}"


def test_an_address_where_nothing_listens_is_refused_at_once(unheard: str) -> None:
    with pytest.raises(InputRefused, match="no Ray cluster") as refused, connected(unheard):
        pass
    assert "refused" in refused.value.next_step


def test_what_was_found_for_auto_is_named(unheard: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", unheard)
    with pytest.raises(InputRefused, match="no Ray cluster") as refused, connected("auto"):
        pass
    assert refused.value.value == f"auto, which is {unheard}"


def test_a_lost_nodes_log_is_not_printed_on_the_users_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def printed(line: str) -> str:
        lines = {"lines": [line], "pid": "raylet", "is_err": False}
        worker.print_to_stdstream(lines, ignore_prefix=False)
        return capsys.readouterr().out

    assert "one is lost" in printed("one is lost"), "as Ray does it"
    with cluster.hushed():
        assert not printed("another is lost")
    assert "a third is lost" in printed("a third is lost")
