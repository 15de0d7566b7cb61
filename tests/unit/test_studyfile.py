"""Study files: what is read, and how what is wrong is refused."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from textwrap import dedent

import pytest

from autotune.core.errors import InputRefused
from autotune.core.study import Finals, Launch, PickRule, Robust, SearchKind, Study, Trust
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


def studied(tmp_path: Path, text: str) -> Study:
    path = tmp_path / "study.yaml"
    path.write_text(dedent(text))
    return read_study_file(path)


def refusal(tmp_path: Path, text: str) -> str:
    with pytest.raises(InputRefused) as refused:
        studied(tmp_path, text)
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
        ("arrival: poisson", "measure_s: 0.5", 6, "greater than or equal to 1"),
        ("60", "4", 4, "p95_ms needs 200 requests in a window; target_qps × headroom gives 173"),
        ("60", "4", 4, "set workload.measure_max_s to 46 or more"),
        ("60", "4\n  measure_s: 1\n  measure_max_s: 3", 7, "set workload.measure_max_s to 46"),
        ("60", "0.001", 4, "takes longer than an hour"),
        ("60", "60\n  measure_max_s: 11", 6, "must be at least measure_s, 12 (got 11.0)"),
        ("60", "60\n  measure_max_s: 3601", 6, "less than or equal to 3600"),
        ("60", "60\n  measure_max_s: 36s", 6, "plain number, in seconds"),
        ("60", "60\n  measure_maxs: 36", 6, "did you mean 'measure_max_s'?"),
        ("60", "60\n  warmup_s: 0.01", 6, "the longest latency that is allowed, 80 ms"),
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
        ("robust: {qps: twenty}", "study.yaml:10: robust.qps: must be a share, such as 20% or 0.2"),
        (
            "robust: {qps: 20}",
            "robust.qps: must be less than 1 (got 20)\n  give a share: 20% or 0.2",
        ),
        ("robust: {qps: 100%}", "robust.qps: must be less than 1 (got '100%')"),
        ("robust: {qps: -20%}", "must be a share"),
        ("robust: {qps: true}", "robust.qps: must be a number"),
        ("robust: {cv: 0}", "robust.cv: must be greater than or equal to 0.05"),
        ("robust: {cv: [1, 30]}", "robust.cv.1: must be less than or equal to 20"),
        ("robust: {cv: [2, 2]}", "robust.cv: names a value twice"),
        ("robust: {qps: 0}", "robust: names a share of the rate, values of cv, or both"),
        ("robust: {rate: 20%}", "robust.rate: unknown key\n  valid keys here: qps, cv"),
        ("robust: 20%", "robust: must be a mapping of keys"),
        ("robust: {qps: 95%}", "target_qps × headroom × 0.05 (robust.qps) gives 130 in 36 s"),
        ("finals: {candidates: 1}", "finals.candidates: must be 0, or 2 to 8"),
        ("finals: {candidates: 9}", "less than or equal to 8"),
        ("finals: {rounds: 0}", "finals.rounds: must be greater than or equal to 1"),
        ("finals: {round: 2}", "did you mean 'rounds'?"),
        ("finals: {capacity: 21}", "less than or equal to 20"),
        ("finals: {capacity: 2.5}", "must be a whole number"),
        ("finals: {measure_s: 1}", "finals.measure_s: p95_ms needs 200 requests"),
        ("finals: {measure_s: 1}", "set finals.measure_s to 4 or more"),
        ("finals: true", "finals: must be a mapping of keys"),
        ("trust: {foreign_cpu: 0}", "trust.foreign_cpu: must be greater than 0"),
        ("trust: {foreign_cpu: 10}", "give a share: 10% or 0.1"),
        ("trust: {send_lags: 0.1}", "did you mean 'send_lag'?"),
        ("trust: {generator_cpu: lots}", "trust.generator_cpu: must be a share"),
        ("trust: none", "trust: must be a mapping of keys"),
    ],
)
def test_contradictions_are_refused(tmp_path: Path, extra: str, words: str) -> None:
    assert words in refusal(tmp_path, GOOD + extra + "\n")


@pytest.mark.parametrize("share", ["±20%", "'±20 %'", "20%", "+-20%", "+/-20%", "0.2"])
def test_a_robust_share_of_the_rate_may_be_written_in_several_ways(
    tmp_path: Path, share: str
) -> None:
    study = studied(tmp_path, GOOD + f"robust: {{qps: {share}, cv: [1, 2]}}\n")
    assert study.robust == Robust(qps=0.2, cv=(1.0, 2.0))


def test_a_robust_cv_may_be_a_number_and_leaves_the_rate_at_its_default(tmp_path: Path) -> None:
    assert studied(tmp_path, GOOD + "robust: {cv: 2}\n").robust == Robust(qps=0.2, cv=(2.0,))


@pytest.mark.parametrize("kind", ["constant", "{kind: trace, trace: study.yaml}"])
def test_a_robust_cv_needs_arrivals_that_have_one(tmp_path: Path, kind: str) -> None:
    text = GOOD.replace("arrival: poisson", f"arrival: {kind}")
    assert "needs arrivals that are poisson or gamma" in refusal(tmp_path, text + "robust: {cv: 2}")
    assert studied(tmp_path, text + "robust: {qps: 10%}\n").robust == Robust(qps=0.1)


@pytest.mark.parametrize("extra", ["", "robust:\n", "robust: none\n", "robust: false\n"])
def test_without_robust_no_neighbourhood_is_probed(tmp_path: Path, extra: str) -> None:
    assert studied(tmp_path, GOOD + extra).robust is None


@pytest.mark.parametrize("words", ["none", "null", "false", "{candidates: 0}"])
def test_finals_may_be_left_out(tmp_path: Path, words: str) -> None:
    assert studied(tmp_path, GOOD + f"finals: {words}\n").finals.candidates == 0


def test_finals_and_trust_take_what_the_file_says_and_their_defaults(tmp_path: Path) -> None:
    study = studied(
        tmp_path, GOOD + "finals: {rounds: 3, measure_s: 20}\ntrust: {foreign_cpu: 25%}\n"
    )
    assert study.finals == Finals(rounds=3, measure_s=20.0)
    assert study.trust == Trust(foreign_cpu=0.25)


def test_a_window_may_be_three_times_measure_s_unless_the_file_says_how_long(
    tmp_path: Path,
) -> None:
    assert studied(tmp_path, GOOD).workload.longest_s == 36
    text = GOOD.replace("arrival: poisson", "measure_max_s: 20")
    assert studied(tmp_path, text).workload.longest_s == 20
    text = GOOD.replace("arrival: poisson", "measure_s: 3600\n  measure_max_s: null")
    assert studied(tmp_path, text + "budget: {minutes: 90}\n").workload.longest_s == 3600


def test_the_percentile_needs_its_requests_within_the_longest_window_only(tmp_path: Path) -> None:
    short = GOOD.replace("arrival: poisson", "measure_s: 1")
    assert studied(tmp_path, short).workload.measure_s == 1
    fixed = GOOD.replace("arrival: poisson", "measure_s: 1\n  measure_max_s: 1")
    assert "p95_ms needs 200 requests" in refusal(tmp_path, fixed)


def test_too_few_requests_are_named_once_at_the_slowest_rate(tmp_path: Path) -> None:
    text = refusal(tmp_path, GOOD.replace("60", "4") + "robust: {qps: 50%}\n")
    assert text.count("p95_ms needs 200 requests") == 1
    assert "target_qps × headroom × 0.5 (robust.qps) gives 86 in 36 s" in text
    assert "set workload.measure_max_s to 92 or more" in text


def test_a_budget_need_not_hold_the_longest_warm_up(tmp_path: Path) -> None:
    minutes = studied(tmp_path, GOOD + "budget: {minutes: 0.25}\n").budget.minutes
    assert minutes * 60 == 15
    assert "measure_s + saturation_s is 15 s" in refusal(tmp_path, GOOD + "budget: {minutes: 0.2}")


def test_a_budget_that_the_finals_alone_use_up_is_refused(tmp_path: Path) -> None:
    text = GOOD + "finals: {rounds: 50, measure_s: 60}\n"
    assert "is less than the finals alone take: 200 runs of 60 s" in refusal(tmp_path, text)


EVERY_KEY = (
    GOOD.replace("arrival: poisson", "warmup_s: 5\n  measure_max_s: 30")
    + """\
