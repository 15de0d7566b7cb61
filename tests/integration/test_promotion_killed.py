"""kill -9 at every step of a promotion and of a rollback."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.killed import CASES

MEMORY = Path("/dev/shm")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """In memory where that can be: hundreds of repositories are made and removed."""
    if not os.access(MEMORY, os.W_OK):
        yield tmp_path
        return
    with TemporaryDirectory(dir=MEMORY, prefix="autotune-killed-") as scratch:
        yield Path(scratch)


def steps(folder: Path, case: str) -> int:
    """How many it had; in a process without threads, which may fork."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.killed", str(folder), case],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout.split()[1])


@pytest.mark.parametrize("case", [each for each in CASES if each.startswith(("apply", "restore"))])
def test_killed_at_any_touch_of_a_file_the_repository_is_old_or_new_and_recovers(
    case: str, folder: Path
) -> None:
    assert steps(folder, case) > 5


@pytest.mark.parametrize("case", ["promotion", "promotion-that-misses", "rollback"])
def test_killed_at_any_step_it_comes_to_its_end_when_it_is_taken_up_again(
    case: str, folder: Path
) -> None:
    assert steps(folder, case) > 5


def test_killed_at_any_step_it_is_undone_by_the_next_promotion_there(folder: Path) -> None:
    assert steps(folder, "promotion-given-up") > 10
