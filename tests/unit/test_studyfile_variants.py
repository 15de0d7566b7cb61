"""Study files of pipelines and variants: files from packages, inputs, accuracy, calibration."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest

from autotune.core.study import AccuracySpec, CalibrationMethod, CalibrationSpec, PackagedModel
from autotune.core.workload import InputKind, InputSpec
from autotune.studyfile import read_definition
from tests.unit.test_studyfile import refusal, studied

SHA = "6f327246b50388f3c176ae304bd95767ea6dc0c9ae92153ef8cbe210b3c14884"
PIPELINE = f"""\
study: reader
model:
  repository: models
  name: ocr
  files:
    recognize/1/model.onnx: {{requirement: a==1, file: a/b.onnx, sha256: {SHA}}}
server:
  requirements: needs.txt
workload:
  target_qps: 60
  inputs: render.py:words
sla:
  p95_ms: 80
  accuracy_drop: 1%
accuracy:
  metric: text_match
  data: render.py:words
  expected: words.txt
  samples: 200
calibration:
  data: samples/
  exclude: none
space:
  recognize.variant: [onnxruntime-fp32, onnxruntime-int8]
  decode.workers: [1, 2]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("needs.txt", "render.py", "words.txt"):
        (tmp_path / name).touch()
    (tmp_path / "samples").mkdir()
    return tmp_path


# ------------------------------------------------------------------------------ what is read
def test_files_of_packages_are_named_by_their_path_in_the_repository(folder: Path) -> None:
    model = studied(folder, PIPELINE).model
    package = PackagedModel(requirement="a==1", file="a/b.onnx", sha256=SHA)
    assert dict(model.files) == {"recognize/1/model.onnx": package}


def test_the_servers_requirements_are_relative_to_the_file(folder: Path) -> None:
    assert studied(folder, PIPELINE).server.requirements == folder / "needs.txt"


def test_accuracy_and_calibration_are_read_with_their_data(folder: Path) -> None:
    study = studied(folder, PIPELINE)
    made = InputSpec(kind=InputKind.PYTHON, path=folder / "render.py", function="words", count=200)
    assert study.accuracy == AccuracySpec(
        metric="text_match", data=made, expected=folder / "words.txt", samples=200
    )
    kept = InputSpec(kind=InputKind.FOLDER, path=folder / "samples", count=64)
    assert study.calibration == CalibrationSpec(data=kept, exclude=())
    assert study.sla.accuracy_drop == 0.01


@pytest.mark.parametrize(
    ("words", "kind", "path", "function"),
    [
        ("random", InputKind.RANDOM, None, ""),
        ("render.py:words", InputKind.PYTHON, "render.py", "words"),
        ("{kind: python, path: render.py, function: f}", InputKind.PYTHON, "render.py", "f"),
        ("samples/", InputKind.FOLDER, "samples", ""),
        ("./samples", InputKind.FOLDER, "samples", ""),
        ("{kind: folder, path: samples}", InputKind.FOLDER, "samples", ""),
        ("in.npz", InputKind.NPZ, "in.npz", ""),
        ("in.json", InputKind.JSON, "in.json", ""),
    ],
)
def test_inputs_are_told_by_their_form(folder: Path, words, kind, path, function) -> None:
    for name in ("in.npz", "in.json"):
        (folder / name).touch()
    inputs = studied(folder, PIPELINE.replace("inputs: render.py:words", f"inputs: {words}"))
    spec = inputs.workload.inputs
    assert (spec.kind, spec.function) == (kind, function)
    assert spec.path == (None if path is None else folder / path)


def test_accuracy_may_be_its_metric_and_calibration_its_data_alone(folder: Path) -> None:
    head, tail = PIPELINE[: PIPELINE.index("accuracy:\n")], PIPELINE[PIPELINE.index("space:") :]
    study = studied(folder, f"{head}accuracy: top1\ncalibration: samples/\n{tail}")
    assert study.accuracy == AccuracySpec(metric="top1")
    assert study.calibration is not None
    assert (study.calibration.exclude, study.calibration.max_excluded) == (None, 8)
    assert study.calibration.methods == tuple(CalibrationMethod)


