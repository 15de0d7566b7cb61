"""The demo's rate: what the machine takes of a model as it is configured, on the real server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune.bootstrap import demo, open_store
from autotune.core.records import StudyState
from autotune.studyfile import read_study_file
from tests.integration.studies import Tool, next_turn, tool

pytestmark = [pytest.mark.server, pytest.mark.timeout(600)]


@pytest.fixture
def cli(tmp_path: Path, cache_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Tool]:
    for made in tool(tmp_path, cache_dir):
        monkeypatch.setenv("AUTOTUNE_CACHE", str(cache_dir))
        monkeypatch.setenv("AUTOTUNE_WORK", str(made.work))
        yield made


def test_the_demo_asks_for_more_than_the_machine_takes_and_a_resumed_one_for_the_same(
    cli: Tool,
) -> None:
    study = read_study_file(cli.study(workload={"headroom": 1.2}))
    said: list[str] = []
    with next_turn():
        pass
    found = demo(
        study,
        db=str(cli.db),
        out=cli.out,
        resume=False,
        listen=lambda step: said.append(step.text),
    )
    assert found.rate is not None
    work = found.study.workload
    assert work.target_qps == found.rate.target_qps
    assert work.target_qps * work.headroom == pytest.approx(1.15 * found.rate.taken_qps, rel=0.06)
    assert found.rate.taken_qps > 60  # a model of a millisecond
    assert said[-1] == "looking how much this machine takes"

    with open_store(str(cli.db), create=False) as store:
        assert store.studies() == []
        run = store.create_study(study.name, found.study.definition, found.study.digest)
        again = demo(study, db=str(cli.db), out=cli.out, resume=True, listen=lambda _: None)
        store.set_study_state(run, StudyState.DONE)
    assert again.rate is None
    assert again.study.digest == found.study.digest
