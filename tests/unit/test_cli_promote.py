"""``autotune promote``, ``rollback`` and ``history``, on a stored study and a directory."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from autotune.adapters.deploy.directory import DirectoryDeployment
from autotune.adapters.triton.config import read
from autotune.cli import cli, promote
from autotune.core.errors import AutotuneError, Busy, InputRefused
from autotune.core.promotions import PromotionState
from search_spaces.candidate import Candidate
from storage.service import ServiceStore
from tests import promoting

Run = Callable[..., Result]


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    promoting.put(tmp_path / "production", "ocr")
    return tmp_path / "production"


@pytest.fixture
def run(database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A command, on a database with a study whose trial 1 has batches of 4."""
    for variable in ("WORK", "SERVICE"):
        monkeypatch.setenv(f"AUTOTUNE_{variable}", str(tmp_path / variable.lower()))
    monkeypatch.setenv("AUTOTUNE_DB", str(database))
    promoting.put(tmp_path / "models", "ocr")
    definition = {
        "study": "ocr",
        "model": {"repository": str(tmp_path / "models"), "name": "ocr"},
        "workload": {"target_qps": 20},
        "sla": {"p50_ms": 150},
        "space": {"max_batch_size": [1, 4]},
    }
    candidates = [Candidate({"max_batch_size": batch}) for batch in (1, 4)]
    with closing(ServiceStore(str(database))) as store:
        promoting.stored_study(store, definition, candidates)

    def ran(*arguments: object, said: str = "") -> Result:
        return CliRunner().invoke(
            cli, [str(each) for each in arguments], input=said, catch_exceptions=False
        )

    return ran


def batch(repository: Path) -> int:
    return int(read(repository / "ocr" / "config.pbtxt").max_batch_size)


def state(tmp_path: Path) -> PromotionState:
    with closing(ServiceStore(str(tmp_path / "autotune.db"))) as store:
        return store.promotions.promotion(1).state


def test_a_trial_is_promoted_told_of_and_rolled_back(run: Run, repository: Path) -> None:
    done = run("promote", "ocr", "--trial", 1, "--target", repository, "--yes", "--why", "faster")
    assert "+max_batch_size: 4" in done.stdout
    assert f"promotion 1 of ocr is in service at {repository}" in done.stdout
    assert "trial 1 was not measured again from its exported files" in done.stderr
    assert batch(repository) == 4

    told = run("history", "ocr", "--diff").stdout
    assert "ocr: promotions that have been in service" in told
    assert "faster" in told
    assert "+max_batch_size: 4" in told

    back = run("rollback", "ocr", "--target", repository, "--why", "slow")
    assert "what was there before it is in service" in back.stdout
    assert batch(repository) == 1
    document = json.loads(run("history", "ocr", "--json").stdout)
    assert [each["state"] for each in document["champions"]] == ["rolled_back"]
    assert document["audit"][0]["action"] == "rolled back"


@pytest.mark.parametrize(("said", "batches"), [("n\n", 1), ("y\n", 4)], ids=["no", "yes"])
def test_whoever_is_there_is_asked(
    run: Run,
    repository: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    said: str,
    batches: int,
) -> None:
    monkeypatch.setattr(promote, "someone_there", lambda: True)
    run("promote", "ocr", "--trial", 1, "--target", repository, said=said)
    assert batch(repository) == batches
    assert state(tmp_path) is (PromotionState.REJECTED if batches == 1 else PromotionState.DONE)


def test_where_nobody_is_there_nothing_is_promoted(run: Run, repository: Path) -> None:
    with pytest.raises(InputRefused, match="nobody is there to be asked"):
        run("promote", "ocr", "--trial", 1, "--target", repository)


def test_a_proposal_is_approved_by_its_number(run: Run, repository: Path) -> None:
    proposed = run("promote", "ocr", "--trial", 1, "--target", repository, "--propose")
    assert "autotune promote --approve 1" in proposed.stdout
    assert batch(repository) == 1
    document = json.loads(run("promote", "--approve", 1, "--json").stdout)
    assert document["state"] == "done"
    assert batch(repository) == 4


def test_a_study_that_is_not_there_is_told_before_anyone_is_asked(
    run: Run, repository: Path
) -> None:
    with pytest.raises(InputRefused, match="no such study"):
        run("promote", "nosuch", "--target", repository)


def test_what_was_decided_already_is_told_without_its_difference(
    run: Run, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("promote", "ocr", "--trial", 1, "--target", repository, "--propose")
    run("promote", "--reject", 1)
    shown: list[object] = []
    monkeypatch.setattr("autotune.cli.promote._Asked._show", lambda *what: shown.append(what))
    with pytest.raises(InputRefused, match="is rejected by"):
        run("promote", "--approve", 1)
    assert shown == []


def test_a_proposal_is_rejected_by_its_number(run: Run, repository: Path, tmp_path: Path) -> None:
    run("promote", "ocr", "--trial", 1, "--target", repository, "--propose")
    run("promote", "--reject", 1, "--why", "not now")
    assert state(tmp_path) is PromotionState.REJECTED
    assert batch(repository) == 1


def test_a_promotion_that_fails_is_an_error_that_says_why(
    run: Run, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(root: Path) -> None:
        raise OSError(28, "No space left on device")

    run("promote", "ocr", "--trial", 1, "--target", repository, "--propose")
    monkeypatch.setattr("autotune.adapters.deploy.directory.sync_tree", full)
    with pytest.raises(AutotuneError, match="No space left on device"):
        run("promote", "--approve", 1)


def test_while_another_is_under_way_it_is_told_how_to_go_on(
    run: Run, repository: Path, tmp_path: Path
) -> None:
    with (
        DirectoryDeployment(repository, known=None).locked(),
        pytest.raises(Busy) as busy,
    ):
        run("promote", "ocr", "--trial", 1, "--target", repository, "--yes")
    assert busy.value.__notes__ == ["it is approved, and waits: autotune promote --approve 1"]
    assert state(tmp_path) is PromotionState.APPROVED


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "give a study, or --approve ID"),
        (("ocr", "--approve", 1), "give a study, or --approve ID"),
        (("ocr", "--yes"), "a promotion needs a target"),
    ],
)
def test_what_is_unclear_is_refused(run: Run, arguments: tuple[Any, ...], words: str) -> None:
    with pytest.raises(InputRefused, match=words):
        run("promote", *arguments)
