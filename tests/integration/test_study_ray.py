"""A study on a real Ray cluster of two nodes, each a process of this machine with one core. Finals
on a node that is lost, devices that differ and Ctrl-C: tests/unit/test_ray_*, without Ray."""

from __future__ import annotations

import os
import platform
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from autotune.adapters.triton.environment import ServerEnvironment
from tests.integration.studies import EASY, QUICK, Running, Tool, command_line, tool

pytest.importorskip("ray", reason="Ray comes with the extra `ray`, for Python below 3.14")

pytestmark = [pytest.mark.server, pytest.mark.timeout(600)]

EMULATED = Path(__file__).parents[2] / "examples" / "emulated" / "models"
SPACE = {
    "max_batch_size": [1, 128],
    "queue_delay_us": {"values": [0, 1_500_000], "when": {"max_batch_size": {"above": 1}}},
}
NODE = Path(__file__).with_name("ray_nodes.py")


@dataclass
class Cluster:
    """Two nodes, and a head without any device, of a process that is told by lines what to do."""

    process: subprocess.Popen[str]
    address: str
    work: Path

    def tell(self, word: str) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(word, file=self.process.stdin, flush=True)
        answer = self.process.stdout.readline().strip()
        assert answer, "the cluster is gone"
        return answer


@pytest.fixture(scope="module")
def cluster(
    cache_dir: Path,
    server_environment: ServerEnvironment,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("nodes")
    environment = {
        **os.environ,
        "AUTOTUNE_CACHE": str(cache_dir),
        "AUTOTUNE_WORK": str(folder),
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    with (
        (folder / "log").open("w") as log,
        subprocess.Popen(
            [sys.executable, str(NODE)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        ) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        assert address, (folder / "log").read_text()
        yield Cluster(process, address, folder)
        process.stdin.close()  # it ends its nodes then
        process.wait(60)


@pytest.fixture
def cli(tmp_path: Path, cache_dir: Path) -> Iterator[Tool]:
    yield from tool(tmp_path, cache_dir)


def emulated(cli: Tool, name: str) -> Path:
    """Three candidates on the bundled emulated accelerator, whose times nobody's processor is used
    for: the first cannot take the rate, the second can, the third waits too long."""
    return cli.study(
        name,
        model={"repository": str(EMULATED), "name": "accelerator"},
        # A burst of 20 answers tells how fast a device is; what is emulated is alike on all.
        workload={
            **QUICK,
            "target_qps": 45,
            "warmup_s": 0.7,
            "measure_s": 2,
            "measure_max_s": 8,
            "saturation_s": 0.7,
        },
        sla={**EASY, "p50_ms": 700},  # a tenth of that on an idle machine, and twice it
        trust={"foreign_cpu": 1, "send_lag": 1},
        space=SPACE,
        pick="fastest",  # "cheapest" counts memory, which of servers this small is chance
    )


def on_ray(cli: Tool, cluster: Cluster, study: Path, *more: object) -> Running:
    return cli.start(
        "tune",
        study,
        *("--out", cli.folder / f"out-{study.stem}", "--executor", "ray"),
        *("--ray-address", cluster.address, "--slot-cpus", "1", *more),
    )


def purposes(shown: Any) -> set[str]:
    return {m["purpose"] for trial in shown["trials"] for m in trial["measurements"]}


def place(trial: Any) -> str:
    """Where it was measured first."""
    told: str = trial["measurements"][0]["telemetry_notes"]["place"]
    return told


def of_nodes(cluster: Cluster, *words: str) -> list[psutil.Process]:
    """What was started on the cluster's nodes, whoever is its parent now."""
    found = (p for p in psutil.process_iter() if any(each in command_line(p) for each in words))
    return [each for each in found if work_of(each) == str(cluster.work)]


def servers_of(cluster: Cluster) -> list[psutil.Process]:
    return of_nodes(cluster, "/tritonserver --backend")


def left_of(cluster: Cluster) -> list[psutil.Process]:
    """Servers, their Python backends, loads, and the guards of all of them."""
    return of_nodes(cluster, "/tritonserver", "exec_guard.py", "loadgen")


def shared_memory(servers: list[psutil.Process]) -> list[Path]:
    """That of their Python backends."""
    prefixes = [re.search(r"shm-region-prefix-name=(\w+)", command_line(p)) for p in servers]
    return [
        segment
        for found in prefixes
        if found is not None
        for segment in Path("/dev/shm").glob(f"{found[1]}*")
    ]


def work_of(process: psutil.Process) -> str | None:
    try:
        return process.environ().get("AUTOTUNE_WORK")
    except psutil.Error:
        return None


def test_a_study_comes_to_the_decision_of_one_machine_though_a_node_is_lost_and_its_driver_killed(
    cli: Tool, cluster: Cluster
) -> None:
    here, there = emulated(cli, "here"), emulated(cli, "there")
    running = on_ray(cli, cluster, there)
    alone = cli.tune(here)  # beside the cluster: what is emulated does not slow down
    running.wait_for("measure  2/3", within_s=150)
    running.until(lambda: len(servers_of(cluster)) == 2, 100, "two servers")
    assert "2 trials side by side" in running.stderr()
    assert cluster.tell("lose") == "lost"
    running.wait_for(f"measuring again: its device was lost: {platform.node()}", within_s=100)
    running.wait_for("/3 trial", within_s=100)
    in_memory = shared_memory(servers_of(cluster))
    running.process.send_signal(signal.SIGKILL)
    running.process.wait(10)
    running.until(lambda: not left_of(cluster), 60, "processes are left on the nodes")
    assert in_memory
    assert not [segment for segment in in_memory if segment.exists()]
    assert "raylet" not in running.log.with_suffix(".out").read_text() + running.stderr()
    ended = {t["number"]: t for t in cli.shown("there")["trials"] if t["state"] == "ok"}
    assert ended
    resumed = on_ray(cli, cluster, there, "--resume")
    alone.finish(200).expect(0)
    resumed.finish(300).expect(0)
    local, ray = cli.shown("here"), cli.shown("there")
    for number, trial in ended.items():
        assert ray["trials"][number]["started_at"] == trial["started_at"], "measured anew"
    assert [t["candidate"] for t in ray["trials"]] == [t["candidate"] for t in local["trials"]]
    assert [t["state"] for t in ray["trials"]] == ["ok", "ok", "ok"]
    assert purposes(ray) == {"trial", "confirm"}
    assert all(map(place, ray["trials"]))
    assert ray["decision"]["pick"] == local["decision"]["pick"]
    config = Path("accelerator") / "config.pbtxt"
    exported = (cli.folder / "out-there" / config).read_text()
    assert exported == (cli.out / config).read_text()
