"""Why a job's process failed is known also where its log cannot be written."""

from __future__ import annotations

import errno
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from autotune.adapters.triton.process import Command
from autotune.bootstrap.last_words import LastWords, telling_last_words
from autotune.cli.system_errors import of_the_system

SPEAKS = """
from autotune.bootstrap.last_words import telling_last_words
with telling_last_words():
    raise OSError(28, "No space left on device")
"""


def test_a_process_tells_its_error_without_any_file() -> None:
    with closing(LastWords()) as words:
        command = words.asked_of(Command(argv=[sys.executable, "-c", SPEAKS]))
        variables = dict(command.variables)
        subprocess.run(command.argv, env=variables, stderr=subprocess.DEVNULL, check=False)
        assert words.heard() == "[Errno 28] No space left on device"


def test_nothing_is_told_where_nobody_asked() -> None:
    with pytest.raises(ValueError, match="as it was"), telling_last_words():
        raise ValueError("as it was")


def test_a_full_disk_is_told_with_the_file_that_did_not_fit() -> None:
    error = of_the_system(OSError(errno.ENOSPC, "No space left on device", "/work/model.onnx"))
    assert (error.rule, error.value) == ("the disk is full", "/work/model.onnx")


def test_a_full_disk_that_tells_no_file_is_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTOTUNE_WORK", str(tmp_path))
    monkeypatch.setattr("autotune.cli.system_errors._ROOM_BYTES", 1 << 60)
    error = of_the_system(OSError(errno.ENOSPC, "No space left on device"))
    assert str(tmp_path) in str(error.value)


def test_another_refusal_of_the_system_speaks_of_no_disk() -> None:
    error = of_the_system(OSError(errno.EACCES, "Permission denied", "/etc/shadow"))
    assert "disk" not in str(error)
