"""Studies whose server, load, machine or input goes wrong."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
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
from tests.integration.studies import EASY, Finished, Tool, own_model, tool
from tests.integration.test_servers import embedded_shell, script
from tests.integration.test_triton_export import CORRUPT

pytestmark = [
    pytest.mark.server,
    pytest.mark.timeout(600),  # a test may wait for its turn
]


@pytest.fixture
def cli(tmp_path: Path, cache_dir: Path, server_environment: ServerEnvironment) -> Iterator[Tool]:
    yield from tool(tmp_path, cache_dir)


# -------------------------------------------------------------------------- what it uses goes wrong
ILL = """
        import json, resource
        size = json.loads(self.args["model_config"])["max_batch_size"]
        if size == 16 and self.count > 30:
            time.sleep(1000)
        if size == 64 and self.count == 40:
            os._exit(9)
        if size == 256:
            if self.count == 1:
                pages = int(open("/proc/self/statm").read().split()[0])
                limit = pages * os.sysconf("SC_PAGESIZE") + (200 << 20)
                resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
                self.kept = []
            self.kept.append(b"x" * (4 << 20))
"""
"""Hangs, dies of its 40th batch, or keeps 4 MB of every batch until its limit of 200 MB more."""
KILLED, LOAD_KILLED, STOPPED, HANGS, DIES, GROWS = 1, 2, 3, 4, 6, 8
"""The trials in which something goes wrong: candidates of batch size 2 to the power of that. The
last trial asks for less memory than the one that runs out of it."""
WELL = (0, 5, 7, 9)


@pytest.fixture(scope="module")
def battered(
    tmp_path_factory: pytest.TempPathFactory, cache_dir: Path, server_environment: ServerEnvironment
) -> Iterator[tuple[Finished, list[Any], float]]:
    """A study in which something goes wrong in most trials; its trials, and how long it took."""
    for cli in tool(tmp_path_factory.mktemp("battered"), cache_dir):
        study = cli.study(
            model=own_model(cli.folder / "models", ILL.strip()),
            space={"max_batch_size": [*(2**power for power in range(9)), 3]},
            workload={"timeout_s": 2, "measure_s": 2},
            server={"load_timeout_s": 10},
        )
        began = time.monotonic()
        running = cli.tune(study)
        running.wait_for_load(KILLED + 1)
        running.server().kill()
        running.wait_for_load(LOAD_KILLED + 1)
        running.load().kill()
        running.wait_for_load(STOPPED + 1)
        running.server().send_signal(signal.SIGSTOP)
        running.wait_for(f"measure  {max(WELL) + 1}/", within_s=200)
        running.remember_shared_memory()
        finished = running.finish(200)
        finished.expect(0)
        took_s = time.monotonic() - began
        running.assert_nothing_left()
        yield finished, cli.shown()["trials"], took_s


def verdicts(trial: Any) -> list[str]:
    return [m["verdict"] for m in trial["measurements"] if m["purpose"] == "trial" and m["valid"]]


def test_a_server_that_is_killed_fails_that_trial_alone(
    battered: tuple[Finished, list[Any], float],
) -> None:
    _, trials, _ = battered
    assert trials[KILLED]["state"] == "failed"
    assert "SIGKILL" in trials[KILLED]["reason"]


def test_a_trial_whose_load_process_is_killed_is_measured_again(
    battered: tuple[Finished, list[Any], float],
) -> None:
    finished, trials, _ = battered
    assert "measuring again: the load generator died" in finished.stderr
    assert [m["valid"] for m in trials[LOAD_KILLED]["measurements"]][:1] == [True]


def test_a_server_that_stops_answering_is_ended_and_fails_that_trial_alone(
    battered: tuple[Finished, list[Any], float],
) -> None:
    _, trials, _ = battered
    assert trials[STOPPED]["state"] == "failed"
    assert "hangs and was ended" in trials[STOPPED]["reason"]


@pytest.mark.parametrize("trial", [HANGS, GROWS], ids=["hangs", "grows"])
def test_a_model_that_hangs_or_outgrows_its_memory_fails_or_misses(
    battered: tuple[Finished, list[Any], float], trial: int
) -> None:
    _, trials, _ = battered
    assert trials[trial]["state"] == "failed" or verdicts(trials[trial]) == ["misses"]


def test_a_model_whose_instance_dies_fails_with_that_reason(
    battered: tuple[Finished, list[Any], float],
) -> None:
    _, trials, _ = battered
    assert trials[DIES]["state"] == "failed"
    assert "an instance of the model died" in trials[DIES]["reason"]


@pytest.mark.parametrize("trial", WELL)
def test_no_other_candidate_is_blamed_for_what_went_before(
    battered: tuple[Finished, list[Any], float], trial: int
) -> None:
    """Nor are the memory and the processes of one that went ill counted with the next."""
    _, trials, _ = battered
    assert trials[trial]["state"] == "ok"
    assert verdicts(trials[trial]) == ["meets"]
    assert trials[trial]["measurements"][0]["metrics"]["memory_mb"] < 200


def test_none_of_it_takes_longer_than_its_deadlines(
    battered: tuple[Finished, list[Any], float],
) -> None:
    assert battered[2] < 240


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


# ------------------------------------------------------------------ shared memory, lock and clock
def with_shared_memory_of(megabytes: int) -> list[str]:
    """Runs a command with a shared memory of its own; the machine's is left alone."""
    run = f'mount -t tmpfs -o size={megabytes}m tmpfs /dev/shm && exec "$@"'
    through = ["unshare", "--mount", "sh", "-c", run, "sh"]
    if subprocess.run([*through, "true"], check=False, capture_output=True).returncode:
        pytest.skip("a mount namespace of its own needs root")
    return through


