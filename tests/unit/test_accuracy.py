"""How much worse answers are: built-in metrics, the right answers, the user's own function."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autotune.bootstrap.accuracy import asked
from autotune.core.accuracy import METRICS, Accuracy
from autotune.core.errors import InputRefused
from autotune.core.model_interface import ModelInterface, TensorSpec
from autotune.studyfile import study_from_options

INTERFACE = ModelInterface(
    name="m",
    inputs=(TensorSpec(name="x", datatype="FP32", shape=(4,)),),
    outputs=(TensorSpec(name="y", datatype="FP32", shape=(3,)),),
    batched=True,
)


def answers(*values: Any, dtype: str = "float32") -> list[dict[str, Any]]:
    return [{"y": np.asarray(value, dtype=dtype)} for value in values]


def texts(*values: str) -> list[dict[str, Any]]:
    return [{"y": np.array([value.encode()], dtype=object)} for value in values]


SOURCE = answers([1, 2, 9], [8, 2, 3], [0, 5, 1], [1, 0, 7])


@pytest.mark.parametrize("metric", ["top1", "cosine", "relative_error"])
def test_the_source_itself_loses_nothing(metric: str) -> None:
    assert Accuracy(metric=metric).drop(SOURCE, SOURCE) == pytest.approx(0)


def test_without_right_answers_a_drop_is_the_share_that_does_not_agree_with_the_source() -> None:
    one_other = answers([1, 2, 9], [8, 2, 3], [0, 5, 1], [7, 0, 1])
    assert Accuracy(metric="top1").drop(one_other, SOURCE) == 0.25
    said = texts("a", "b", "c", "d")
    assert Accuracy(metric="text_match").drop(texts("a", "B", "c", ""), said) == 0.5


def test_cosine_and_relative_error_are_what_their_names_say() -> None:
    assert Accuracy(metric="cosine").drop(answers([3, 0]), answers([3, 4])) == pytest.approx(0.4)
    error = Accuracy(metric="relative_error")
    assert error.drop(answers([3, 0]), answers([3, 4])) == pytest.approx(0.8)
    assert error.drop(answers([-9, -12]), answers([3, 4])) == pytest.approx(4), "no upper end"


def test_with_right_answers_a_drop_is_what_the_source_scores_more() -> None:
    right = Accuracy(metric="top1", expected=[2, 0, 1, 0])  # of these the source has three
    worse = answers([1, 9, 2], [8, 2, 3], [0, 5, 1], [1, 0, 7])
    assert right.drop(worse, SOURCE) == 0.25
    spoken = Accuracy(metric="text_match", expected=["a", "b"])
    assert spoken.drop(texts("a", "x"), texts("a", "b")) == 0.5


def test_a_variant_that_scores_better_than_its_source_has_no_drop_and_no_gain() -> None:
    right = Accuracy(metric="top1", expected=[2, 0, 1, 0])
    better = answers([1, 2, 9], [8, 2, 3], [0, 5, 1], [9, 0, 7])
    assert right.drop(better, SOURCE) == 0


def test_an_answer_of_nan_agrees_with_nothing() -> None:
    lost = answers([np.nan, 2, 9], [8, 2, 3], [0, 5, 1], [1, 0, 7])
    assert Accuracy(metric="cosine").drop(lost, SOURCE) == pytest.approx(0.25)


@pytest.mark.parametrize("expected", [None, [2, 0, 1, 2]])
def test_the_largest_of_nan_is_no_right_answer(expected: list[int] | None) -> None:
    """`np.argmax` takes NaN for the largest value of all: class 0 here, which request 1 wants."""
    lost = answers(*[[np.nan] * 3] * 4)
    assert Accuracy(metric="top1", expected=expected).drop(lost, SOURCE) == 1


def test_nan_in_any_output_is_a_loss_whatever_the_metric_looks_at() -> None:
    source = [{"y": np.array([3.0, 4.0]), "z": np.array([1.0])}] * 2
    lost = [source[0], {**source[1], "z": np.array([np.nan])}]
    assert Accuracy(metric="cosine", output="y").drop(lost, source) == 0.5
    blind = Accuracy(metric="own", function=lambda _, __: 1.0)
    assert blind.drop(lost, source) == 0.5
    assert blind.drop(lost, lost) == 0, "the source's own"


def test_an_infinite_error_is_a_drop_that_can_be_stored() -> None:
    drop = Accuracy(metric="relative_error").drop(answers(*[[np.inf, 0, 0]] * 4), SOURCE)
    assert 1 < drop < np.inf


@pytest.mark.parametrize(
    "right",
    [[2, 0, 1, 2], [2.0, 0.0, 1.0, 2.0], ["2", "0", "1", "2"], [[2], [0], [1], [2]]],
    ids=["integers", "floats", "texts", "lists"],
)
def test_places_are_whole_numbers_however_they_are_written(right: list[Any]) -> None:
    accuracy = Accuracy(metric="top1", expected=right)
    assert accuracy.drop(SOURCE, SOURCE) == 0
    assert accuracy.drop(answers(*[[1, 9, 2]] * 4), SOURCE) == 0.75


@pytest.mark.parametrize("label", ["cat", 0.5, -1, 3, np.nan, "", [0, 1]], ids=repr)
def test_what_is_no_place_is_refused_rather_than_taken_for_class_0(label: Any) -> None:
    with pytest.raises(InputRefused, match="top1 cannot compare output 'y'"):
        Accuracy(metric="top1", expected=[label]).drop(SOURCE[:1], SOURCE[:1])


@pytest.mark.parametrize("output", [[7.0], 7.0], ids=["one value", "no axis"])
def test_the_largest_of_one_value_is_refused(output: Any) -> None:
    with pytest.raises(InputRefused, match="no largest of one value"):
        Accuracy(metric="top1").drop(answers(output), answers(output))


def test_vectors_of_other_sizes_are_not_compared() -> None:
    with pytest.raises(InputRefused, match="3 values against 1"):
        Accuracy(metric="relative_error", expected=[1.0]).drop(SOURCE[:1], SOURCE[:1])


def test_right_answers_that_the_source_never_gives_could_not_be_lost() -> None:
    with pytest.raises(InputRefused, match="every variant would pass") as refused:
        Accuracy(metric="text_match", expected=["a ", "b "]).drop(texts("x", "y"), texts("a", "b"))
    assert "'a '" in str(refused.value)
    counted_from_1 = Accuracy(metric="top1", expected=[1, 1])
    with pytest.raises(InputRefused, match="every variant would pass"):
        counted_from_1.drop(answers([9, 1, 2], [9, 1, 2]), answers([9, 1, 2], [9, 1, 2]))


def test_of_several_outputs_the_worst_counts_or_one_is_named() -> None:
    source = [{"a": np.array([3.0, 4.0]), "b": np.array([3.0, 4.0])}]
    given = [{"a": np.array([3.0, 4.0]), "b": np.array([3.0, 0.0])}]
    assert Accuracy(metric="cosine").drop(given, source) == pytest.approx(0.4)
    assert Accuracy(metric="cosine", output="a").drop(given, source) == pytest.approx(0)
    with pytest.raises(InputRefused, match="several outputs, and top1 looks at one"):
        Accuracy(metric="top1").drop(given, source)
    with pytest.raises(InputRefused, match="names no output") as refused:
        Accuracy(metric="cosine", output="c").drop(given, source)
    assert "a, b" in refused.value.next_step


def test_what_a_metric_cannot_compare_is_refused() -> None:
    with pytest.raises(InputRefused, match="cosine cannot compare output 'y'"):
        Accuracy(metric="cosine").drop(texts("a"), texts("a"))
    with pytest.raises(InputRefused, match="top1 cannot compare"):
        Accuracy(metric="top1").drop(answers([[1, 2], [2, 1]]), answers([1, 2, 3]))
    with pytest.raises(InputRefused, match="one right answer for each"):
        Accuracy(metric="top1", expected=[1]).drop(SOURCE, SOURCE)


# ------------------------------------------------------------------------- as a study asks for it
def study(tmp_path: Path, **accuracy: Any) -> Any:
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "data.npz", x=rng.normal(size=(6, 4)).astype("float32"))
    return study_from_options(
        {
            "study": "s",
            "model": {"onnx": "m.onnx", "name": "m"},
            "workload": {"target_qps": 10},
            "sla": {"p95_ms": 80},
            "space": {"variant": ["onnxruntime-fp32", "onnxruntime-fp16"]},
            "accuracy": {"data": str(tmp_path / "data.npz"), **accuracy},
        }
    )


def test_the_evaluation_data_are_the_requests_as_many_as_asked_for(tmp_path: Path) -> None:
    assert len(asked(study(tmp_path), INTERFACE).requests) == 6
    (tmp_path / "right.txt").write_text("a\nb\nc\nd\ne\nf\n")
    found = asked(study(tmp_path, samples=4, expected=str(tmp_path / "right.txt")), INTERFACE)
    assert len(found.requests) == 4
    assert found.accuracy.expected == ["a", "b", "c", "d"]


@pytest.mark.parametrize("suffix", ["json", "npy", "npz", "txt"])
def test_right_answers_are_read_from_a_file(tmp_path: Path, suffix: str) -> None:
    file, right = tmp_path / f"right.{suffix}", [2, 0, 1, 2, 2, 0]
    if suffix == "json":
        file.write_text(json.dumps(right))
    elif suffix == "txt":
        file.write_text("\n".join(map(str, right)))
    elif suffix == "npy":
        np.save(file, np.array(right))
    else:
        np.savez(file, right=np.array(right))
    expected = asked(study(tmp_path, expected=str(file)), INTERFACE).accuracy.expected
    assert [int(each) for each in expected or ()] == right


@pytest.mark.parametrize("end", ["", "\n"])
def test_a_line_ends_where_an_editor_ends_it(tmp_path: Path, end: str) -> None:
    right = ["a\x0cb", "c\u2028d", "e\x85f", "g\x0bh", "", " i "]
    file = tmp_path / "right.txt"
    file.write_text("\r\n".join(right) + end, encoding="utf-8", newline="")
    assert asked(study(tmp_path, expected=str(file)), INTERFACE).accuracy.expected == right


def test_a_file_without_a_line_holds_no_answer(tmp_path: Path) -> None:
    (tmp_path / "right.txt").touch()
    with pytest.raises(InputRefused, match="0 answers, 6 requests"):
        asked(study(tmp_path, expected=str(tmp_path / "right.txt")), INTERFACE)


def test_right_answers_that_do_not_fit_the_requests_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "right.json"
    for text, match in (("[1, 2]", "2 answers, 6 requests"), ("{}", "a .txt with an answer")):
        file.write_text(text)
        with pytest.raises(InputRefused) as refused:
            asked(study(tmp_path, expected=str(file)), INTERFACE)
        assert match in str(refused.value)


METRIC = """
import numpy as np

