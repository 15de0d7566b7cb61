"""Study files: pinned packages, and the saturation burst that objectives need."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.studyfile import read_definition
from tests.unit.test_studyfile import refusal, studied

SHA = "6" * 64
PACKAGE = f"""\
study: s
model:
  package: {{requirement: a==1, file: a/b.onnx, sha256: "{SHA}"}}
workload: {{target_qps: 60}}
sla: {{p95_ms: 80}}
space: {{max_batch_size: [1, 4]}}
"""
FILES = f"""\
study: s
model:
  repository: models
  name: m
  files:
    m/1/model.onnx: {{requirement: a==1, file: a/b.onnx, sha256: "{SHA}"}}
workload: {{target_qps: 60}}
sla: {{p95_ms: 80}}
space: {{max_batch_size: [1, 4]}}
"""


@pytest.mark.parametrize("requirement", ["rapidocr>=3", "rapidocr", "a==1,<2", "a==1.*", "a~=1"])
@pytest.mark.parametrize(("study", "line"), [(PACKAGE, 3), (FILES, 6)])
def test_a_package_that_is_not_pinned_is_refused(
    tmp_path: Path, study: str, line: int, requirement: str
) -> None:
    told = refusal(tmp_path, study.replace("a==1", f'"{requirement}"'))
    assert f"study.yaml:{line}: model." in told
    assert "name==version" in told


@pytest.mark.parametrize("requirement", ["a==1", "a_b-c.d == 1.0.post1+cpu", "a[x,y]==1!2rc1"])
def test_a_pinned_package_is_taken(tmp_path: Path, requirement: str) -> None:
    text = PACKAGE.replace("a==1", f'"{requirement}"')
    assert studied(tmp_path, text).model.package.requirement == requirement


def test_a_stored_study_with_a_package_that_is_not_pinned_can_be_read(tmp_path: Path) -> None:
    definition = dict(studied(tmp_path, PACKAGE).definition)
    loose = {**definition["model"]["package"], "requirement": "a>=1"}
    definition["model"] = {**definition["model"], "package": loose}
    assert read_definition(definition).model.package.requirement == "a>=1"


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ("", "name objectives without it: objectives: [p95_ms, utilization]"),
        ("objectives: [saturation_qps]\n", "drop that objective"),
        ("pick: max_throughput\n", "choose another pick"),
    ],
)
def test_a_burst_that_is_needed_and_off_is_refused_with_what_asks_for_it(
    tmp_path: Path, more: str, words: str
) -> None:
    off = PACKAGE.replace("target_qps: 60", "target_qps: 60, saturation_s: 0")
    assert words in refusal(tmp_path, off + more)
    assert studied(tmp_path, off + "objectives: [p95_ms]\n").workload.saturation_s == 0
