"""The GPU check's own reasoning: time, counters, rates, regret, words."""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Mapping
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import onnxruntime
import pytest

from autotune.adapters.triton.process import Command
from autotune.adapters.within import within
from autotune.core.errors import InputRefused, Interrupted
from autotune.core.measurement import Gauge, TelemetryWindow
from autotune.studyfile import study_from_options
from search_spaces.candidate import Candidate
from tests.gpu import conduct, places, publish, telemetry, truth
from tests.gpu.__main__ import main
from tests.gpu.context import Context
from tests.gpu.host import chosen_devices
from tests.gpu.models import Model, Source, native_model, onnx_model, torch_model
from tests.gpu.outputs import difference
from tests.gpu.plan import FULL, PARTS, RESERVE_S, TINY, Deadline, Options, limit_s
from tests.gpu.report import Report, Skipped, State, part_file, read_json, write_json
from tests.gpu.study import question, target_of, told
from tests.gpu.table import configuration, table
from tests.gpu.telemetry import Counter, Moved, Watch


def context(out: Path, *, device: str = "cpu", tiny: bool = True) -> Context:
    options = Options(out=out, device=device, tiny=tiny)
    return Context(
        options=options,
        scale=TINY if tiny else FULL,
        deadline=Deadline(60),
        report=Report(part_file(out, "study")),
    )


# --------------------------------------------------------------------------------------------- time
EIGHT = Options(out=Path("out"))


def test_each_part_gets_its_own_share_where_none_was_quick() -> None:
    left_s, taken = 480.0, []
    for place in range(len(PARTS)):
        taken.append(limit_s(place, left_s, EIGHT))
        left_s -= taken[-1]
    shares = np.array([part.share for part in PARTS])
    assert np.allclose(taken, shares * (480 - RESERVE_S) / 480)


def test_what_a_quick_part_leaves_goes_to_the_next() -> None:
    own_s = limit_s(0, 480.0, EIGHT)
    assert limit_s(1, 480.0, EIGHT) == pytest.approx(own_s + limit_s(1, 480.0 - own_s, EIGHT))


def test_a_part_gets_nothing_once_the_time_of_all_is_up() -> None:
    assert limit_s(5, RESERVE_S - 1, EIGHT) == 0.0


def test_a_deadline_counts_down_and_stays_at_nothing() -> None:
    now = [100.0]
    deadline = Deadline(5, clock=lambda: now[0])
    now[0] += 2
    assert deadline.left_s == 3
    now[0] += 9
    assert deadline.left_s == 0


# ------------------------------------------------------------------------------------- (a) counters
POWER = {
    "before": {"power_w": 70.0},
    "matmul": {"power_w": 600.0, "sources": {"power_w": "nvml"}},
    "idle": {"power_w": 120.0},
}


@pytest.mark.parametrize(
    ("counter", "verdict"),
    [
        (Counter(name="power_w", load="matmul", least=10), Moved.YES),
        (Counter(name="power_w", load="matmul", least=1000), Moved.NO),
        (Counter(name="power_w", load="idle", least=-10, since="matmul"), Moved.YES),
        (Counter(name="power_w", load="matmul", least=-10), Moved.NO),
        (Counter(name="sm_active", load="matmul", least=0.1), Moved.UNKNOWN),
        (Counter(name="power_w", load="copy", least=10), Moved.UNKNOWN),
    ],
)
def test_a_counter_moved_if_it_changed_enough_in_its_direction(
    counter: Counter, verdict: Moved
) -> None:
    assert telemetry.moved(counter, POWER)["moved"] == verdict


class SpokenTo:
    """A process that loads, or one that cannot."""

    pid = 17

    def __init__(self, *said: dict[str, Any] | None) -> None:
        self.said = list(said)
        self.told: list[dict[str, Any]] = []

    def tell(self, **command: Any) -> None:
        self.told.append(command)

    def hear(self) -> dict[str, Any] | None:
        return self.said.pop(0)


class Seen:
    def start(self, pids: object, endpoint: object) -> None:
        self.pids = pids

    def stop(self) -> TelemetryWindow:
        return TelemetryWindow(
            utilization=0.9,
            source="nvml",
            gauges={"sm_active": Gauge(value=0.8, source="gpm")},
            notes={"nvml_power_w": "NVML: no permission"},
        )


