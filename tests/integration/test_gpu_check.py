"""The GPU check from end to end on this machine's processor, and how it ends when it must."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from autotune.adapters.triton.environment import ServerEnvironment
from autotune.adapters.triton.process import Command
from autotune.adapters.triton.server_python import this_python
from tests.gpu import conduct
from tests.gpu.__main__ import main
from tests.gpu.conduct import Conductor
from tests.gpu.host import Apart
from tests.gpu.plan import PARTS, ROOT, SMALL, Deadline, Options, Part
from tests.gpu.precisions import FILES
from tests.gpu.report import read_json
from tests.integration.studies import next_turn

pytestmark = [
    pytest.mark.server,
    pytest.mark.timeout(600),  # it may wait for its turn
]

MINUTES = 4.0
"""At most: what there is to do takes less than two where nobody else is at work."""
NEEDS_TORCH = ("telemetry", "outputs")


# ---------------------------------------------------------------------------------- the whole of it
@pytest.fixture(scope="module")
def done(
    tmp_path_factory: pytest.TempPathFactory, server_environment: ServerEnvironment
) -> tuple[Path, dict[str, Any], int]:
    """The tiny check, run once: its folder, its results, its exit status."""
    assert server_environment
    out = tmp_path_factory.mktemp("check") / "out"
    command = [sys.executable, "-m", "tests.gpu", "--out", str(out), "--device", "cpu", "--tiny"]
    with closing(next_turn()):
        ended = subprocess.run(
            [*command, "--minutes", f"{MINUTES}"], cwd=ROOT, check=False, timeout=MINUTES * 60 + 60
        )
    return out, read_json(out / "results.json"), ended.returncode


def figures(results: dict[str, Any], part: str) -> dict[str, Any]:
    entry = results["parts"][part]
    assert entry["state"] == "ok", entry
    found: dict[str, Any] = entry["figures"]
    return found


def hurried(found: dict[str, Any]) -> bool:
    """Whether this machine was too busy for all that a part had to do, which it then says."""
    return any("no time was left" in note for note in found.get("notes", ()))


def test_every_part_is_run_or_skipped_with_its_reason(
    done: tuple[Path, dict[str, Any], int],
) -> None:
    out, results, status = done
    logs = {part.name: log_of(out, part.name)[-2000:] for part in PARTS}
    assert status == 0, (results["parts"], logs)
    assert results["ended"] == "complete"
    for name, entry in results["parts"].items():
        assert entry["seconds"] <= entry["limit_s"]
        if entry["state"] == "skipped":
            assert name in NEEDS_TORCH
            assert "PyTorch" in entry["reason"]
        else:
            assert entry["state"] == "ok"


def log_of(out: Path, part: str) -> str:
    return (out / "parts" / f"{part}.log").read_text(errors="replace")


def test_the_doctor_is_asked_in_any_case(done: tuple[Path, dict[str, Any], int]) -> None:
    _, results, _ = done
    checks = results["parts"]["telemetry"]["figures"]["doctor"]
    assert {"name", "state", "detail"} == set(checks[0])


def test_the_curves_have_a_time_for_every_batch_size_and_number_of_instances(
    done: tuple[Path, dict[str, Any], int],
) -> None:
    found = figures(done[1], "curves")
    curves = found["curves"]
    assert hurried(found) or {curve["instances"] for curve in curves} == {1, 2}
    assert hurried(found) or [point["batch"] for point in curves[0]["points"]] == [1, 2, 4, 8]
    points = [point for curve in curves for point in curve["points"]]
    known = [point for point in points if point["ms"] is not None]
    assert len(known) >= len(points) / 2, "a batch of that size was executed in most windows"
    for point in points:
        seen = (point["ms"] or 0, point["executions"], point["images_s"])
        assert all(seen) if point in known else not any(seen)


def test_the_study_is_a_study_of_the_product(done: tuple[Path, dict[str, Any], int]) -> None:
    out, results, _ = done
    study = figures(results, "study")
    assert study["target"]["offered_qps"] > 0
    assert study["trials"][0]["number"] == 0
    assert study["trials"][0]["candidate"]["max_batch_size"] == 1
    assert len(study["trials"]) > 1 or "would not fit" in study["stopped_because"]
    assert study["chosen"]["number"] in {trial["number"] for trial in study["trials"]}
    assert read_json(out / "study.json")["study"]["name"] == "check"
    assert (out / "check.yaml").is_file()


def test_the_truth_is_measured_around_the_pick(done: tuple[Path, dict[str, Any], int]) -> None:
    truth = figures(done[1], "truth")
    chosen = figures(done[1], "study")["chosen"]["candidate"]
    assert truth["candidates"][0]["candidate"] == chosen
    assert hurried(truth) or len(truth["candidates"]) == truth["candidates_planned"] > 1
    assert all(each["candidate"] != chosen for each in truth["candidates"][1:])
    assert truth["regret"] is None or 0 <= truth["regret"] < 1


def test_utilization_is_measured_before_and_after_under_the_same_loads(
    done: tuple[Path, dict[str, Any], int],
) -> None:
    found = figures(done[1], "use")
    rows = found["rows"]
    names = ("before",) if hurried(found) else ("before", "after")
    assert [(row["configuration"], row["load"]) for row in rows] == [
        (name, load) for name in names for load in ("at saturation", "at the study's rate")
    ]
    for row in rows:
        assert 0 < row["utilization"] <= 1
        assert row["achieved_qps"] > 0


def test_the_table_is_for_people_and_names_no_host(
    done: tuple[Path, dict[str, Any], int],
) -> None:
    out, results, _ = done
    text = (out / "table.md").read_text()
    assert text.startswith(f"# GPU check, {results['date']}: CPU, no GPU used")
    for part in PARTS:
        assert f"({part.letter}) {part.title}" in text
    assert str(out) not in text


def test_nothing_is_left_running(done: tuple[Path, dict[str, Any], int]) -> None:
    out = str(done[0])
    lines = [
        " ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])
    ]
    assert not [line for line in lines if out in line]


def test_a_folder_with_results_is_refused(
    done: tuple[Path, dict[str, Any], int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--out", str(done[0]), "--tiny"]) == 2
    assert "give another --out" in capsys.readouterr().err


# -------------------------------------------------------------------------------- how parts can end
def scripted(**scripts: str) -> Any:
    """Commands of parts that do this, with ``report`` at hand, and are done."""

    def command(options: Options, part: Part, seconds: float) -> Sequence[str]:
        body = f"""
            import os, signal, sys, time
            from pathlib import Path
            from tests.gpu.report import Report, State, part_file
            report = Report(part_file(Path({str(options.out)!r}), {part.name!r}))
            report.keep(given_s={seconds})
        """
        what = scripts.get(part.name, "report.end(State.OK)")
        return [sys.executable, "-c", textwrap.dedent(body) + what]

    return command


def conducted(out: Path, minutes: float, command: Any) -> tuple[int, dict[str, Any]]:
    options = Options(out=out, minutes=minutes, device="cpu")
    said: list[str] = []
    status = Conductor(options=options, say=said.append, command=command).run()
    assert len(said) >= len(PARTS)
    return status, read_json(out / "results.json")


def test_what_a_part_found_before_it_failed_is_kept_and_the_others_are_run(tmp_path: Path) -> None:
    command = scripted(
        telemetry="print(report._path, file=sys.stderr); report.keep(known=1); os._exit(3)",
        outputs="report.keep(known=2); os.kill(os.getpid(), signal.SIGSEGV)",
        curves="report.end(State.SKIPPED, 'no such thing here')",
        study="report.end(State.FAILED, 'it broke')",
    )
    status, results = conducted(tmp_path, 1.5, command)
    parts = results["parts"]
    assert status == 1
    assert [parts[part.name]["state"] for part in PARTS] == [
        *("failed", "failed", "skipped", "failed", "ok", "ok")
    ]
    assert parts["telemetry"]["figures"]["known"] == 1
    assert "exit status 3: OUT/parts/telemetry.json" in parts["telemetry"]["reason"]
    assert parts["outputs"]["figures"]["known"] == 2
    assert "SIGSEGV" in parts["outputs"]["reason"]
    assert parts["curves"]["reason"] == "no such thing here"
    assert parts["truth"]["figures"]["given_s"] > parts["telemetry"]["figures"]["given_s"]


def test_a_part_that_takes_too_long_is_ended_and_the_time_of_all_is_kept(tmp_path: Path) -> None:
    command = scripted(
        telemetry="report.keep(known=1); time.sleep(600)",
        outputs="signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)",
    )
    began = time.monotonic()
    status, results = conducted(tmp_path, 0.9, command)
    assert status == 1
    assert time.monotonic() - began < 0.9 * 60
    parts = results["parts"]
    assert parts["telemetry"]["state"] == "timed out"
    assert parts["telemetry"]["figures"]["known"] == 1
    assert parts["outputs"]["state"] == "timed out"
    assert parts["use"]["state"] in ("ok", "not reached")


def test_an_interrupted_check_leaves_its_results(tmp_path: Path) -> None:
    script = f"""
        import sys
        from pathlib import Path
        from autotune.cli.signals import interruptible
        from tests.gpu.conduct import Conductor
        from tests.gpu.plan import Options
        from tests.integration.test_gpu_check import scripted
        command = scripted(outputs="report.keep(known=1); time.sleep(600)")
        options = Options(out=Path({str(tmp_path)!r}), minutes=2, device="cpu", tiny=True)
        with interruptible():
            sys.exit(Conductor(options=options, say=lambda _: None, command=command).run())
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)],
        cwd=ROOT,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
    )
    wait_for(tmp_path / "parts" / "outputs.json")
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 130
    results = read_json(tmp_path / "results.json")
    assert results["ended"] == "stopped by SIGINT"
    assert results["parts"]["telemetry"]["state"] == "ok"
    assert results["parts"]["outputs"]["state"] == "interrupted"
    assert results["parts"]["outputs"]["figures"]["known"] == 1
    assert results["parts"]["study"]["state"] == "not reached"
    assert "interrupted" in (tmp_path / "table.md").read_text()


