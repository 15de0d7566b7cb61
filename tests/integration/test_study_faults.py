"""Studies that are interrupted, starved, battered or given what they cannot use."""

from __future__ import annotations

import os
import signal
import socket
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autotune.adapters.triton.environment import ServerEnvironment
from autotune.adapters.triton.launchers import EmbeddedLauncher
from autotune.adapters.triton.local import LocalServer
from autotune.adapters.triton.ports import free_ports
from autotune.adapters.triton.repository import from_onnx
from search_spaces.candidate import Candidate
from storage.schema import VERSION_TABLE
from storage.store import SqlTrialStore
from tests import onnx_models
from tests.integration.conftest import FAST
from tests.integration.studies import Finished, Tool, own_model, tool
from tests.integration.test_servers import embedded_shell, script
from tests.integration.test_triton_export import CORRUPT

pytestmark = [pytest.mark.server, pytest.mark.timeout(900)]  # a test may wait for its turn


@pytest.fixture
def cli(tmp_path: Path, cache_dir: Path, server_environment: ServerEnvironment) -> Iterator[Tool]:
    yield from tool(tmp_path, cache_dir)


# ----------------------------------------------------------------------- the user or system stops
MOMENTS = (
    (signal.SIGINT, "starting the server"),
    (signal.SIGTERM, "comparing served outputs"),
    (signal.SIGHUP, "trial 2"),
    (signal.SIGTERM, "confirming trial"),
    (signal.SIGINT, "export "),
)


def test_a_study_that_is_interrupted_at_every_stage_in_turn_comes_to_its_end(cli: Tool) -> None:
    study = cli.study(workload={"measure_s": 2})
    first: dict[str, Any] = {}
    for number, (signum, moment) in enumerate(MOMENTS):
        running = cli.tune(study, *(["--resume"] if number else []))
        if moment == "trial 2":
            running.wait_for_load(2)
        else:
            running.wait_for(moment)
        running.tell(signum).expect(1, f"stopped by {signum.name}", "--resume")
        running.assert_nothing_left()
        shown = cli.shown()
        assert shown["study"]["state"] == "interrupted"
        if number >= 2:
            first = first or shown["trials"][0]
    cli.tune(study, "--resume").finish().expect(0)
    shown = cli.shown()
    assert shown["study"]["state"] == "done"
    assert [trial["state"] for trial in shown["trials"]] == ["ok", "ok"]
    assert shown["trials"][0]["started_at"] == first["started_at"]
    assert len(shown["trials"][0]["measurements"]) <= len(first["measurements"]) + 1
    assert not [path for path in cli.folder.iterdir() if path.name.startswith(".out")]


def test_a_killed_study_leaves_nothing_running_and_goes_on_from_what_is_stored(cli: Tool) -> None:
    study = cli.study(workload={"measure_s": 4})
    running = cli.tune(study)
    running.wait_for_load(2)
    running.remember_shared_memory()
    cli.start("tune", study, "--resume").finish(30).expect(1, "another study is measuring")
    assert running.process.poll() is None, "the first one is not disturbed"
    running.process.kill()
    running.finish(10)
    running.assert_nothing_left(within_s=15)
    before = cli.shown()["trials"]
    assert [trial["state"] for trial in before] == ["ok", "running"]
    cli.tune(study, "--resume").finish().expect(0)
    after = cli.shown()["trials"]
    assert [trial["state"] for trial in after] == ["ok", "ok"]
    assert after[0]["measurements"][0] == before[0]["measurements"][0]


# -------------------------------------------------------------------------- what it uses goes wrong
HANGS = """
        import json
        if json.loads(self.args["model_config"])["max_batch_size"] == 16 and self.count > 30:
            time.sleep(1000)
"""


@pytest.fixture(scope="module")
def battered(
    tmp_path_factory: pytest.TempPathFactory, cache_dir: Path, server_environment: ServerEnvironment
) -> Iterator[tuple[Finished, list[Any], float]]:
    """A study in which something else goes wrong in each trial but the first and the last; its
    trials, and how long it took."""
    for cli in tool(tmp_path_factory.mktemp("battered"), cache_dir):
        study = cli.study(
            model=own_model(cli.folder / "models", HANGS.strip()),
            space={"max_batch_size": [1, 2, 4, 8, 16, 32]},
            workload={"measure_s": 2, "timeout_s": 2},
            server={"load_timeout_s": 10},
        )
        began = time.monotonic()
        running = cli.tune(study)
        running.wait_for_load(2)
        running.server().kill()
        running.wait_for_load(3)
        running.load().kill()
        running.wait_for_load(4)
        running.server().send_signal(signal.SIGSTOP)
        finished = running.finish(200)
        finished.expect(0)
        took_s = time.monotonic() - began
        running.assert_nothing_left()
        yield finished, cli.shown()["trials"], took_s


def test_a_server_that_is_killed_fails_that_trial_alone(
    battered: tuple[Finished, list[Any], float],
) -> None:
    _, trials, _ = battered
    assert trials[1]["state"] == "failed"
    assert "SIGKILL" in trials[1]["reason"]
    assert (trials[0]["state"], trials[2]["state"]) == ("ok", "ok")


