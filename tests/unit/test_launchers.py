"""What a server of our own is started with."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.adapters.triton.launchers import BinaryLauncher
from autotune.adapters.triton.ports import Ports
from autotune.adapters.triton.process import ChildProcess


@pytest.mark.parametrize(
    "name", ["AUTOTUNE_DB", "AUTOTUNE_SECRET_KEY", "AUTOTUNE_SMTP_URL", "AUTOTUNE_WEBHOOK_URL"]
)
def test_the_models_of_a_server_are_told_no_password_of_autotunes_own(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "scheme://user:a-password@host/a-secret")
    binary = tmp_path / "tritonserver"
    binary.write_text(f"#!/bin/sh\necho told=${name}.\n")
    binary.chmod(0o755)
    command = BinaryLauncher(binary).command(tmp_path, Ports(http=1, grpc=2, metrics=3), {})
    log = tmp_path / "log"
    child = ChildProcess(command, log=log)
    assert child.wait(20)
    assert "told=." in log.read_text()
