"""Study files: what is read, and how what is wrong is refused."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from autotune.core.errors import InputRefused
from autotune.core.study import Launch, PickRule, SearchKind
from autotune.core.workload import ArrivalKind, InputKind
from autotune.studyfile import read_definition, read_study_file, study_from_options

GOOD = """\
study: minilm
model:
  onnx: model.onnx
workload:
  target_qps: 60
  arrival: poisson
sla: {p95_ms: 80}
space:
  max_batch_size: [1, 4]
"""


def read(tmp_path: Path, text: str) -> object:
    path = tmp_path / "study.yaml"
    path.write_text(dedent(text))
    return read_study_file(path)


def refusal(tmp_path: Path, text: str) -> str:
    with pytest.raises(InputRefused) as refused:
        read(tmp_path, text)
    return str(refused.value)


def test_a_short_file_takes_the_documented_defaults(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(GOOD)
    study = read_study_file(tmp_path / "s.yaml")
    assert study.name == "minilm"
    assert study.model.name == "model"
    assert study.workload.headroom == 1.2
    assert study.workload.offered_qps == pytest.approx(72)
    assert study.sla.latency_ms == {95.0: 80}
    assert study.server.launch is Launch.EMBEDDED
    assert study.pick is PickRule.CHEAPEST
    assert study.search is SearchKind.OPTUNA
    assert [o.metric for o in study.objectives] == ["saturation_qps", "p95_ms", "utilization"]
    assert [o.maximize for o in study.objectives] == [True, False, True]


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(GOOD)
    assert read_study_file(tmp_path / "s.yaml").model.onnx == tmp_path / "model.onnx"


def test_the_stored_definition_means_the_same_study(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(GOOD)
    study = read_study_file(tmp_path / "s.yaml")
    again = read_definition(study.definition)
    assert again.digest == study.digest
    assert again == study


def test_a_stored_study_can_be_read_when_its_input_file_is_gone(tmp_path: Path) -> None:
    (tmp_path / "in.npz").write_bytes(b"")
    (tmp_path / "s.yaml").write_text(
        GOOD.replace("arrival: poisson", "arrival: poisson\n  inputs: in.npz")
    )
    study = read_study_file(tmp_path / "s.yaml")
    (tmp_path / "in.npz").unlink()
    assert read_definition(study.definition) == study
    with pytest.raises(InputRefused, match="input file does not exist"):
        read_study_file(tmp_path / "s.yaml")


def test_shorthands_of_arrival_and_inputs_are_understood(tmp_path: Path) -> None:
    (tmp_path / "in.npz").write_bytes(b"")
    (tmp_path / "s.yaml").write_text(
        GOOD.replace("arrival: poisson", "arrival: {kind: gamma, cv: 2.5}\n  inputs: in.npz")
    )
    work = read_study_file(tmp_path / "s.yaml").workload
    assert work.arrival.kind is ArrivalKind.GAMMA
    assert work.arrival.cv == 2.5
    assert work.inputs.kind is InputKind.NPZ
    assert work.inputs.path == tmp_path / "in.npz"


def test_an_objective_may_turn_its_direction_round(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(
        GOOD + "objectives: [{metric: utilization, direction: minimize}]\n"
    )
    (objective,) = read_study_file(tmp_path / "s.yaml").objectives
    assert objective.maximize is False


@pytest.mark.parametrize(
    ("old", "new", "line", "words"),
    [
        ("target_qps: 60", "target_qp: 60", 5, "did you mean 'target_qps'?"),
        ("target_qps: 60", "target_qps: '60'", 5, "plain number, in requests per second"),
        ("target_qps: 60", "target_qps: -3", 5, "greater than 0"),
        ("target_qps: 60", "target_qps: .inf", 5, "finite"),
        ("{p95_ms: 80}", "{p95_ms: 80ms}", 7, "plain number, in milliseconds"),
        ("{p95_ms: 80}", "{p97_ms: 80}", 7, "unknown key"),
        ("{p95_ms: 80}", "{error_rate: 0.01}", 7, "at least one latency percentile"),
        (
            "{p95_ms: 80}",
            "{p95_ms: 80, error_rate: 0.1}",
            7,
            "leaves less than min_achieved = 0.98",
        ),
        ("{p95_ms: 80}", "{p95_ms: 80, p99_ms: 20}", 7, "cannot have the higher limit"),
        ("{p95_ms: 80}", "{p95_ms: 20000}", 7, "must be below the time-out"),
        ("arrival: poisson", "arrival: bursty", 6, "'constant', 'poisson', 'gamma' or 'trace'"),
        ("arrival: poisson", "arrival: trace", 6, "a trace file go together"),
        ("arrival: poisson", "measure_s: 1", 4, "set workload.measure_s to"),
        ("  onnx: model.onnx", "  repository: a\n  onnx: b", 2, "exactly one of"),
        ("[1, 4]", "[1, -4]", 9, "max_batch_size"),
        ("max_batch_size", "max_batchsize", 9, "max_batch_size"),
    ],
)
def test_what_is_wrong_is_refused_with_its_line(
    tmp_path: Path, old: str, new: str, line: int, words: str
) -> None:
    assert old in GOOD
    text = refusal(tmp_path, GOOD.replace(old, new))
    assert f"study.yaml:{line}:" in text
    assert words in text


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ("objectives: [p95_ms, p95_ms]", "named twice"),
        ("objectives: [p95]", "did you mean 'p95_ms'?"),
        ("budget: {minutes: 0.1}", "less than one trial's load time"),
        ("server: {launch: docker}", "needs server.image"),
        ("server: {image: x}", "has no effect with launch 'embedded'"),
        ("server: {launch: remote, http: 'a:1', grpc: 'a:2'}", "has its own repository"),
        ("server: {ports: [8000, 8000, 8002]}", "three different ports"),
        ("pick: cheap", "'cheapest', 'fastest', 'max_throughput' or 'balanced'"),
        ("seed: -1", "greater than or equal to 0"),
        ("study: again", "study.yaml:10"),
    ],
)
def test_contradictions_are_refused(tmp_path: Path, extra: str, words: str) -> None:
    assert words in refusal(tmp_path, GOOD + extra + "\n")


def test_every_problem_is_named_at_once_in_the_order_of_the_file(tmp_path: Path) -> None:
    text = refusal(tmp_path, GOOD.replace("target_qps: 60", "headroom: 0") + "pick: x\n")
    assert text.index("workload.headroom") < text.index("pick")
    assert "workload.target_qps: is required" in text


def test_a_ready_made_space_is_named_and_stored_spelled_out(tmp_path: Path) -> None:
    head = GOOD[: GOOD.index("space:")]
    (tmp_path / "s.yaml").write_text(head + "space: quick\n")
    study = read_study_file(tmp_path / "s.yaml")
    assert study.space.name == "quick"
    assert study.definition["space"]["name"] == "quick"
    assert "max_batch_size" in study.definition["space"]


def test_an_unknown_space_lists_the_ready_made_ones(tmp_path: Path) -> None:
    head = GOOD[: GOOD.index("space:")]
    text = refusal(tmp_path, head + "space: quik\n")
    assert "batching, cpu, quick" in text
    assert "study.yaml:8" in text


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"study: [", "not valid YAML"),
        (b"", "mapping of keys"),
        (b"- a\n- b\n", "mapping of keys"),
        (b"\xff\xfe\x00", "not UTF-8"),
    ],
)
def test_what_is_no_study_file_is_refused(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "study.yaml"
    path.write_bytes(content)
    with pytest.raises(InputRefused, match=words):
        read_study_file(path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputRefused, match="no such file"):
        read_study_file(tmp_path / "study.yaml")


def test_the_command_line_is_held_to_the_same_rules() -> None:
    with pytest.raises(InputRefused, match=r"the command line: workload.target_qps"):
        study_from_options(
            {
                "study": "m",
                "model": {"onnx": "m.onnx"},
                "workload": {"target_qps": -1.0},
                "sla": {"p95_ms": 80.0},
                "space": "cpu",
            }
        )