def test_a_trial_whose_load_process_is_killed_is_measured_again(
    battered: tuple[Finished, list[Any], float],
) -> None:
    finished, trials, _ = battered
    assert "measuring again: the load generator died" in finished.stderr
    assert [m["valid"] for m in trials[2]["measurements"]][:1] == [True]


def test_a_server_that_stops_answering_is_ended_and_fails_that_trial_alone(
    battered: tuple[Finished, list[Any], float],
) -> None:
    _, trials, _ = battered
    assert trials[3]["state"] == "failed"
    assert "hangs and was ended" in trials[3]["reason"]


def test_a_model_that_hangs_misses_and_the_next_candidate_is_not_blamed(
    battered: tuple[Finished, list[Any], float],
) -> None:
    _, trials, _ = battered
    verdicts = [m["verdict"] for m in trials[4]["measurements"]]
    assert trials[4]["state"] == "failed" or verdicts == ["misses"]
    assert trials[5]["state"] == "ok"
    assert trials[5]["measurements"][0]["verdict"] == "meets"


def test_none_of_it_takes_longer_than_its_deadlines(
    battered: tuple[Finished, list[Any], float],
) -> None:
    assert battered[2] < 180


def test_a_remote_server_that_goes_away_ends_the_study_and_blames_no_further_candidate(
    cli: Tool, server_environment: ServerEnvironment
) -> None:
    with remote(cli, server_environment) as (server, kill):
        study = cli.study(
            model={"name": "linear"}, server=server, space={"max_batch_size": [1, 2, 4, 8]}
        )
        running = cli.tune(study)
        running.wait_for_load(2)
        kill()
        running.finish().expect(1, "no live Triton answers", "could not be left as it was found")
    assert cli.states() == ["ok", "failed"]
    assert cli.shown()["study"]["state"] == "failed"


def test_outputs_that_are_not_the_models_stop_the_study_with_both_values(
    cli: Tool, server_environment: ServerEnvironment
) -> None:
    corrupt = cli.folder / "corrupt.py"
    corrupt.write_text(CORRUPT.replace("{damage}", "np.full_like(x, x.flat[0])"))
    body = (
        'for a in "$@"; do case "$a" in --model-repository=*)'
        f' cp {corrupt} "${{a#--model-repository=}}/linear/1/model.py";; esac; done\n'
        + embedded_shell(server_environment, '"$@"')
    )
    binary = script(cli.folder / "bin/triton", body)
    study = cli.study(server={"launch": "binary", "binary": str(binary)})
    stopped = cli.tune(study).finish()
    stopped.expect(1, "where the model run directly gives")
    assert "trial" not in stopped.stderr, "nothing was timed"
    assert cli.shown()["study"]["state"] == "failed"
    assert not cli.out.exists()


