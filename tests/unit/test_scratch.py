"""Temporary folders, and those that killed processes left."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.adapters.scratch import scratch
from autotune.bootstrap.bench import fresh_folder

HOLDS = """
import sys, time
from pathlib import Path
from autotune.adapters.scratch import scratch
with scratch("work-", Path(sys.argv[1])) as folder:
    (folder / "large").write_text("x")
    print(folder, flush=True)
    time.sleep(60)
"""


def holding(folder: Path) -> tuple[subprocess.Popen[str], Path]:
    """A process that has such a folder, and the folder."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDS, str(folder)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def end(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.communicate()


def test_what_a_killed_process_left_is_removed_by_the_next_and_what_another_uses_is_not(
    tmp_path: Path,
) -> None:
    killed, left = holding(tmp_path)
    other, used = holding(tmp_path)
    end(killed)
    assert (left / "large").exists()
    with scratch("work-", tmp_path) as own:
        assert sorted(tmp_path.iterdir()) == sorted([own, used])
    assert list(tmp_path.iterdir()) == [used]
    end(other)


@pytest.mark.parametrize("name", ["work-", "work-mine", "work-abcdefgh.tar", "other-abcdefgh"])
def test_what_has_another_name_is_not_touched(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    with scratch("work-", tmp_path):
        pass
    assert [each.name for each in tmp_path.iterdir()] == [name]


def test_a_link_of_such_a_name_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").touch()
    (tmp_path / "work-abcdefgh").symlink_to(tmp_path / "mine")
    with scratch("work-", tmp_path):
        pass
    assert (tmp_path / "mine" / "file").exists()


def test_it_is_removed_also_where_its_use_fails(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="ours"), scratch("work-", tmp_path):
        raise ValueError("ours")
    assert list(tmp_path.iterdir()) == []


def test_of_a_killed_run_the_logs_are_kept_and_the_copies_of_its_models_are_not(
    tmp_path: Path,
) -> None:
    folder = fresh_folder(tmp_path / "study")
    (folder / "models" / "ocr").mkdir(parents=True)
    (folder / "server.log").touch()
    assert list(fresh_folder(folder).iterdir()) == []
    assert [each.name for each in (tmp_path / "study.previous").iterdir()] == ["server.log"]
