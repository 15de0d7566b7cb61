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


def steps(folder: Path, *cases: str) -> dict[str, int]:
    """How many each had; in a process without threads, which may fork."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.killed", str(folder), *cases],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    told = dict(line.split() for line in done.stdout.splitlines())
    assert list(told) == list(cases)
    return {case: int(count) for case, count in told.items()}


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """In memory where that can be: hundreds of repositories are made and removed."""
    if not os.access(MEMORY, os.W_OK):
        yield tmp_path
        return
    with TemporaryDirectory(dir=MEMORY, prefix="autotune-killed-") as scratch:
        yield Path(scratch)


def test_killed_at_any_touch_of_a_file_the_repository_is_old_or_new_and_recovers(
    folder: Path,
) -> None:
    cases = [each for each in CASES if each.startswith(("apply", "restore"))]
    assert all(count > 5 for count in steps(folder, *cases).values())


def test_killed_at_any_step_it_comes_to_its_end_when_it_is_taken_up_or_given_up(
    folder: Path,
) -> None:
    cases = [each for each in CASES if not each.startswith(("apply", "restore"))]
    assert all(count > 5 for count in steps(folder, *cases).values())