@pytest.mark.parametrize(
    ("words", "exclude"),
    [("auto", None), ("none", ()), ("null", ()), ("[conv_1, conv_2]", ("conv_1", "conv_2"))],
)
def test_nodes_are_excluded_from_quantization_by_name_or_found_or_not(
    folder: Path, words: str, exclude: tuple[str, ...] | None
) -> None:
    study = studied(folder, PIPELINE.replace("exclude: none", f"exclude: {words}"))
    assert study.calibration is not None
    assert study.calibration.exclude == exclude


def test_one_calibration_method_needs_no_list(folder: Path) -> None:
    study = studied(folder, PIPELINE.replace("exclude: none", "methods: entropy"))
    assert study.calibration is not None
    assert study.calibration.methods == (CalibrationMethod.ENTROPY,)


def test_a_metric_of_the_users_is_a_function_of_a_file(folder: Path) -> None:
    text = PIPELINE.replace("metric: text_match", "metric: render.py:score")
    study = studied(folder, text)
    assert study.accuracy is not None
    assert study.accuracy.metric == f"{folder}/render.py:score"
    assert read_definition(study.definition) == study


@pytest.mark.parametrize(("words", "drop"), [("1%", 0.01), ("0.02", 0.02), ("0", 0.0)])
def test_the_accuracy_drop_is_a_share(folder: Path, words: str, drop: float) -> None:
    text = PIPELINE.replace("accuracy_drop: 1%", f"accuracy_drop: {words}")
    assert studied(folder, text).sla.accuracy_drop == drop


def test_the_stored_definition_means_the_same_study(folder: Path) -> None:
    study = studied(folder, PIPELINE)
    again = read_definition(json.loads(json.dumps(study.definition)))
    assert again == study


@pytest.mark.parametrize(
    "changed",
    [
        {"calibration": None},
        {"space": {"name": "s", "decode.workers": [1, 2]}},
        {"space": {"name": "s", "recognize.variant": ["onnxruntime-int4"]}},
    ],
)
def test_a_stored_study_is_not_held_against_rules_for_new_ones(
    folder: Path, changed: dict[str, object]
) -> None:
    stored = {**studied(folder, PIPELINE).definition, **changed}
    stored = {key: value for key, value in stored.items() if value is not None}
    assert read_definition(stored).name == "reader"


def test_a_definition_from_before_there_were_variants_can_be_read(folder: Path) -> None:
    (folder / "model.onnx").touch()
    study = studied(
        folder,
        "study: old\nmodel: {onnx: model.onnx}\nworkload: {target_qps: 60}\n"
        "sla: {p95_ms: 80}\nspace: {max_batch_size: [1, 4]}\n",
    )
    old = copy.deepcopy(dict(study.definition))
    del old["model"]["files"]
    assert read_definition(old).model == study.model