def test_a_load_is_watched_while_it_runs() -> None:
    loads = SpokenTo({"event": "began"}, {"event": "done", "rate": 3.0, "unit": "GB/s"})
    seen = Seen()
    found = Watch(loads, seen, 1.0, sleep=lambda _: None).under("copy")  # type: ignore[arg-type]
    assert loads.told[0]["load"] == "copy"
    assert seen.pids == [17]
    assert found["sm_active"] == 0.8
    assert found["sources"] == {"sm_active": "gpm", "utilization": "nvml", "memory_mb": None}
    assert found["unknown"] == {"nvml_power_w": "NVML: no permission"}
    assert (found["rate"], found["unit"]) == (3.0, "GB/s")


@pytest.mark.parametrize("said", [{"event": "refused", "why": "out of memory"}, None])
def test_a_load_that_cannot_be_run_says_why(said: dict[str, Any] | None) -> None:
    watch = Watch(SpokenTo(said), Seen(), 1.0, sleep=lambda _: None)  # type: ignore[arg-type]
    assert watch.under("hold")["refused"] in ("out of memory", "the process that loads has ended")


# -------------------------------------------------------------------------------------- (b) outputs
def test_equal_answers_differ_by_nothing() -> None:
    rows = np.random.default_rng(0).normal(size=(3, 5)).astype(np.float32)
    found = difference(rows, rows)
    assert (found["absolute"], found["relative"]) == (0, 0)
    assert found["cosine"] == pytest.approx(1)


def test_a_difference_is_told_in_shares_of_the_largest_answer() -> None:
    direct = np.array([[4.0, 0.0]], dtype=np.float32)
    found = difference(direct + np.float32(0.2), direct)
    assert found["absolute"] == pytest.approx(0.2, rel=1e-3)
    assert found["relative"] == pytest.approx(0.05, rel=1e-3)


# -------------------------------------------------------------------------------- the served models
def test_the_onnx_file_takes_images_of_bytes_in_any_batch(tmp_path: Path) -> None:
    model = onnx_model(context(tmp_path))
    file = model.repository / model.name / "1" / "model.onnx"
    session = onnxruntime.InferenceSession(str(file))
    images = np.random.default_rng(0).integers(0, 256, (3, 3, 32, 32)).astype(np.uint8)
    (scores,) = session.run(None, {"image": images})
    assert scores.shape == (3, 10)
    assert np.abs(scores[0] - scores[1]).max() > 0


def test_a_precision_is_a_file_of_the_runner_and_for_tf32_a_switch(tmp_path: Path) -> None:
    model = torch_model(context(tmp_path, device="cuda"), ("fp32", "tf32", "fp16"), 2.0)
    assert model.served("fp16", 2).to_json() == {
        "instances": 2,
        "parameters.model_file": "fp16.pt",
    }
    assert model.served("tf32").get("parameters.tf32") == "true"
    assert model.fastest == "fp16"
    assert "KIND_GPU" in (model.repository / model.name / "config.pbtxt").read_text()


def test_the_native_repository_is_for_tritons_pytorch_backend(tmp_path: Path) -> None:
    asked = context(tmp_path)
    torch_model(asked, ("fp32",), 2.0)
    (tmp_path / "models" / "vision" / "1" / "model.pt").write_bytes(b"weights")
    model = native_model(asked, 2.0)
    folder = model.repository / model.name
    assert "pytorch_libtorch" in (folder / "config.pbtxt").read_text()
    assert (folder / "1" / "model.pt").read_bytes() == b"weights"
    assert model.served("fp32").to_json() == {"instances": 1}


def a_model(folder: Path, *precisions: str) -> Model:
    return Model(
        repository=folder,
        source=Source.PYTORCH,
        largest_batch=8,
        precisions=precisions or ("fp32",),
    )


# -------------------------------------------------------------------------------------- (d) a study
def curve(precision: str, instances: int, **images_s: float) -> dict[str, Any]:
    points = [
        {"batch": int(name[1:]), "ms": 1000 * int(name[1:]) * instances / rate, "images_s": rate}
        for name, rate in images_s.items()
    ]
    return {"precision": precision, "instances": instances, "points": points}