def wait_for(file: Path) -> None:
    deadline = time.monotonic() + 30
    while not read_json(file).get("figures", {}).get("known"):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_server_that_is_not_ready_in_its_share_of_the_time_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a lock is held that it waits for."""
    (tmp_path / "python").write_text("#!/bin/sh\nexec sleep 600\n")
    (tmp_path / "python").chmod(0o755)
    said: list[str] = []
    monkeypatch.setattr(
        conduct,
        "Command",
        lambda **given: Command(**{**given, "argv": [str(tmp_path / "python")]}),
    )
    began = time.monotonic()
    options = Options(out=tmp_path / "out", minutes=8, device="cpu", tiny=True)
    conduct.prepare(options, Deadline(2), said.append)
    assert time.monotonic() - began < 20
    assert "not ready yet" in said[-1]


def test_a_process_that_has_ended_is_told_in_vain() -> None:
    order = {"device": "no such device"}
    with Apart(this_python(), "loads", order, subprocess.DEVNULL) as loads:  # type: ignore[arg-type]
        assert loads.hear() is None
        for _ in range(2):
            loads.tell(load="idle", seconds=1)
        assert loads.hear() is None


# ------------------------------------------------------------------------------------------- run.sh
@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """An unpacked bundle, as far as run.sh looks at it: its Python writes down what it is asked."""
    folder = tmp_path / "autotune-bundle"
    for name in ("site", "server", "tests/gpu"):
        (folder / name).mkdir(parents=True)
    for name in ("bundle.json", "start.py"):
        (folder / name).write_text("{}")
    python = folder / "python"
    python.write_text(
        "#!/bin/sh\n"
        '[ "$1" != -c ] || { echo "host: $HOST_LACKS"; exit "${HOST_LACKS:-0}"; } >&2\n'
        'while [ "$1" != --out ]; do shift; done\n'
        'echo "$PWD $AUTOTUNE_CACHE $*" > "$2/asked"\n'
        'case "$*" in *--wait*) trap "exit 130" TERM; while :; do sleep 0.05; done;; esac\n'
        "exit 7\n"
    )
    python.chmod(0o755)
    return folder


def run_sh(
    *arguments: object, folder: Path, err: int = subprocess.DEVNULL, **variables: str
) -> Any:
    unset = {key: value for key, value in os.environ.items() if key != "AUTOTUNE_CACHE"}
    return subprocess.Popen(
        ["bash", str(ROOT / "tests" / "gpu" / "run.sh"), *map(str, arguments)],
        text=True,
        stderr=err,
        cwd=folder,
        env={**unset, **variables},
    )


def test_a_bundles_own_python_runs_the_check_in_its_folder(bundle: Path, tmp_path: Path) -> None:
    out = tmp_path / "results"
    process = run_sh(bundle, out, "--tiny", folder=tmp_path)
    assert process.wait(30) == 7
    assert (out / "asked").read_text().split() == [
        *(str(bundle), f"{out}/work/cache", "--out", str(out), "--tiny")
    ]


def test_an_archive_is_unpacked_and_removed_again(bundle: Path, tmp_path: Path) -> None:
    archive = tmp_path / "bundle.tar.xz"
    subprocess.run(["tar", "-cJf", archive, "-C", tmp_path, bundle.name], check=True)
    out = tmp_path / "results"
    process = run_sh(archive, out, folder=tmp_path)
    assert process.wait(30) == 7
    unpacked = Path((out / "asked").read_text().split()[0])
    assert unpacked.name == bundle.name
    assert not unpacked.exists()


@pytest.mark.parametrize("lacks", ["nothing", "xz"])
def test_an_archive_is_unpacked_with_what_the_host_has(
    bundle: Path, tmp_path: Path, lacks: str
) -> None:
    archive = tmp_path / "bundle.tar.xz"
    subprocess.run(["tar", "-cJf", archive, "-C", tmp_path, bundle.name], check=True)
    tools = host_tools(tmp_path / "tools", without=lacks)
    process = run_sh(archive, tmp_path / "results", folder=tmp_path, PATH=str(tools))
    assert process.wait(30) == 7


def host_tools(folder: Path, without: str) -> Path:
    """A bare host's commands: what `run.sh` may count on, and a Python."""
    folder.mkdir()
    for name in ("bash", "sh", "tar", "xz", "mktemp", "mkdir", "rm", "dirname", "df", "sleep"):
        if name != without:
            (folder / name).symlink_to(shutil.which(name) or "/nowhere")
    (folder / "python3").symlink_to(sys.executable)
    return folder