# ---------------------------------------------------------------------------------- a full disk
@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """A file system of its own in memory, of 24 MB."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    folder.mkdir(parents=True)
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", folder],
        check=False,
        capture_output=True,
    )
    if made.returncode:
        pytest.skip(f"no file system can be mounted here: {made.stderr.decode().strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)


@pytest.mark.parametrize("place", ["db", "temporary", "out"])
def test_a_disk_that_fills_up_is_said_so_and_the_study_goes_on_when_there_is_room(
    cli: Tool, place: str
) -> None:
    with small_disk(cli.folder / "disk") as disk:
        setattr(cli, place, disk / place)
        if place == "temporary":
            cli.temporary.mkdir()
        study = cli.study(budget={"trials": 1})
        running = cli.tune(study)
        running.wait_for("measure  1/")
        fill(disk / "filler")
        stopped = running.finish().expect(1)
        running.assert_nothing_left()
        said = stopped.stderr
        assert any(w in said for w in ("No space left", "disk is full", "cannot be written")), said
        assert not cli.out.exists()
        (disk / "filler").unlink()
        assert cli.shown()["study"]["state"] in {"failed", "interrupted"}
        cli.tune(study, "--resume").finish().expect(0)
        assert cli.states() == ["ok"]


# ------------------------------------------------------------------------------------- bad input
def truncated(cli: Tool) -> Path:
    model = cli.model()
    model.write_bytes(model.read_bytes()[:-40])
    return cli.study()


def fixed_batch(cli: Tool) -> Path:
    onnx_models.linear(cli.folder / "linear.onnx", input_dims=(1, 4), output_dims=(1, 3))
    return cli.study()


def missing_model(cli: Tool) -> Path:
    return cli.study(model={"onnx": str(cli.folder / "none.onnx")})


def missing_study(cli: Tool) -> Path:
    return cli.folder / "none.yaml"


def unknown_key(cli: Tool) -> Path:
    return cli.study(bugdet={"trials": 3})


def file_as_output(cli: Tool) -> Path:
    cli.out.write_text("mine")
    return cli.study()


def output_below_a_file(cli: Tool) -> Path:
    (cli.folder / "file").write_text("mine")
    cli.out = cli.folder / "file" / "out"
    return cli.study()


def somebodys_directory(cli: Tool) -> Path:
    cli.out.mkdir()
    (cli.out / "thesis.tex").write_text("mine")
    return cli.study()


def output_around_the_database(cli: Tool) -> Path:
    cli.out.mkdir()
    cli.db = cli.out / "studies.db"
    return cli.study()


def output_inside_the_model(cli: Tool) -> Path:
    model = own_model(cli.folder / "models")
    cli.out = cli.folder / "models" / "own" / "out"
    return cli.study(model=model)


def newer_database(cli: Tool) -> Path:
    SqlTrialStore(str(cli.db)).close()
    with closing(sqlite3.connect(cli.db)) as connection, connection:
        connection.execute(f"UPDATE {VERSION_TABLE} SET version_num = '9999'")
    return cli.study()


def no_database(cli: Tool) -> Path:
    cli.db.write_text("a letter to my mother")
    return cli.study()


BAD: dict[Callable[[Tool], Path], tuple[int, str]] = {
    truncated: (2, "is not a whole ONNX file"),
    fixed_batch: (2, "batch"),
    missing_model: (2, "none.onnx"),
    missing_study: (2, "none.yaml"),
    unknown_key: (2, "did you mean 'budget'?"),
    file_as_output: (2, "is a file, not a directory"),
    output_below_a_file: (2, "Not a directory"),
    somebodys_directory: (2, "is not empty and holds no export"),
    output_around_the_database: (2, "an export replaces all of it"),
    output_inside_the_model: (2, "lies inside the model"),
    newer_database: (1, "written by a newer autotune"),
    no_database: (1, "is not a database"),
}


@pytest.mark.parametrize("make", BAD, ids=lambda make: make.__name__)
def test_bad_input_is_refused_before_a_server_is_started(
    cli: Tool, make: Callable[[Tool], Path]
) -> None:
    code, words = BAD[make]
    study = make(cli)
    before = {path: path.read_bytes() for path in cli.folder.rglob("*") if mine(path, cli)}
    refused = cli.tune(study).finish(30)
    refused.expect(code, words)
    assert "starting the server" not in refused.stderr
    assert {path: path.read_bytes() for path in before} == before, "nothing is lost"


def test_a_read_only_output_directory_is_refused(cli: Tool) -> None:
    with small_disk(cli.folder / "disk") as disk:
        subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
        cli.out = disk / "out"
        cli.tune(cli.study()).finish(30).expect(2, "cannot be written: Read-only file system")


def test_a_port_in_use_is_refused_by_its_number(cli: Tool) -> None:
    ports = free_ports()
    with socket.create_server(("127.0.0.1", ports.http)):
        chosen = [ports.http, ports.grpc, ports.metrics]
        cli.tune(cli.study(server={"ports": chosen})).finish(30).expect(2, str(ports.http))


def test_a_database_that_another_process_locks_is_waited_for_a_while_and_then_refused(
    cli: Tool,
) -> None:
    SqlTrialStore(str(cli.db)).close()
    with closing(sqlite3.connect(cli.db, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        cli.tune(cli.study()).finish(40).expect(1, "the database is locked by another process")


@pytest.mark.parametrize(
    ("array", "words"),
    [(np.zeros((40, 5), np.float32), "[4]"), (np.zeros((40, 4), np.int64), "FP32")],
    ids=["shape", "dtype"],
)
def test_an_npz_that_does_not_fit_the_model_is_refused(
    cli: Tool, array: np.ndarray, words: str
) -> None:
    np.savez(cli.folder / "inputs.npz", x=array)
    running = cli.tune(cli.study(workload={"inputs": str(cli.folder / "inputs.npz")}))
    running.finish().expect(2, "inputs.npz", words)
    running.assert_nothing_left()


# --------------------------------------------------------------------------------------- helpers
def fill(path: Path) -> None:
    """Take all that is left of a file system."""
    with path.open("wb", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1):
            try:
                while True:
                    file.write(b"\0" * size)
            except OSError:
                continue


def mine(path: Path, cli: Tool) -> bool:
    """Whether a file is the user's, not the tool's own."""
    own = (cli.work, cli.temporary)
    logs = path.suffix in (".out", ".err", ".lock")
    return path.is_file() and not logs and not any(path.is_relative_to(each) for each in own)


@contextmanager
def remote(
    cli: Tool, environment: ServerEnvironment
) -> Iterator[tuple[dict[str, str], Callable[[], None]]]:
    """A server of somebody else's in explicit mode: the study's server section, and its end."""
    model = from_onnx(cli.model(), "linear", cli.folder / "far")
    launcher = EmbeddedLauncher(lambda: environment)
    with closing(LocalServer(FAST, model, launcher, work_dir=cli.folder / "log")) as server:
        server.apply(Candidate({"max_batch_size": 1}))
        end = server.endpoint
        yield {"launch": "remote", "http": end.http, "grpc": end.grpc}, server.close
