"""``autotune compare`` on a real server: two trials of a study that has ended, measured again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from autotune.adapters.triton.environment import ServerEnvironment
from tests.integration.studies import Finished, Running, Tool, own_model, tool

pytestmark = [
    pytest.mark.server,
    pytest.mark.timeout(600),  # a test may wait for its turn
]


def _compare(cli: Tool, *arguments: object) -> Running:
    return cli.measure("compare", "tiny", *arguments)


@pytest.fixture(scope="module")
def ended(
    tmp_path_factory: pytest.TempPathFactory,
    cache_dir: Path,
    server_environment: ServerEnvironment,
) -> Iterator[Tool]:
    """A study of a model that sleeps for 20 ms: two instances take twice what one can."""
    for cli in tool(tmp_path_factory.mktemp("compare"), cache_dir):
        study = cli.study(
            model=own_model(cli.folder / "models", "time.sleep(0.02)"),
            space={"instances": [1, 2]},
            workload={"target_qps": 30, "saturation_s": 1},
        )
        cli.tune(study).finish().expect(0)
        yield cli


@pytest.fixture(scope="module")
def compared(ended: Tool) -> Finished:
    running = _compare(ended, 0, 1, "--json")
    running.server()
    running.remember_shared_memory()
    finished = running.finish().expect(0)
    running.assert_nothing_left()
    return finished


def _runs(shown: Any) -> list[int]:
    """How many valid runs of the comparison each trial has."""
    return [
        sum(m["purpose"] == "compare" and m["valid"] for m in trial["measurements"])
        for trial in shown["trials"]
    ]


def test_twice_the_instances_are_told_to_be_better_where_they_are(compared: Finished) -> None:
    latency, rate = compared.document["comparisons"]
    assert (latency["metric"], rate["metric"]) == ("p50_ms", "saturation_qps")
    assert rate["relation"] == "better"
    assert rate["interval"][0] > 0.3
    assert rate["pairs"] == 2


@pytest.mark.usefixtures("compared")
def test_what_was_measured_is_stored_with_the_study_and_leaves_its_decision(ended: Tool) -> None:
    shown = ended.shown()
    assert _runs(shown) == [2, 2]
    assert shown["decision"]["comparisons"] == []
    assert shown["study"]["state"] == "done"


@pytest.mark.parametrize(
    ("trials", "words"),
    [((0, 7), "no measured trial of that number"), ((1, 1), "two different trials")],
)
def test_trials_that_cannot_be_compared_are_refused(
    ended: Tool, trials: tuple[int, int], words: str
) -> None:
    ended.run("compare", "tiny", *trials).expect(2, words)
