from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from autotune.adapters.triton import export
from autotune.adapters.triton.config import parse, read
from autotune.adapters.triton.export import RepositoryExporter
from autotune.adapters.triton.repository import ServedModel, adapt_for_embedded, from_repository
from autotune.core.errors import CandidateFailed, ExportFailed, InputRefused
from autotune.ports import ExportFile
from search_spaces.candidate import Candidate
from tests import onnx_models

CONFIG = """
backend: "python" max_batch_size: 4
input [ { name: "x" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 3 ] label_filename: "labels.txt" } ]
model_warmup [ { name: "w" batch_size: 1
  inputs { key: "x" value: { data_type: TYPE_FP32 dims: [ 4 ] input_data_file: "x.bin" } } } ]
version_policy { all { } }
"""
PICK = Candidate({"max_batch_size": 8, "queue_delay_us": 100, "instances": 2})


@pytest.fixture
def model(tmp_path: Path) -> ServedModel:
    source = tmp_path / "models" / "m"
    for file in ("1/model.py", "3/model.py", "warmup/x.bin", "labels.txt", "1/__pycache__/a.pyc"):
        (source / file).parent.mkdir(parents=True, exist_ok=True)
        (source / file).write_text(file)
    (source / "config.pbtxt").write_text(CONFIG)
    return from_repository(tmp_path / "models", "m", tmp_path / "work")


def exporter(model: ServedModel, tmp_path: Path, served: list[Any] | None = None) -> Any:
    def factory(repository: Path, name: str) -> Any:
        if served is not None:
            served.append((repository, name))
        return "a server"

    return RepositoryExporter(model, factory, workdir=tmp_path / "strict")


def files_of(root: Path) -> dict[str, str]:
    return {
        file.relative_to(root).as_posix(): file.read_text()
        for file in root.rglob("*")
        if file.is_file()
    }


def test_an_export_holds_the_model_s_files_the_tuned_configuration_and_what_is_given(
    model: ServedModel, tmp_path: Path
):
    out = tmp_path / "below" / "out"
    report = ExportFile(name="report.html", text="<html>")
    path = exporter(model, tmp_path).write(PICK, out, "s", [report])
    assert path == out / "m" / "config.pbtxt"
    files = files_of(out)
    tuned = parse(files.pop("m/config.pbtxt"), "out")
    assert tuned == parse(
        CONFIG.replace("max_batch_size: 4", "max_batch_size: 8 name: 'm'")
        + "dynamic_batching { max_queue_delay_microseconds: 100 } instance_group { count: 2 }",
        "expected",
    )
    assert json.loads(files.pop("provenance.json")) == {"study": "s"}
    assert files == {
        "report.html": "<html>",
        "m/1/model.py": "1/model.py",
        "m/3/model.py": "3/model.py",
        "m/labels.txt": "labels.txt",
        "m/warmup/x.bin": "warmup/x.bin",
    }


def test_the_root_of_an_export_has_no_directory_but_the_model(model: ServedModel, tmp_path: Path):
    out = tmp_path / "out"
    one = exporter(model, tmp_path)
    one.write(PICK, out, "s", [ExportFile(name="report.html", text="text")])
    assert [entry.name for entry in out.iterdir() if entry.is_dir()] == ["m"]
    assert sorted(e.name for e in out.iterdir()) == ["m", "provenance.json", "report.html"]


def test_model_files_are_copies_that_stand_alone(model: ServedModel, tmp_path: Path):
    out = tmp_path / "out"
    target = tmp_path / "elsewhere.txt"
    target.write_text("linked")
    (model.source / "labels.txt").unlink()
    (model.source / "labels.txt").symlink_to(target)
    exporter(model, tmp_path).write(PICK, out, "s", [])
    copied = out / "m" / "labels.txt"
    assert not copied.is_symlink()
    assert copied.stat().st_nlink == 1
    assert copied.read_text() == "linked"


