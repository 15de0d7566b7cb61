"""What the doctor says of this machine apart from its GPUs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from autotune.adapters.check import Check
from autotune.adapters.examine import checks


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Check]:
    """With an unpacked server asked for where there is none."""
    folder = tmp_path_factory.mktemp("machine")
    listed = checks(folder / "cache", folder / "work", folder / "no-server")
    return {check.name: check for check in listed}


def test_an_unpacked_server_that_is_not_there_is_missing_with_the_next_step(
    found: dict[str, Check],
) -> None:
    server = found["embedded Triton"]
    assert (server.state, server.required) == ("missing", True)
    assert "AUTOTUNE_SERVER" in server.detail + server.next_step


def test_shared_memory_is_told_with_its_size(found: dict[str, Check]) -> None:
    assert re.match(r"\d+ of \d+ MB free in /dev/shm", found["shared memory"].detail)


def test_nothing_is_made_where_the_machine_is_looked_at(tmp_path: Path) -> None:
    list(checks(tmp_path / "cache", tmp_path / "work"))
    assert list(tmp_path.iterdir()) == []
