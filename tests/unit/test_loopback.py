"""A machine whose loopback is down: ports can be opened on it, and not reached."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from autotune.adapters.triton.ports import loopback_fault, refuse_without_loopback

STARTS = """
from autotune.adapters.triton.local import LocalServer
from autotune.core.errors import ServerFailed
server = LocalServer.__new__(LocalServer)
try:
    server._restart({})
except ServerFailed as error:
    print(error)
"""


@pytest.fixture
def down() -> list[str]:
    """What runs a command where loopback is down."""
    for flags in ("--net", "-rn"):
        through = ["unshare", flags]
        if subprocess.run([*through, "true"], check=False, capture_output=True).returncode == 0:
            return through
    pytest.skip("a network namespace of its own may not be made here")


def said(through: list[str], code: str) -> str:
    done = subprocess.run(
        [*through, sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout


def test_on_this_machine_it_is_up() -> None:
    assert loopback_fault() == ""
    refuse_without_loopback()


def test_a_server_is_not_started_and_waited_for_where_it_is_down(down: list[str]) -> None:
    told = said(down, STARTS)
    assert "loopback is down: no connection to 127.0.0.1 can be made" in told
    assert "ip link set lo up" in told


def test_the_doctor_says_so(down: list[str]) -> None:
    code = (
        "import json\n"
        "from autotune.adapters import examine\n"
        "print(json.dumps(examine._loopback().to_json()))"
    )
    check = json.loads(said(down, code))
    assert (check["state"], check["required"]) == ("missing", True)
    assert "Network is unreachable" in check["detail"]
    assert "ip link set lo up" in check["next_step"]