# ----------------------------------------------------------------------------- what is refused
@pytest.mark.parametrize(
    ("old", "new", "line", "words"),
    [
        ("files:", "file:", 5, "did you mean 'files'?"),
        ("sha256", "sha", 6, "model.files.recognize/1/model.onnx.sha: unknown key"),
        ("recognize/1/model.onnx", "../model.onnx", 6, "the file's path in the repository"),
        ("recognize/1/model.onnx", "model.onnx", 6, "such as recognize/1/model.onnx"),
        ("repository: models", "onnx: model.onnx", 5, "no effect without model.repository"),
        ("requirements:", "requirement:", 8, "did you mean 'requirements'?"),
        ("server:", "server:\n  launch: binary\n  binary: t", 10, "no effect with launch 'binary'"),
        ("inputs: render.py:words", "inputs: render.py", 11, "render.py:FUNCTION"),
        ("inputs: render.py:words", "inputs: randon", 11, "'python' or 'folder'"),
        (
            "inputs: render.py:words",
            "inputs: {kind: npz, path: a.npz, function: f}",
            11,
            "workload.inputs.function: goes with a Python file",
        ),
        ("accuracy_drop: 1%", "accuracy_drop: 2", 14, "give a share: 2% or 0.02"),
        ("accuracy_drop: 1%", "accuracy_drop: some", 14, "must be a share"),
        ("accuracy_drop: 1%", "accuracy_drops: 1%", 14, "did you mean 'accuracy_drop'?"),
        ("text_match", "text_mach", 16, "did you mean 'text_match'?"),
        ("text_match", "f.txt:score", 16, "FILE.py:FUNCTION"),
        ("samples: 200", "sample: 200", 19, "did you mean 'samples'?"),
        ("data: samples/", "datum: samples/", 21, "did you mean 'data'?"),
        ("data: samples/", "data: random", 21, "random ones have other ranges"),
        ("data: samples/", "data: {kind: folder, pat: x}", 21, "did you mean 'path'?"),
        ("exclude: none", "exclude: some", 22, "calibration.exclude: must be 'auto' or 'none'"),
        ("exclude: none", "methods: [minmax, mean]", 22, "'minmax', 'entropy' or 'percentile'"),
        ("exclude: none", "methods: [minmax, minmax]", 22, "names a method twice"),
        ("-int8]", "-int]", 24, "did you mean onnxruntime-int8"),
        ("onnxruntime-int8]", "int8]", 24, "did you mean onnxruntime-int8 (on a CPU) or tensorrt-"),
        ("onnxruntime-int8]", "bf16]", 24, "did you mean tensorrt-bf16 (on an NVIDIA GPU)?"),
    ],
)
def test_what_is_wrong_is_refused_with_its_line(
    folder: Path, old: str, new: str, line: int, words: str
) -> None:
    assert old in PIPELINE
    text = refusal(folder, PIPELINE.replace(old, new, 1))
    assert f"study.yaml:{line}: " in text
    assert words in text


def without(section: str) -> str:
    """The study without one of its sections."""
    lines = PIPELINE.splitlines(keepends=True)
    start = lines.index(f"{section}:\n")
    end = next(i for i in range(start + 1, len(lines)) if not lines[i].startswith(" "))
    return "".join(lines[:start] + lines[end:])


def test_int8_without_calibration_is_refused_with_the_variants_line(folder: Path) -> None:
    text = refusal(folder, without("calibration"))
    assert "study.yaml:21: space.recognize.variant.1: int8 is calibrated on samples" in text


def test_int8_among_values_spelled_out_is_found_too(folder: Path) -> None:
    text = without("calibration").replace(
        "[onnxruntime-fp32, onnxruntime-int8]",
        "\n    values:\n      - onnxruntime-fp32\n      - onnxruntime-int8",
    )
    assert "study.yaml:24: space.recognize.variant.values.1: int8" in refusal(folder, text)


def test_calibration_without_anything_to_calibrate_is_refused(folder: Path) -> None:
    text = refusal(folder, PIPELINE.replace("onnxruntime-int8", "onnxruntime-fp16"))
    assert "study.yaml:20: calibration: has no effect" in text
    assert "such as onnxruntime-int8" in text


def test_a_limit_on_accuracy_that_nothing_measures_is_refused(folder: Path) -> None:
    text = refusal(folder, without("accuracy"))
    assert "study.yaml:14: sla.accuracy_drop: limits what the section accuracy measures" in text


def test_accuracy_of_a_study_without_variants_is_refused(folder: Path) -> None:
    lines = [each for each in without("calibration").splitlines() if "variant" not in each]
    text = refusal(folder, "\n".join(lines))
    assert "study.yaml:14: sla.accuracy_drop: has no effect" in text
    assert "(got '1%')" in text
    assert "study.yaml:15: accuracy: has no effect" in text


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("needs.txt", "the requirements file of the server does not exist"),
        ("words.txt", "the file of expected answers does not exist"),
        ("render.py", "the input file does not exist"),
        ("samples", "the calibration.data folder does not exist"),
    ],
)
def test_a_file_that_is_missing_is_refused_before_anything_runs(
    folder: Path, name: str, words: str
) -> None:
    path = folder / name
    path.rmdir() if path.is_dir() else path.unlink()
    assert words in refusal(folder, PIPELINE)


def test_a_stored_study_is_read_when_its_files_are_gone(folder: Path) -> None:
    study = studied(folder, PIPELINE)
    for name in ("needs.txt", "render.py", "words.txt"):
        (folder / name).unlink()
    assert read_definition(study.definition) == study
