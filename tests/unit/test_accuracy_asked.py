"""The user's own metric and right answers: run apart from what is kept, named by all their code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autotune.bootstrap.accuracy import Asked, asked
from autotune.core.accuracy import Accuracy
from autotune.core.errors import InputRefused
from autotune.core.model_interface import ModelInterface, TensorSpec
from autotune.studyfile import study_from_options

INTERFACE = ModelInterface(
    name="m",
    inputs=(TensorSpec(name="x", datatype="FP32", shape=(4,)),),
    outputs=(TensorSpec(name="y", datatype="FP32", shape=(3,)),),
    batched=True,
)
METRIC = """
import sys
import helper

def spoils(outputs, expected):
    score = float(outputs[0]["y"].sum())
    outputs[0]["y"][:] = 0
    outputs.clear()
    expected[0].append("spoilt")
    return score

def prints(outputs, expected):
    print("on standard output")
    return helper.score()

def leaves(outputs, expected):
    sys.exit(0)
"""


def of(folder: Path, **accuracy: Any) -> Asked:
    np.savez(folder / "data.npz", x=np.ones((2, 4), dtype="float32"))
    study = study_from_options(
        {
            "study": "s",
            "model": {"onnx": "m.onnx"},
            "workload": {"target_qps": 10},
            "sla": {"p95_ms": 80},
            "space": {"variant": ["onnxruntime-fp32"]},
            "accuracy": {"metric": "text_match", "data": str(folder / "data.npz"), **accuracy},
        }
    )
    return asked(study, INTERFACE)


def own(folder: Path, function: str, **accuracy: Any) -> Asked:
    (folder / "metric.py").write_text(METRIC)
    if not (folder / "helper.py").exists():
        (folder / "helper.py").write_text("import deeper\ndef score(): return deeper.VALUE\n")
        (folder / "deeper.py").write_text("VALUE = 1.0\n")
    return of(folder, metric=f"{folder}/metric.py:{function}", **accuracy)


def answers(*rows: Any) -> list[dict[str, Any]]:
    return [{"y": np.asarray(row, dtype="float32")} for row in rows]


def score(accuracy: Accuracy, rows: Any) -> float:
    assert accuracy.function is not None
    return accuracy.function(rows, accuracy.expected)


def test_a_function_that_changes_what_it_is_given_changes_nothing_that_is_kept(
    tmp_path: Path,
) -> None:
    (tmp_path / "right.json").write_text(json.dumps([["a"], ["b"]]))
    accuracy = own(tmp_path, "spoils", expected=str(tmp_path / "right.json")).accuracy
    source = answers([1, 2, 3], [0, 0, 0])
    assert [score(accuracy, source) for _ in range(2)] == [6, 6]
    assert source[0]["y"].tolist() == [1, 2, 3]
    assert accuracy.expected == [["a"], ["b"]]


def test_what_a_function_prints_stays_off_standard_output(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    score(own(tmp_path, "prints").accuracy, answers([1]))
    said = capsys.readouterr()
    assert said.out == ""
    assert "on standard output" in said.err


def test_a_function_that_leaves_is_refused_and_ends_nothing(tmp_path: Path) -> None:
    with pytest.raises(InputRefused, match="the accuracy metric leaves of") as refused:
        score(own(tmp_path, "leaves").accuracy, answers([1]))
    assert "SystemExit" in str(refused.value)
    assert "leaves(outputs, expected)" in refused.value.next_step


def test_a_function_is_named_by_all_that_it_imports_from_its_folder(tmp_path: Path) -> None:
    once = own(tmp_path, "prints").named
    assert own(tmp_path, "prints").named == once
    (tmp_path / "deeper.py").write_text("VALUE = 2.0\n")
    assert own(tmp_path, "prints").named != once


def test_an_answer_of_a_line_ends_with_the_line_alone(tmp_path: Path) -> None:
    right = tmp_path / "right.txt"
    for ending in ("", "\n"):
        right.write_text("a\x0cb\u2028c\nd" + ending)
        assert of(tmp_path, expected=str(right)).accuracy.expected == ["a\x0cb\u2028c", "d"]
    right.write_bytes(b"a\r\nb\r\n")
    assert of(tmp_path, expected=str(right)).accuracy.expected == ["a", "b"]


def test_a_text_is_no_score_though_it_looks_like_one(tmp_path: Path) -> None:
    (tmp_path / "metric.py").write_text("def text(outputs, expected): return '0.9'\n")
    accuracy = of(tmp_path, metric=f"{tmp_path}/metric.py:text").accuracy
    with pytest.raises(InputRefused, match="gives no number") as refused:
        score(accuracy, answers([1]))
    assert "'0.9'" in str(refused.value)