def test_the_rate_is_a_share_of_the_most_and_the_limit_some_good_batches() -> None:
    curves = [
        curve("fp16", 1, b1=200.0, b8=900.0, b32=1000.0),
        curve("fp16", 2, b32=1200.0),
        curve("fp32", 1, b32=400.0),
    ]
    found = target_of(curves, FULL)
    assert found.offered_qps == pytest.approx(0.65 * 1200)
    assert found.p95_ms == pytest.approx(3 * 8000 / 900 + 5, rel=0.01)


def test_no_more_is_asked_of_the_load_generator_than_it_can_send() -> None:
    found = target_of([curve("fp16", 1, b1=9000.0, b64=90000.0)], FULL)
    assert found.offered_qps == FULL.most_qps
    assert found.p95_ms == pytest.approx(3 * 64000 / 90000 + 5, rel=0.01)


def test_without_a_service_time_there_is_no_rate_to_ask_for() -> None:
    with pytest.raises(Skipped, match=r"part \(c\)"):
        target_of([{"precision": "fp32", "instances": 1, "points": []}], FULL)


@pytest.mark.parametrize("precisions", [("fp32",), ("fp32", "tf32", "fp16", "bf16")])
@pytest.mark.parametrize(("tiny", "rate"), [(True, 300.0), (False, 4000.0), (False, 60.0)])
def test_the_study_file_is_one_that_the_product_takes(
    tmp_path: Path, precisions: tuple[str, ...], tiny: bool, rate: float
) -> None:
    asked = context(tmp_path, tiny=tiny)
    target = target_of([curve("fp32", 1, b1=rate / 4, b8=rate)], asked.scale)
    model = a_model(tmp_path, *precisions)
    study = study_from_options(question(asked, model, target, minutes=2.0))
    assert study.workload.offered_qps == pytest.approx(target.offered_qps)
    settings = {candidate.get("parameters.model_file") for candidate in study.space.candidates()}
    assert len(settings) == len(precisions)
    for candidate in study.space.candidates():
        told = candidate.get("parameters.model_file") == "tf32.pt"
        assert ("parameters.tf32" in candidate) == told


def answer() -> dict[str, Any]:
    """As `autotune tune --json` prints it, as far as it is read."""
    metrics = {"p95_ms": 12.0, "saturation_qps": 300.0}
    measured = {"purpose": "confirm", "valid": True, "verdict": "meets", "metrics": metrics}
    return {
        "study": {"reason": ""},
        "trials": [
            {
                "number": number,
                "candidate": {"instances": 1, "max_batch_size": size},
                "state": "ok",
                "reason": "",
                "measurements": [measured] if number else [],
            }
            for number, size in enumerate((1, 8))
        ],
        "decision": {
            "pick": 1,
            "nearest_miss": None,
            "ties": [],
            "reasons": ["batch 8 is picked"],
            "judged": [
                {"trial": 1, "outcome": "meets", "metrics": metrics, "intervals": {}},
            ],
        },
        "wall_s": 50.0,
        "load_s": 20.0,
        "stopped_because": "the budget is used up",
        "warnings": [],
    }


def test_of_an_answer_the_pick_its_trials_and_its_confirmation_are_kept() -> None:
    found = told(answer())
    assert found["meets"]
    assert found["chosen"]["candidate"]["max_batch_size"] == 8
    assert found["chosen"]["saturation_qps"] == 300.0
    assert found["confirmed"] == {"verdict": "meets", "p95_ms": 12.0}
    assert found["trials"][0]["outcome"] is None


def test_where_nothing_meets_the_nearest_miss_stands_for_the_pick() -> None:
    document = answer()
    document["decision"] |= {"pick": None, "nearest_miss": 0}
    found = told(document)
    assert not found["meets"]
    assert found["chosen"]["number"] == 0


# ------------------------------------------------------------------------------------ (e) the truth
def candidate(size: int, instances: int = 1) -> Candidate:
    delay = {} if size == 1 else {"queue_delay_us": 0}
    return Candidate({"instances": instances, "max_batch_size": size, **delay})


def row(size: int, saturation: float, outcome: str = "meets", half: float = 1.0) -> dict[str, Any]:
    return {
        "candidate": candidate(size).to_json(),
        "outcome": outcome,
        "saturation_qps": saturation,
        "saturation_interval": [saturation - half, saturation + half],
    }