def refused_by_run_sh(*arguments: object, folder: Path, **variables: str) -> str:
    """What it says, having made no OUT."""
    with run_sh(*arguments, folder=folder, err=subprocess.PIPE, **variables) as process:
        _, said = process.communicate(timeout=30)
    assert process.returncode == 2, said
    assert not (folder / "out").is_dir()
    return str(said)


@pytest.mark.parametrize("share", [0, 0.5])
def test_an_archive_that_is_garbage_or_cut_short_is_refused_with_what_to_look_at(
    bundle: Path, tmp_path: Path, share: float
) -> None:
    archive = tmp_path / "a.tar.xz"
    (bundle / "site" / "large").write_bytes(np.random.default_rng(0).bytes(100_000))
    subprocess.run(["tar", "-cJf", archive, "-C", tmp_path, bundle.name], check=True)
    whole = archive.read_bytes()
    archive.write_bytes(whole[: int(len(whole) * share)] or b"no archive")
    said = refused_by_run_sh(archive, tmp_path / "out", folder=tmp_path)
    assert "cannot be unpacked" in said
    assert "it takes 400 MB" in said
    assert "compare its sha256" in said


def test_an_archive_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "holiday").mkdir()
    archive = tmp_path / "a.tar.xz"
    subprocess.run(["tar", "-cJf", archive, "-C", tmp_path, "holiday"], check=True)
    said = refused_by_run_sh(archive, tmp_path / "out", folder=tmp_path)
    assert "is no bundle of autotune" in said