def test_a_candidate_whose_instances_need_more_shared_memory_than_there_is_fails_alone(
    cli: Tool,
) -> None:
    """Each instance of the Python backend takes a megabyte and more of it."""
    cli.through = with_shared_memory_of(8)
    model = own_model(cli.folder / "models")
    running = cli.tune(cli.study(model=model, space={"instances": [1, 12, 2]}))
    running.finish().expect(0)
    running.assert_nothing_left()
    trials = cli.shown()["trials"]
    assert [trial["state"] for trial in trials] == ["ok", "failed", "ok"]
    assert "shared memory" in trials[1]["reason"]


def test_a_database_that_is_locked_for_long_is_waited_for(cli: Tool) -> None:
    """Longer than the five seconds that SQLite's driver waits unasked; autotune waits for 60."""
    running = cli.tune(cli.study(budget={"trials": 1}))
    running.wait_for_load(1)
    with locked(cli.db):
        time.sleep(8)
        assert running.process.poll() is None, running.stderr()
    running.finish().expect(0)
    running.assert_nothing_left()
    (trial,) = cli.shown()["trials"]
    assert trial["state"] == "ok"
    assert sorted(m["purpose"] for m in trial["measurements"]) == ["confirm", "trial"]


@contextmanager
def locked(database: Path) -> Iterator[None]:
    """Nobody else can write; what reads goes on."""
    with closing(sqlite3.connect(database, isolation_level=None, timeout=10)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("ROLLBACK")


STEPPED_CLOCK_C = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile long none, *offset = &none;

__attribute__((constructor)) static void begin(void) {
    char exe[4096] = "";
    int fd = open(getenv("STEPPED_CLOCK"), O_RDONLY);
    if (fd < 0 || readlink("/proc/self/exe", exe, sizeof exe - 1) < 0 || strstr(exe, "triton"))
        return;
    void *page = mmap(NULL, sizeof none, PROT_READ, MAP_SHARED, fd, 0);
    if (page != MAP_FAILED) offset = page;
}

int clock_gettime(clockid_t id, struct timespec *at) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int failed = real(id, at);
    if (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE) at->tv_sec += *offset;
    return failed;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
    struct timespec now;
    (void)zone;
    int failed = clock_gettime(CLOCK_REALTIME, &now);
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return failed;
}

time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}
"""


class SteppedClock:
    """The time of day as the controller and the load process see it: whatever they ask it of, it
    is that many seconds off. The server keeps the machine's, for it also waits by that."""

    def __init__(self, cli: Tool) -> None:
        compiler = shutil.which("cc")
        if compiler is None:
            pytest.skip("there is no C compiler to build a clock that can be stepped")
        source, library = cli.folder / "clock.c", cli.folder / "clock.so"
        source.write_text(STEPPED_CLOCK_C)
        built = [compiler, "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"]
        subprocess.run(built, check=True)
        self._offset = cli.folder / "offset"
        self._offset.write_bytes(bytes(8))
        cli.variables = {"LD_PRELOAD": str(library), "STEPPED_CLOCK": str(self._offset)}

    def step(self, seconds: int) -> None:
        """To that many seconds off the machine's clock, at once."""
        with self._offset.open("r+b") as file:
            file.write(seconds.to_bytes(8, sys.byteorder, signed=True))


