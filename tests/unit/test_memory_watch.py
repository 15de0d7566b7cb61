"""What a server's log and the kernel tell of memory that ran out."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.adapters.triton import control
from autotune.adapters.triton.control import Refused
from autotune.adapters.triton.memory_watch import MemoryWatch
from autotune.core.memory import RAN_OUT

BAD_ALLOC = "terminate called after throwing an instance of 'std::bad_alloc'\n"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "server.log"
    path.write_text("I0101 started\n")
    return path


def vmstat(folder: Path, kills: int) -> Path:
    path = folder / "vmstat"
    path.write_text(f"nr_free_pages 12\noom_kill {kills}\nother 3\n")
    return path


def test_a_line_that_the_log_has_gained_is_told(log: Path, tmp_path: Path) -> None:
    watch = MemoryWatch(log, vmstat=vmstat(tmp_path, 0))
    with log.open("a") as stream:
        stream.write(BAD_ALLOC)
    assert watch.found(lost=False) == f"its log: {BAD_ALLOC.strip()}"


def test_what_an_earlier_candidate_left_in_the_log_is_not(log: Path, tmp_path: Path) -> None:
    watch = MemoryWatch(log, vmstat=vmstat(tmp_path, 0))
    log.write_text(log.read_text() + BAD_ALLOC)
    watch.begin()
    assert watch.found(lost=True) == ""


def test_a_process_that_the_kernel_ended_is_told_where_one_of_the_servers_is_gone(
    log: Path, tmp_path: Path
) -> None:
    watch = MemoryWatch(log, vmstat=vmstat(tmp_path, 3))
    vmstat(tmp_path, 4)
    assert watch.found(lost=False) == ""
    assert "out of memory" in watch.found(lost=True)


def test_without_a_log_and_without_a_count_nothing_is_told(tmp_path: Path) -> None:
    watch = MemoryWatch(tmp_path / "none.log", vmstat=tmp_path / "none")
    assert watch.found(lost=True) == ""


@pytest.mark.parametrize(
    ("said", "memory", "begins"),
    [
        ("Internal: MemoryError: no room", "", f"{RAN_OUT}: the server cannot load x: Internal"),
        ("the stub is not healthy", "its log: std::bad_alloc", f"{RAN_OUT}: the server cannot"),
        ("no such file", "", "the server cannot load x: no such file"),
    ],
)
def test_a_load_that_failed_for_want_of_memory_says_so(said: str, memory: str, begins: str) -> None:
    failed = control.not_loaded(Refused("the server refused", value=said), "x", memory)
    assert failed.rule.startswith(begins)
    assert memory in failed.rule