def test_the_user_s_own_configuration_is_not_touched(model: ServedModel, tmp_path: Path):
    exporter(model, tmp_path).write(PICK, tmp_path / "out", "s", [])
    assert (model.source / "config.pbtxt").read_text() == CONFIG


def test_a_second_export_of_the_study_replaces_the_first_whole(model: ServedModel, tmp_path: Path):
    out = tmp_path / "out"
    one = exporter(model, tmp_path)
    one.write(PICK, out, "s", [ExportFile(name="old.txt", text="")])
    one.write(PICK.replacing(instances=5), out, "s", [])
    assert not (out / "old.txt").exists()
    assert read(out / "m" / "config.pbtxt").instance_group[0].count == 5
    assert left_over(out) == []


def left_over(out: Path) -> list[str]:
    return [e.name for e in out.parent.iterdir() if e.name.startswith(f".{out.name}")]


def test_without_an_atomic_exchange_the_export_is_replaced_by_two_renames(
    model: ServedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(export, "exchange", lambda one, other: False)
    test_a_second_export_of_the_study_replaces_the_first_whole(model, tmp_path)


def test_an_export_that_was_set_aside_when_its_writer_was_killed_is_put_back(
    model: ServedModel, tmp_path: Path
):
    out = tmp_path / "out"
    one = exporter(model, tmp_path)
    one.write(PICK, out, "s", [])
    out.rename(tmp_path / ".out.old")
    one.preflight(out, "s")
    assert read(out / "m" / "config.pbtxt").max_batch_size == 8
    assert left_over(out) == []


def test_what_a_killed_writer_left_unfinished_is_removed(model: ServedModel, tmp_path: Path):
    finished = subprocess.Popen([sys.executable, "-c", ""])
    finished.wait()
    (tmp_path / f".out.new-{finished.pid}-ab" / "m").mkdir(parents=True)
    (tmp_path / f".out.new-{os.getpid()}-cd").mkdir()
    exporter(model, tmp_path).preflight(tmp_path / "out", "s")
    assert left_over(tmp_path / "out") == [f".out.new-{os.getpid()}-cd"]


WRITER = """
import sys
from pathlib import Path
from autotune.adapters.triton.export import RepositoryExporter
from autotune.adapters.triton.repository import from_repository
from autotune.ports import ExportFile
from search_spaces.candidate import Candidate
root = Path(sys.argv[1])
model = from_repository(root / "models", "m", root / "work")
one = RepositoryExporter(model, None, workdir=root / "strict")
for n in range(1, 100_000):
    files = [ExportFile(name="n.txt", text=str(n))]
    one.write(Candidate({"instances": n}), root / "out", "s", files)
    if n == 1:
        print("ready", flush=True)
"""


def test_a_writer_killed_at_any_moment_leaves_the_old_export_or_the_new_one(
    model: ServedModel, tmp_path: Path
):
    for attempt in range(4):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True
        )
        assert writer.stdout is not None
        with writer.stdout:
            assert writer.stdout.readline() == "ready\n"
            time.sleep(0.037 * attempt)
            os.kill(writer.pid, signal.SIGKILL)
            writer.wait()
        exporter(model, tmp_path).preflight(tmp_path / "out", "s")
        files = files_of(tmp_path / "out")
        instances = read(tmp_path / "out" / "m" / "config.pbtxt").instance_group[0].count
        assert files["n.txt"] == str(instances)
        assert len(files) == 7


def test_a_candidate_that_fails_leaves_no_trace(model: ServedModel, tmp_path: Path):
    with pytest.raises(CandidateFailed):
        exporter(model, tmp_path).write(
            Candidate({"preferred_batch_sizes": (99,)}), tmp_path / "out", "s", []
        )
    assert not (tmp_path / "out").exists()
    assert left_over(tmp_path / "out") == []


