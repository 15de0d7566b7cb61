"""What is refused while another study has the machine, instead of a word to wait."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from autotune.bootstrap import bench, session
from autotune.bootstrap.early import refuse_anyway
from autotune.core.errors import AutotuneError, InputRefused
from autotune.core.study import Study
from autotune.studyfile import study_from_options
from tests.pipelines import put_pipeline

HALF = "onnxruntime-fp16"


@pytest.fixture(autouse=True)
def pipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_pipeline(tmp_path / "models")
    (tmp_path / "metric.py").write_text("def score(outputs, expected): return 1.0\n")
    (tmp_path / "right.txt").write_text("one\n")
    monkeypatch.chdir(tmp_path)


def study(space: dict[str, Any], **sections: Any) -> Study:
    return study_from_options(
        {
            "study": "s",
            "model": {"repository": "models", "name": "pipe"},
            "workload": {"target_qps": 10, "inputs": {"shapes": {"x": [3]}}},
            "sla": {"p95_ms": 80},
            "space": space,
            **sections,
        }
    )


@pytest.mark.parametrize(
    ("space", "sections", "words"),
    [
        ({"secnd.workers": [1, 2]}, {}, r"has no step secnd.*got 'secnd\.workers'"),
        ({"max_batch_size": [1, 2]}, {}, "is an ensemble"),
        ({"first.variant": [HALF]}, {"accuracy": "metric.py:scores"}, "no such function"),
        (
            {"first.variant": [HALF]},
            {"accuracy": {"metric": "cosine", "expected": "right.txt"}},
            "one right answer for each",
        ),
    ],
)
def test_what_is_wrong_anyway_is_refused(
    space: dict[str, Any], sections: dict[str, Any], words: str
) -> None:
    with pytest.raises(InputRefused, match=words):
        refuse_anyway(study(space, **sections))


def test_what_only_a_prepared_model_tells_is_passed_over(tmp_path: Path) -> None:
    refuse_anyway(study({"second.workers": [1, 2], "server.buffer-manager-thread-count": [1]}))
    (tmp_path / "models" / "third" / "config.pbtxt").unlink()
    refuse_anyway(study({"secnd.workers": [1, 2]}))


def test_while_another_study_measures_what_is_wrong_anyway_is_told_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bench, "MACHINE_LOCK", "\0triton-autotune.tested")
    with bench.alone(), ExitStack() as stack:
        with pytest.raises(InputRefused, match="has no step secnd"):
            session._alone_on_the_machine(stack, study({"secnd.workers": [1, 2]}))
        with pytest.raises(AutotuneError, match="another study is measuring"):
            session._alone_on_the_machine(stack, study({"second.workers": [1, 2]}))


def test_slots_of_one_machine_are_measured_on_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "MACHINE_LOCK", "\0triton-autotune.tested")
    monkeypatch.setenv("AUTOTUNE_SLOT", "one")
    with bench.alone():
        monkeypatch.setenv("AUTOTUNE_SLOT", "other")
        with bench.alone(), pytest.raises(AutotuneError, match="another study"), bench.alone():
            pass


def test_a_slot_of_a_name_that_no_lock_can_have_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOTUNE_SLOT", "x" * 200)
    with pytest.raises(InputRefused, match="AUTOTUNE_SLOT"), bench.alone():
        pass