def test_a_clock_that_is_stepped_forward_and_back_changes_no_measurement_and_ends_no_study(
    cli: Tool,
) -> None:
    clock = SteppedClock(cli)
    study = cli.study(space={"max_batch_size": [1, 2, 4]})
    running = cli.tune(study)
    running.wait_for_load(1)
    clock.step(7200)
    running.wait_for_load(2)
    running.process.kill()
    running.finish(30)
    running.assert_nothing_left(within_s=30)
    running = cli.tune(study, "--resume")
    running.wait_for_load(2)
    clock.step(-7200)
    running.finish().expect(0)
    running.assert_nothing_left()
    shown = cli.shown()
    assert shown["study"]["state"] == "done"
    trials = shown["trials"]
    assert [trial["state"] for trial in trials] == ["ok", "ok", "ok"]
    began = [trial["started_at"] for trial in trials]
    assert began[1] - began[0] > 6000, "it was stepped forward in the first trial"
    assert began[2] - began[1] < -12000, "and back in the second"
    for trial in trials:
        assert verdicts(trial) == ["meets"]
        metrics = trial["measurements"][0]["metrics"]
        assert 0 < metrics["p50_ms"] < EASY["p50_ms"]
        assert metrics["achieved_qps"] == pytest.approx(60, rel=0.4), "two hours would show"


# ---------------------------------------------------------------------------------- a full disk
PLACES = {"db": "measure  1/", "temporary": "measure  1/", "out": "confirming trial"}
"""When each is filled: before the measurement is written, before a load's arrivals are, and before
the export."""
FULL = ("No space left", "disk is full", "cannot be written")


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


def test_disks_that_fill_up_one_after_the_other_are_said_so_and_the_study_goes_on(
    cli: Tool,
) -> None:
    with ExitStack() as stack:
        disks = {
            place: stack.enter_context(small_disk(cli.folder / f"disk-{place}")) for place in PLACES
        }
        cli.db, cli.temporary, cli.out = (disk / "mine" for disk in disks.values())
        cli.temporary.mkdir()
        study = cli.study(budget={"trials": 1})
        for number, (place, disk) in enumerate(disks.items()):
            running = cli.tune(study, *(["--resume"] if number else []))
            running.wait_for(PLACES[place])
            fill(disk / "filler")
            stopped = running.finish().expect(1)
            running.assert_nothing_left()
            assert any(words in stopped.stderr for words in FULL), stopped.stderr
            assert not cli.out.exists()
            (disk / "filler").unlink()
            shown = cli.shown()
            assert shown["study"]["state"] in {"failed", "interrupted"}
            if place == "db":
                (trial,) = shown["trials"]
                assert (trial["state"], trial["measurements"]) == ("running", [])
        cli.tune(study, "--resume").finish().expect(0)
        (trial,) = cli.shown()["trials"]
        assert trial["state"] == "ok"
        assert sorted(m["purpose"] for m in trial["measurements"]) == ["confirm", "trial"]


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
    refused = cli.refuse(study).expect(code, words)
    assert "starting the server" not in refused.stderr
    assert {path: path.read_bytes() for path in before} == before, "nothing is lost"


def test_a_read_only_output_directory_is_refused(cli: Tool) -> None:
    with small_disk(cli.folder / "disk") as disk:
        subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
        cli.out = disk / "out"
        cli.refuse(cli.study()).expect(2, "cannot be written: Read-only file system")


def test_a_port_in_use_is_refused_by_its_number(cli: Tool) -> None:
    ports = free_ports()
    with socket.create_server(("127.0.0.1", ports.http)):
        chosen = [ports.http, ports.grpc, ports.metrics]
        cli.refuse(cli.study(server={"ports": chosen})).expect(2, str(ports.http))


def test_an_npz_that_does_not_fit_the_model_is_refused(cli: Tool) -> None:
    np.savez(cli.folder / "inputs.npz", x=np.zeros((40, 5), np.float32))
    running = cli.tune(cli.study(workload={"inputs": str(cli.folder / "inputs.npz")}))
    running.finish().expect(2, "inputs.npz", "[4]")
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