def test_a_write_that_fails_leaves_the_old_export(
    model: ServedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    out = tmp_path / "out"
    one = exporter(model, tmp_path)
    one.write(PICK, out, "s", [])
    before = files_of(out)

    def full(_: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(export, "sync_tree", full)
    with pytest.raises(ExportFailed, match="No space left"):
        one.write(PICK.replacing(instances=3), out, "s", [])
    assert files_of(out) == before
    assert left_over(out) == []


# -------------------------------------------------------------------------------------- preflight
def test_a_new_an_empty_and_the_study_s_own_directory_pass(model: ServedModel, tmp_path: Path):
    one = exporter(model, tmp_path)
    one.preflight(tmp_path / "a" / "b" / "out", "s")
    assert not (tmp_path / "a").exists()
    (tmp_path / "empty").mkdir()
    one.preflight(tmp_path / "empty", "s")
    one.write(PICK, tmp_path / "empty", "s", [])
    one.preflight(tmp_path / "empty", "s")


def test_another_study_s_export_is_never_overwritten(model: ServedModel, tmp_path: Path):
    one = exporter(model, tmp_path)
    one.write(PICK, tmp_path / "out", "first", [])
    for attempt in (one.preflight, lambda out, study: one.write(PICK, out, study, [])):
        with pytest.raises(InputRefused, match="another study, 'first'"):
            attempt(tmp_path / "out", "second")
    assert (tmp_path / "out" / "m").exists()


@pytest.mark.parametrize("provenance", [None, "not JSON", "[]", '{"study": 3}'])
def test_a_directory_that_is_no_export_is_refused(
    model: ServedModel, tmp_path: Path, provenance: str | None
):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "precious.txt").write_text("")
    if provenance is not None:
        (tmp_path / "out" / "provenance.json").write_text(provenance)
    with pytest.raises(InputRefused, match="not empty"):
        exporter(model, tmp_path).preflight(tmp_path / "out", "s")


def test_a_file_in_the_way_is_refused(model: ServedModel, tmp_path: Path):
    (tmp_path / "out").write_text("")
    with pytest.raises(InputRefused, match="is a file"):
        exporter(model, tmp_path).preflight(tmp_path / "out", "s")
    with pytest.raises(InputRefused, match="cannot be written"):
        exporter(model, tmp_path).preflight(tmp_path / "out" / "below", "s")


def test_a_directory_that_cannot_be_written_is_refused(model: ServedModel, tmp_path: Path):
    # /proc refuses even root, whom permission bits do not stop.
    out = Path("/proc/self/autotune-out")
    with pytest.raises(InputRefused, match=r"cannot be written: .*, at /proc/self") as refused:
        exporter(model, tmp_path).preflight(out / "below", "s")
    assert refused.value.value == str(out / "below"), "as the user gave it"


@pytest.mark.parametrize("letters", [240, 300], ids=["what is written beside it", "its own"])
def test_a_name_that_is_too_long_is_refused_as_it_was_given(
    model: ServedModel, tmp_path: Path, letters: int
):
    out = tmp_path / ("x" * letters)
    with pytest.raises(InputRefused, match="cannot be written: File name too long") as refused:
        exporter(model, tmp_path).preflight(out, "s")
    assert refused.value.value == str(out)


@pytest.mark.skipif(os.geteuid() == 0, reason="permission bits do not stop root")
def test_a_read_only_directory_is_refused(model: ServedModel, tmp_path: Path):
    (tmp_path / "out").mkdir(mode=0o555)
    with pytest.raises(InputRefused, match="cannot be written"):
        exporter(model, tmp_path).preflight(tmp_path / "out", "s")


def test_an_output_inside_the_model_is_refused(model: ServedModel, tmp_path: Path):
    with pytest.raises(InputRefused, match="inside the model"):
        exporter(model, tmp_path).preflight(model.source / "out", "s")


@pytest.mark.parametrize("name", ["", "m", "a/b", "../x"])
def test_a_file_needs_a_plain_name(model: ServedModel, tmp_path: Path, name: str):
    with pytest.raises(InputRefused, match="plain name"):
        exporter(model, tmp_path).write(
            PICK, tmp_path / "out", "s", [ExportFile(name=name, text="")]
        )


def test_a_provenance_of_another_study_is_refused(model: ServedModel, tmp_path: Path):
    foreign = ExportFile(name="provenance.json", text='{"study": "other"}')
    with pytest.raises(InputRefused, match="must name its study"):
        exporter(model, tmp_path).write(PICK, tmp_path / "out", "s", [foreign])


# --------------------------------------------------------------------------------- strict server
def test_the_strict_server_is_made_over_the_exported_files(model: ServedModel, tmp_path: Path):
    served: list[Any] = []
    one = exporter(model, tmp_path, served)
    one.write(PICK, tmp_path / "out", "s", [])
    assert one.strict_server(tmp_path / "out") == "a server"
    assert served == [(tmp_path / "out", "m")]


def test_an_ensemble_is_exported_with_its_composing_models(tmp_path: Path):
    for name, text in (
        ("e", "platform: 'ensemble' ensemble_scheduling { step [ { model_name: 'm' } ] }" + IO),
        ("m", "backend: 'python'" + IO),
        ("unrelated", "backend: 'python'" + IO),
    ):
        (tmp_path / "models" / name / "1").mkdir(parents=True)
        (tmp_path / "models" / name / "1" / "model.py").write_text("")
        (tmp_path / "models" / name / "config.pbtxt").write_text(text)
    model = from_repository(tmp_path / "models", "e", tmp_path)
    exporter(model, tmp_path).write(Candidate({}), tmp_path / "out", "s", [])
    assert sorted(e.name for e in (tmp_path / "out").iterdir() if e.is_dir()) == ["e", "m"]
    assert (tmp_path / "out" / "m" / "config.pbtxt").read_text() == "backend: 'python'" + IO


IO = """
input [ { name: "x" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 3 ] } ]
"""


@pytest.mark.parametrize(
    ("parameters", "threads"),
    [
        ({"parameters.intra_op_threads": 2}, "2"),
        ({"parameters.intra_op_thread_count": 3}, "3"),
        ({"parameters.intra_op_threads": None}, "7"),
        ({"parameters.execution_provider": "CPUExecutionProvider"}, "7"),
    ],
)
def test_a_model_that_a_runner_stood_in_for_is_exported_in_its_own_form(
    tmp_path: Path, parameters: dict[str, Any], threads: str
):
    own = " parameters {{ key: 'intra_op_thread_count' value: {{ string_value: '{}' }} }}"
    source = tmp_path / "models" / "m"
    (source / "1").mkdir(parents=True)
    onnx_models.linear(source / "1" / "model.onnx")
    (source / "config.pbtxt").write_text(
        "platform: 'onnxruntime_onnx' max_batch_size: 4" + own.format(7) + IO
    )
    native = from_repository(tmp_path / "models", "m", tmp_path / "work")
    model = adapt_for_embedded(native, tmp_path / "work")
    served: list[Any] = []
    one = exporter(model, tmp_path, served)
    pick = Candidate({**PICK.values, **parameters})
    config = read(one.write(pick, tmp_path / "out", "s", []))
    assert config == parse(
        "name: 'm' platform: 'onnxruntime_onnx' max_batch_size: 8 instance_group { count: 2 }"
        "dynamic_batching { max_queue_delay_microseconds: 100 }" + own.format(threads) + IO,
        "expected",
    )
    assert [e.name for e in (tmp_path / "out" / "m" / "1").iterdir()] == ["model.onnx"]

    one.strict_server(tmp_path / "out")
    ((repository, name),) = served
    through_runner = read(repository / name / "config.pbtxt")
    assert through_runner.backend == "python"
    assert through_runner.max_batch_size == 8
    assert through_runner.parameters["intra_op_thread_count"].string_value == threads