def test_the_sub_space_begins_with_the_pick_and_holds_each_candidate_once() -> None:
    pick = candidate(8, 2)
    found = truth.sub_space(pick, FULL)
    assert found[0] == pick
    assert len(found) == len(set(found)) == 6
    assert {each["instances"] for each in found} == {2, 4}
    assert all(("queue_delay_us" in each) == (each["max_batch_size"] != 1) for each in found)


def test_a_pick_with_the_most_instances_is_held_against_fewer() -> None:
    found = truth.sub_space(candidate(8, 4), FULL)
    assert {each["instances"] for each in found} == {4, 2}


def test_regret_is_what_the_pick_lost_of_the_best_that_does_not_miss_the_sla() -> None:
    rows = [row(8, 90.0), row(32, 100.0), row(64, 150.0, "misses")]
    found = truth.regret(rows, candidate(8))
    assert found["regret"] == pytest.approx(0.1)
    assert found["best"] == candidate(32).to_json()
    assert not found["within_noise"]


def test_the_best_has_no_regret_and_overlapping_intervals_are_noise() -> None:
    rows = [row(8, 99.0, half=3.0), row(32, 100.0, half=3.0)]
    assert truth.regret(rows, candidate(32))["regret"] == 0
    assert truth.regret(rows, candidate(8))["within_noise"]


def test_what_is_undecided_may_be_the_best_too() -> None:
    rows = [row(8, 90.0, "undecided"), row(32, 100.0, "undecided")]
    assert truth.regret(rows, candidate(8))["regret"] == pytest.approx(0.1)


def test_the_regret_of_a_pick_that_misses_the_sla_here_is_unknown() -> None:
    rows = [row(8, 90.0, "misses"), row(32, 100.0)]
    found = truth.regret(rows, candidate(8))
    assert found["regret"] is None
    assert found["best"] == candidate(32).to_json()


# --------------------------------------------------------------------------------- how a part ends
class Hanging:
    """A part that wrote something down and does not end; a signal comes while it is ended."""

    def __init__(self, command: Command, *, log: Path, grace_s: float) -> None:
        Report(log.with_suffix(".json")).keep(known=1)

    def running(self) -> bool:
        return True

    def close(self) -> None:
        raise Interrupted("stopped by SIGTERM")


def test_a_signal_while_a_part_is_ended_does_not_lose_what_it_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conduct, "ChildProcess", Hanging)
    monkeypatch.setattr(conduct, "_wait", lambda *_: False)
    options = Options(out=tmp_path, minutes=2, device="cpu", tiny=True)
    assert conduct.Conductor(options=options, say=lambda _: None).run() == 130
    first = read_json(tmp_path / "results.json")["parts"]["telemetry"]
    assert first["figures"]["known"] == 1
    assert first["state"] == "timed out"


