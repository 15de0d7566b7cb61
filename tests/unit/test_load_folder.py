"""The load's folder in the temporary directory, and what killed runs have left there."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from loadgen.scratch import ScratchFolder

MAKE_ONE = """
import sys, time
from loadgen.scratch import ScratchFolder
folder = ScratchFolder()
print(folder.path, flush=True)
time.sleep(60)
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


def test_a_folder_is_there_until_it_is_removed(temporary: Path) -> None:
    folder = ScratchFolder()
    (folder.path / "file").touch()
    folder.remove()
    assert not list(temporary.iterdir())


def test_a_killed_process_s_folder_goes_with_the_next_one_and_a_living_one_s_stays() -> None:
    command = [sys.executable, "-c", MAKE_ONE]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        theirs = Path(other.stdout.readline().strip())
        ScratchFolder().remove()
        stayed = theirs.is_dir()
        other.send_signal(signal.SIGKILL)
    assert stayed
    ScratchFolder().remove()
    assert not theirs.exists()


def test_a_folder_whose_process_is_another_container_s_stays(temporary: Path) -> None:
    mine = ScratchFolder()
    unknown = mine.path.rename(temporary / "autotune-load-99999999-x")
    ScratchFolder().remove()
    assert unknown.is_dir()


def test_a_link_is_not_followed(temporary: Path) -> None:
    (temporary / "precious").mkdir()
    (temporary / "autotune-load-99999999-x").symlink_to(temporary / "precious")
    ScratchFolder().remove()
    assert (temporary / "precious").is_dir()