@pytest.mark.parametrize("gone", ["bundle.json", "python", "start.py", "site", "server"])
def test_a_damaged_bundle_is_refused_with_what_is_gone(
    bundle: Path, tmp_path: Path, gone: str
) -> None:
    (bundle / gone).rename(tmp_path / "taken")
    said = refused_by_run_sh(bundle, tmp_path / "out", folder=tmp_path)
    assert "is damaged: unpack it again" in said
    assert f"(gone: {gone})" in said


def test_a_bundle_that_was_packed_without_the_check_is_not_called_damaged(
    bundle: Path, tmp_path: Path
) -> None:
    (bundle / "tests" / "gpu").rmdir()
    assert "has no GPU check" in refused_by_run_sh(bundle, tmp_path / "out", folder=tmp_path)


def test_what_a_bundles_start_finds_lacking_is_a_refusal_before_out_is_made(
    bundle: Path, tmp_path: Path
) -> None:
    said = refused_by_run_sh(bundle, tmp_path / "out", folder=tmp_path, HOST_LACKS="1")
    assert "host: 1" in said


def test_out_that_is_a_file_is_refused_before_anything_is_unpacked(
    bundle: Path, tmp_path: Path
) -> None:
    (tmp_path / "out").write_text("mine")
    said = refused_by_run_sh(bundle, tmp_path / "out", folder=tmp_path)
    assert "is a file" in said
    assert "is a file" not in refused_by_run_sh(bundle, tmp_path / "out/sub", folder=tmp_path)
    assert (tmp_path / "out").read_text() == "mine"