def share_above_zero(outputs, expected):
    return float(np.mean([o["y"][0] > 0 for o in outputs])) if expected is None else len(expected)

def broken(outputs, expected):
    return outputs[0]["no such output"]

def words(outputs, expected):
    return float("nan")
"""


def own(tmp_path: Path, function: str) -> Accuracy:
    (tmp_path / "metric.py").write_text(METRIC)
    return asked(study(tmp_path, metric=f"{tmp_path}/metric.py:{function}"), INTERFACE).accuracy


def test_the_user_s_own_function_scores(tmp_path: Path) -> None:
    score = own(tmp_path, "share_above_zero")
    source = answers([1, 0, 0], [1, 0, 0])
    assert score.drop(answers([1, 0, 0], [-1, 0, 0]), source) == 0.5
    assert score.drop(source, answers([-1, 0, 0], [1, 0, 0])) == 0, "better is no gain"


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("broken", ["the accuracy metric broken of", "metric.py failed in line 8", "KeyError"]),
        ("words", ["gives no number"]),
    ],
)
def test_a_function_that_fails_is_refused_with_file_function_and_exception(
    tmp_path: Path, function: str, words: Sequence[str]
) -> None:
    score = own(tmp_path, function)
    with pytest.raises(InputRefused) as refused:
        score.drop(SOURCE, SOURCE)
    for each in words:
        assert each in str(refused.value)


def test_what_the_gate_computes_is_named_by_all_that_it_depends_on(tmp_path: Path) -> None:
    plain = asked(study(tmp_path), INTERFACE).named
    own(tmp_path, "words")
    function = asked(study(tmp_path, metric=f"{tmp_path}/metric.py:words"), INTERFACE).named
    (tmp_path / "metric.py").write_text(METRIC + "\n# changed\n")
    changed = asked(study(tmp_path, metric=f"{tmp_path}/metric.py:words"), INTERFACE).named
    assert len({plain, function, changed}) == 3
    assert set(METRICS) == {"top1", "text_match", "cosine", "relative_error"}