robust: {qps: 15%, cv: [0.5, 1, 3]}
finals: {candidates: 3, rounds: 2, measure_s: 15, capacity: 0}
trust: {send_lag: 0.2, generator_cpu: 80%, foreign_cpu: 1}
"""
)


def test_the_new_keys_are_stored_too(tmp_path: Path) -> None:
    study = studied(tmp_path, EVERY_KEY)
    again = read_definition(json.loads(json.dumps(study.definition)))
    assert again == study
    assert study.robust == Robust(qps=0.15, cv=(0.5, 1.0, 3.0))
    assert study.finals == Finals(candidates=3, rounds=2, measure_s=15.0, capacity=0)
    assert study.trust == Trust(send_lag=0.2, generator_cpu=0.8, foreign_cpu=1.0)


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("workload", "warmup_s", 0.0),
        ("workload", "target_qps", 1.0),
        ("workload", "saturation_s", 0.0),
        ("budget", "minutes", 0.01),
    ],
)
def test_a_stored_study_that_todays_advice_would_not_let_run_can_be_read(
    tmp_path: Path, section: str, key: str, value: float
) -> None:
    definition = copy.deepcopy(dict(studied(tmp_path, GOOD).definition))
    definition[section][key] = value
    assert getattr(getattr(read_definition(definition), section), key) == value
    with pytest.raises(InputRefused):
        study_from_options(definition)


def test_a_stored_definition_that_describes_no_study_is_refused(tmp_path: Path) -> None:
    definition = copy.deepcopy(dict(studied(tmp_path, GOOD).definition))
    del definition["model"]["onnx"]
    with pytest.raises(InputRefused, match=r"the stored study: model: give exactly one of"):
        read_definition(definition)


def test_a_study_from_before_there_were_finals_is_read_as_it_ran(tmp_path: Path) -> None:
    definition = copy.deepcopy(dict(studied(tmp_path, GOOD).definition))
    for key in ("finals", "trust"):
        del definition[key]
    definition["workload"] |= {"warmup_s": 2.0}
    study = read_definition(definition)
    assert (study.workload.warmup_s, study.workload.longest_s) == (2.0, 12.0)
    assert study.finals.candidates == 0
    assert study.definition == definition


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
