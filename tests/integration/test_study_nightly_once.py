"""A night that cron starts, killed and started again."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune.adapters.triton.environment import ServerEnvironment
from tests.integration.studies import Running, Tool, tool

pytestmark = [
    pytest.mark.server,
    pytest.mark.timeout(600),  # a test may wait for its turn
]


@pytest.fixture
def cli(tmp_path: Path, cache_dir: Path, server_environment: ServerEnvironment) -> Iterator[Tool]:
    yield from tool(tmp_path, cache_dir)


def _once(cli: Tool, *arguments: str) -> Running:
    return cli.measure("nightly", "--once", *arguments)


def test_a_night_that_was_killed_is_taken_up_by_the_next_call(cli: Tool) -> None:
    arguments = ["--cron", "0 2 * * *", "--window-minutes", "600"]
    cli.run("schedule", "add", "nightly", cli.study(), *arguments).expect(0)
    killed = _once(cli)
    killed.wait_for_load(1)
    killed.tell(signal.SIGKILL)
    killed.assert_nothing_left()
    (night,) = _once(cli, "--json").finish().expect(0).document
    assert (night["run"], night["state"], night["outcome"]) == (1, "done", "holds")
    assert cli.shown()["study"]["id"] == night["study"] == 1
    (listed,) = cli.run("schedule", "list", "--json").expect(0).document
    assert listed["last"] == night