def test_the_minutes_begin_before_the_server_is_made_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where that took all of them, no part is begun."""
    monkeypatch.setattr(conduct, "ChildProcess", Hanging)
    options = Options(out=tmp_path, minutes=8, device="cpu", tiny=True)
    conductor = conduct.Conductor(options=options, say=lambda _: None)
    assert conductor.run(Deadline(0)) == 1
    states = {part["state"] for part in read_json(tmp_path / "results.json")["parts"].values()}
    assert states == {"not reached"}


def test_a_driver_that_does_not_answer_ends_the_check_before_it_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked_again = Event()
    monkeypatch.setattr("tests.gpu.__main__.DRIVER_S", 0.1)
    monkeypatch.setattr("tests.gpu.__main__.gpus_of", lambda _: asked_again.wait())
    assert main(["--out", str(tmp_path / "out")]) == 2
    asked_again.set()
    assert "driver does not answer" in capsys.readouterr().err


def test_what_asks_in_time_has_its_answer_or_its_error() -> None:
    def refused() -> int:
        raise OSError("no driver")

    assert within(10, lambda: 3) == 3
    with pytest.raises(OSError, match="no driver"):
        within(10, refused)


@pytest.mark.parametrize(
    ("visible", "chosen"), [(None, ("0",)), ("", ()), ("1", ()), ("GPU-b", ())]
)
def test_the_check_chooses_a_gpu_where_nobody_has_or_has_hidden_them(
    monkeypatch: pytest.MonkeyPatch, visible: str | None, chosen: tuple[str, ...]
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr("tests.gpu.host.devices.names", lambda: {"0": "0", "GPU-a": "0"})
    assert chosen_devices() == chosen


@pytest.mark.parametrize("minutes", ["0.4", "-1", "nan", "inf"])
def test_minutes_that_are_no_limit_are_refused(tmp_path: Path, minutes: str) -> None:
    assert main(["--out", str(tmp_path / "out"), f"--minutes={minutes}", "--device", "cpu"]) == 2
    assert not (tmp_path / "out").exists()


# ------------------------------------------------------------------------------------- what is told
def results(**figures: Mapping[str, Any]) -> dict[str, Any]:
    """A check whose parts found these figures; the others were skipped."""
    return {
        "date": "2026-11-30",
        "device": "cuda",
        "tiny": False,
        "minutes": 8.0,
        "seconds": 470.0,
        "ended": "complete",
        "gpu": {"name": "NVIDIA H200", "driver": "570.1", "compute_capability": "9.0"},
        "machine": {"processor": "a CPU", "cores": 16, "memory_mb": 131072, "system": "Linux 6"},
        "versions": {"torch": "2.9"},
        "parts": {
            part.name: {
                "title": part.title,
                "state": State.OK if part.name in figures else State.SKIPPED,
                "reason": "" if part.name in figures else "no PyTorch\nhere",
                "figures": dict(figures.get(part.name, {})),
            }
            for part in PARTS
        },
    }


def use_row(name: str, load: str, utilization: float) -> dict[str, Any]:
    return {
        "configuration": name,
        "candidate": {"instances": 1},
        "load": load,
        "achieved_qps": 100.0,
        "utilization": utilization,
        "source": "nvml",
    }


WHOLE = results(
    telemetry={
        "doctor": [{"name": "GPU", "state": "ok", "detail": "one | of them"}],
        "loads": {"copy": {"refused": "out of memory"}, "matmul": {"unknown": {"gpm": "too old"}}},
        "counters": [telemetry.moved(Counter(name="power_w", load="matmul", least=10), POWER)],
    },
    outputs={
        "direct": {"fp16": {"ms": {"1": 2.5}}},
        "precisions": {
            "fp16": {
                "right": True,
                "against_torch": {"absolute": 0.01, "relative": 0.002, "cosine": 0.99999},
                "ran_on": "GPU 0",
            },
            "bf16": {"served": False, "reason": "no such kernel"},
        },
    },
    curves={
        "model": "pytorch",
        "curves": [
            {
                "precision": "fp16",
                "instances": 1,
                "points": [{"batch": 8, "ms": 4.25, "images_s": 1882.0, "at_least": True}],
            }
        ],
    },
    study={
        "target": {"target_qps": 100.0, "offered_qps": 120.0, "p95_ms": 30.0, "because": "so"},
        **told(answer()),
    },
    truth={
        "candidates": [row(8, 90.0), row(32, 100.0)],
        **truth.regret([row(8, 90.0), row(32, 100.0)], candidate(8)),
    },
    use={
        "offered_qps": 120.0,
        "rows": [use_row("before", "at saturation", 0.2), use_row("after", "at saturation", 0.8)],
    },
)


def test_the_table_tells_every_part() -> None:
    text = table(WHOLE)
    for words in (
        "GPU check, 2026-11-30: NVIDIA H200",
        "| power_w | matmul | 70 | 600 | yes | nvml |",
        "The load copy could not be run: out of memory",
        "gpm: too old",
        "one / of them",
        "| fp16 | yes | 0.01 | 0.002 | 0.999990 |",
        "1: 2.50",
        "no such kernel",
        "4.25 · ≥ 1882",
        "p95 within 30 ms",
        "**pick**",
        "Regret: 10.0%",
        "before: fp32, batch 1, 1 instance",
        "18% → 72%",
    ):
        assert words in text, words


def test_the_table_of_a_check_that_has_just_begun_tells_the_state_of_its_parts() -> None:
    text = table(results() | {"seconds": None})
    assert text.count("| skipped |") == len(PARTS)
    assert "no PyTorch here" in text


def test_figures_that_cannot_be_shown_do_not_end_the_check() -> None:
    text = table(results(study={"target": {}}, use=WHOLE["parts"]["use"]["figures"]))
    assert "Not shown: KeyError" in text
    assert "18% → 72%" in text


def test_a_configuration_is_told_in_a_few_words() -> None:
    values = {"parameters.model_file": "fp16.pt", **candidate(8, 2).to_json()}
    assert configuration(values) == "fp16, batch 8, 0 µs, 2 instances"


def test_published_results_are_in_the_index_each_under_a_name_of_its_own(tmp_path: Path) -> None:
    out, docs = tmp_path / "out", tmp_path / "docs"
    write_json(out / "results.json", WHOLE)
    first, second = publish.publish(out, docs), publish.publish(out, docs)
    assert [first.name, second.name] == [
        "2026-11-30-nvidia-h200.md",
        "2026-11-30-nvidia-h200-2.md",
    ]
    assert first.read_text() == table(read_json(out / "results.json"))
    index = (docs / "README.md").read_text()
    assert "| [2026-11-30](2026-11-30-nvidia-h200.md) | NVIDIA H200 | 570.1 |" in index
    assert "20% → 80%" in index
    assert "not yet run on hardware" not in index


SOMEONES = {
    "{out}/work/outputs/server.log": "OUT/work/outputs/server.log",
    "ready in {cache}/server/py311": "ready in CACHE/server/py311",
    "{home}/.venv/bin/python ended": "~/.venv/bin/python ended",
    "{home}mate/x is another's": "…/x is another's",
    "asked gpu-17.example.org, which is gpu-17": "asked HOST, which is HOST",
    "not gpu-171": "not gpu-171",
    "/mnt/ann/x of another host, '/srv/ann/y'": "…/x of another host, '…/y'",
    "24106 MB free in /dev/shm, /usr/local/bin/docker, 60 images/s": None,
}
"""What texts of a check may hold, and what is published of them: all of it, where it is None."""


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mapping[str, Path]:
    """A host whose name is known, with a home and a cache of its own."""
    folders = {name: tmp_path / "ann" / name for name in ("home", "cache", "out")}
    monkeypatch.setattr(socket, "gethostname", lambda: "gpu-17.example.org")
    monkeypatch.setenv("HOME", str(folders["home"]))
    monkeypatch.setenv("AUTOTUNE_CACHE", str(folders["cache"]))
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path / "tmp"))
    return folders


@pytest.mark.parametrize("text", SOMEONES)
def test_neither_the_host_nor_its_folders_are_published(
    text: str, host: Mapping[str, Path]
) -> None:
    whole = results(curves={"notes": [text.format(**host)], "model": {"reason": text}})
    found = places.shareable(whole, places.words(host["out"]))
    expected = SOMEONES[text] or text
    assert found["parts"]["curves"]["figures"]["notes"] == [expected]


def test_what_is_published_names_no_host_in_any_of_its_files(
    tmp_path: Path, host: Mapping[str, Path]
) -> None:
    told = {"doctor": [{"name": "x", "state": "ok", "detail": f"on gpu-17: {host['cache']}/a"}]}
    whole = results(telemetry=told) | {"ended": f"stopped by {host['home']}"}
    write_json(host["out"] / "results.json", whole)
    publish.publish(host["out"], tmp_path / "docs")
    for file in (tmp_path / "docs").iterdir():
        assert "ann" not in file.read_text()
        assert "gpu-17" not in file.read_text()


def test_a_user_without_a_home_has_a_check_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nowhere() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", nowhere)
    assert places.words(tmp_path)[str(tmp_path)] == "OUT"


def test_what_is_measured_is_published_as_it_is(host: Mapping[str, Path]) -> None:
    assert places.shareable(WHOLE, places.words(host["out"])) == WHOLE


def test_an_index_without_a_gpu_says_so(tmp_path: Path) -> None:
    write_json(tmp_path / "2026-11-30-cpu.json", WHOLE | {"device": "cpu"})
    assert "not yet run on hardware" in publish.index(tmp_path)


def test_a_folder_without_results_is_not_published(tmp_path: Path) -> None:
    with pytest.raises(InputRefused, match="no results"):
        publish.publish(tmp_path, tmp_path / "docs")
