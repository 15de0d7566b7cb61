"""How much memory a process may use."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest

from autotune.adapters.telemetry.process_cpu import ProcessCpu
from autotune.adapters.telemetry.room import available_memory_mb
from autotune.core.model_interface import Endpoint

MACHINE_MB = psutil.virtual_memory().total / 1e6


def grouped(folder: Path, line: str) -> dict[str, Path]:
    (folder / "proc" / "7").mkdir(parents=True)
    (folder / "proc" / "7" / "cgroup").write_text(f"{line}\n")
    return {"proc": folder / "proc", "cgroups": folder / "cgroups"}


def put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_without_a_limit_it_is_the_machines_memory(tmp_path: Path) -> None:
    where = grouped(tmp_path, "0::/a")
    put(where["cgroups"] / "a" / "memory.max", "max\n")
    assert available_memory_mb(7, **where) == pytest.approx(MACHINE_MB)


def test_the_tightest_limit_of_the_group_and_those_above_it_counts(tmp_path: Path) -> None:
    where = grouped(tmp_path, "0::/a/b")
    put(where["cgroups"] / "a" / "memory.max", "8000000\n")
    put(where["cgroups"] / "a" / "b" / "memory.max", "9000000\n")
    assert available_memory_mb(7, **where) == 8.0


def test_limits_of_the_first_version_of_control_groups_are_read_too(tmp_path: Path) -> None:
    where = grouped(tmp_path, "5:memory:/a")
    put(where["cgroups"] / "memory" / "a" / "memory.limit_in_bytes", "5000000\n")
    assert available_memory_mb(7, **where) == 5.0


def test_a_group_of_another_controller_says_nothing_of_memory(tmp_path: Path) -> None:
    where = grouped(tmp_path, "5:cpu,cpuacct:/a")
    put(where["cgroups"] / "cpu,cpuacct" / "a" / "memory.limit_in_bytes", "5000000\n")
    assert available_memory_mb(7, **where) == pytest.approx(MACHINE_MB)


def test_a_server_on_the_cpu_has_what_its_process_may_use() -> None:
    source = ProcessCpu()
    source.open([os.getpid()], Endpoint(http="h", grpc="g"))
    total = source.memory_total_mb()
    assert total is not None
    assert 0 < total <= MACHINE_MB
    source.close()