def test_a_signal_is_passed_on_and_the_checks_own_status_told(bundle: Path, tmp_path: Path) -> None:
    out = tmp_path / "results"
    process = run_sh(bundle, out, "--wait", folder=tmp_path)
    deadline = time.monotonic() + 30
    while not (out / "asked").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 130


@pytest.mark.parametrize("arguments", [("nowhere",), ("nowhere", "out")])
def test_what_is_no_bundle_is_refused(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    with run_sh(*arguments, folder=tmp_path, err=subprocess.PIPE) as process:
        _, said = process.communicate(timeout=30)
    assert process.returncode == 2
    assert said


# ----------------------------------------------------------------- PyTorch's side, where it is here
def test_the_loads_run_on_a_processor_as_on_a_gpu(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed here")
    order = {"device": "cpu", "matrix": 64, "copy_mb": 8, "held_mb": 8}
    loads = ("idle", "matmul", "copy", "to_device", "to_host", "hold")
    asked = "".join(json.dumps({"load": load, "seconds": 0.1}) + "\n" for load in loads)
    ended = subprocess.run(
        [sys.executable, "-m", "tests.gpu.apart.loads", json.dumps(order)],
        input=asked,
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
        timeout=120,
    )
    said = [json.loads(line) for line in ended.stdout.splitlines()]
    assert [each["event"] for each in said] == ["ready", *["began", "done"] * len(loads)]
    assert said[4]["rate"] > 0


def test_the_network_answers_the_same_from_its_file_in_every_precision(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed here")
    shape = asdict(SMALL)
    pixels = np.random.default_rng(0).integers(0, 256, (4, 3, 32, 32)).astype(np.uint8)
    (tmp_path / "images").write_bytes(pixels.tobytes())
    order = {
        "device": "cpu",
        "shape": shape,
        "seed": 1,
        "images": str(tmp_path / "images"),
        "count": 4,
        "files": FILES,
        "models": str(tmp_path),
        "answers": str(tmp_path),
        "batches": [1],
    }
    ended = subprocess.run(
        [sys.executable, "-m", "tests.gpu.apart.direct", json.dumps(order)],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
        timeout=120,
    )
    said = {each["precision"]: each for each in map(json.loads, ended.stdout.splitlines())}
    assert "Tensor Cores" in said["tf32"]["refused"]
    exact = np.fromfile(tmp_path / said["fp32"]["answers"], dtype=np.float32).reshape(4, -1)
    assert exact.shape == (4, SMALL.classes)
    assert np.abs(exact[0] - exact[1]).max() > 0.5 * np.abs(exact).max()
    low = np.fromfile(tmp_path / said["bf16"]["answers"], dtype=np.float32).reshape(4, -1)
    assert 0 < np.abs(low - exact).max() < 0.1 * np.abs(exact).max()
    assert (tmp_path / FILES["bf16"]).stat().st_size < (tmp_path / FILES["fp32"]).stat().st_size
