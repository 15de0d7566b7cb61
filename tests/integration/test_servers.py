"""The Server adapters over the real embedded Triton."""

from __future__ import annotations

import itertools
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest
import tritonclient.http
from numpy.typing import NDArray

from autotune.adapters.triton.control import Control
from autotune.adapters.triton.environment import ServerEnvironment
from autotune.adapters.triton.launchers import EmbeddedLauncher
from autotune.adapters.triton.local import LocalServer
from autotune.adapters.triton.ports import Ports, free_ports
from autotune.adapters.triton.process import ChildProcess
from autotune.adapters.triton.remote import RemoteServer
from autotune.adapters.triton.repository import ServedModel, from_repository
from autotune.adapters.triton.servers import Servers
from autotune.core.errors import CandidateFailed, InputRefused, ServerCrashed, ServerFailed
from autotune.core.model_interface import TensorSpec
from autotune.core.study import Launch, ServerSpec
from autotune.ports import Server
from autotune.tuner.crashes import despite_a_crash
from search_spaces.candidate import Candidate
from tests.integration.conftest import FAST
from tests.integration.studies import own_model

pytestmark = pytest.mark.server

PLAIN = Candidate({"max_batch_size": 1})
BATCHING = Candidate(
    {"max_batch_size": 8, "queue_delay_us": 200_000, "preferred_batch_sizes": (8,)}
)
IMPATIENT = replace(FAST, load_timeout_s=2.0)

Started = Callable[[Server], Server]


@pytest.fixture
def embedded(
    server_environment: ServerEnvironment, double: ServedModel, tmp_path: Path
) -> Callable[..., LocalServer]:
    def make(spec: ServerSpec = FAST, *, strict: bool = False) -> LocalServer:
        launcher = EmbeddedLauncher(lambda: server_environment)
        return LocalServer(spec, double, launcher, work_dir=tmp_path / "server", strict=strict)

    return make


@pytest.fixture(scope="module")
def shared(
    server_environment: ServerEnvironment,
    double: ServedModel,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[LocalServer]:
    """One server for the tests that leave it alive."""
    launcher = EmbeddedLauncher(lambda: server_environment)
    server = LocalServer(FAST, double, launcher, work_dir=tmp_path_factory.mktemp("shared"))
    server.start()
    yield server
    server.close()


# ------------------------------------------------------------------------------- serving a model
def test_the_server_answers_as_the_model_does(shared: LocalServer) -> None:
    shared.apply(PLAIN)
    row = np.array([[1.5, -2.0, 3.25]], dtype=np.float32)
    np.testing.assert_array_equal(ask(shared, row), row * 2)


def test_triton_comes_first_and_its_models_run_in_processes_of_their_own(
    shared: LocalServer,
) -> None:
    """Telemetry goes by that: what Triton itself opens of GPUs is no model's."""
    triton, *models = (psutil.Process(pid).name() for pid in shared.pids())
    assert triton == "tritonserver"
    assert {name[:13] for name in models} == {"triton_python"}


def test_what_has_nothing_for_triton_to_complete_is_not_asked(shared: LocalServer) -> None:
    """To ask takes a process, and a second of each load."""
    assert "--disable-auto-complete-config" in psutil.Process(shared.pids()[0]).cmdline()


def test_an_override_is_applied_without_a_restart(shared: LocalServer) -> None:
    shared.apply(PLAIN)
    server = shared.pids()[0]
    applied = shared.apply(BATCHING.replacing(instances=2))
    assert (applied.restarted, applied.instances) == (False, 2)
    assert shared.pids()[0] == server


def test_the_statistics_of_a_window_count_its_requests_by_batch_size(shared: LocalServer) -> None:
    shared.apply(BATCHING)
    ask(shared, np.ones((1, 3), np.float32))
    start = shared.mark()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: ask(shared, np.ones((1, 3), np.float32)), range(8)))
    window = shared.between(start, shared.mark())
    assert (window.requests, window.failures) == (8, 0)
    assert sum(size * stat.executions for size, stat in window.batches.items()) == 8
    assert window.executions == sum(stat.executions for stat in window.batches.values()) < 8
    assert min(window.queue_ms, window.compute_infer_ms) > 0


def test_the_interface_has_no_batch_dimension(shared: LocalServer) -> None:
    shared.apply(PLAIN)
    interface = shared.interface()
    assert interface.batched
    assert interface.inputs == (TensorSpec(name="x", datatype="FP32", shape=(-1,)),)


def test_the_identity_names_version_launch_and_model(
    shared: LocalServer, double: ServedModel
) -> None:
    identity = shared.identity()
    assert identity["triton"] == "2.51.0"
    assert (identity["launch"], identity["model_digest"]) == ("embedded", double.digest)


def test_a_candidate_that_does_not_load_fails_with_the_servers_words_and_the_next_one_loads(
    shared: LocalServer,
) -> None:
    shared.apply(PLAIN)
    broken = Candidate({"parameters.execution_provider": "NoSuchProvider"})
    with pytest.raises(CandidateFailed, match="CPUExecutionProvider, not NoSuchProvider"):
        shared.apply(broken)
    assert shared.alive()
    assert not shared.apply(BATCHING).restarted


def test_server_flags_restart_the_server_once(shared: LocalServer) -> None:
    shared.apply(PLAIN)
    verbose = PLAIN.replacing(**{"server.log-verbose": 1})
    assert shared.apply(verbose).restarted
    assert not shared.apply(verbose).restarted


def test_a_server_flag_that_is_unknown_fails_that_candidate_alone(shared: LocalServer) -> None:
    with pytest.raises(CandidateFailed, match="no-such-flag"):
        shared.apply(PLAIN.replacing(**{"server.no-such-flag": 1}))
    assert shared.apply(PLAIN).restarted


# ---------------------------------------------------------------------------------- dying servers
def test_a_server_that_is_killed_is_reported_with_its_log_and_started_again(
    shared: LocalServer,
) -> None:
    shared.apply(PLAIN)
    os.kill(shared.pids()[0], signal.SIGKILL)
    with pytest.raises(ServerFailed, match=r"(?s)SIGKILL.*Started GRPCInferenceService") as failure:
        shared.mark()
    assert isinstance(failure.value, ServerCrashed)
    assert shared.apply(PLAIN).restarted
    np.testing.assert_array_equal(ask(shared, np.ones((1, 2), np.float32)), [[2, 2]])


def test_a_stub_that_dies_as_the_model_is_loaded_is_a_crash_and_is_got_over(
    server_environment: ServerEnvironment, tmp_path: Path, started: Started
) -> None:
    mark = str(tmp_path / "once")
    once = f"os.path.exists({mark!r}) or (os.mknod({mark!r}), os.abort())"
    own_model(tmp_path / "models", initialize=once)
    model = from_repository(tmp_path / "models", "own", tmp_path / "copy")
    launcher = EmbeddedLauncher(lambda: server_environment)
    server = started(LocalServer(FAST, model, launcher, work_dir=tmp_path / "server"))
    server.start()
    first = server.pids()[0]
    told: list[str] = []
    despite_a_crash(lambda: server.apply(Candidate({})), server, told.append)
    assert ["Stub process 'own_0' is not healthy" in each for each in told] == [True]
    assert server.pids()[0] != first


def test_a_server_that_hangs_is_ended_after_its_deadline_and_started_again(
    embedded: Callable[..., LocalServer], started: Started
) -> None:
    server = started(embedded(IMPATIENT))
    server.start()
    pids = server.pids()
    freeze(pids[0])
    with pytest.raises(ServerFailed, match="hangs and was ended"):
        server.mark()
    assert_gone(pids)
    server.start()
    assert server.alive()


def test_a_server_found_hanging_is_restarted_by_the_next_candidate(
    embedded: Callable[..., LocalServer], started: Started
) -> None:
    server = started(embedded())
    server.start()
    pids = server.pids()
    freeze(pids[0])
    assert not server.alive()
    assert server.apply(PLAIN).restarted
    assert_gone(pids)


# ------------------------------------------------------------------------------- nothing is left
def test_close_leaves_no_process_and_no_shared_memory(
    embedded: Callable[..., LocalServer],
) -> None:
    server = embedded()
    server.apply(PLAIN.replacing(instances=2))
    pids = server.pids()
    assert len(pids) == 3
    prefix = shm_prefix(pids[0])
    assert segments(prefix)
    server.close()
    server.close()
    assert_gone(pids)
    assert not segments(prefix)
    with pytest.raises(ServerFailed, match="not running"):
        server.mark()


def test_a_start_that_fails_leaves_no_process(embedded: Callable[..., LocalServer]) -> None:
    before = children()
    server = embedded(replace(FAST, start_timeout_s=0.0))
    with pytest.raises(ServerFailed, match="did not come up in time"):
        server.start()
    assert children() <= before


def test_a_stopped_server_is_closed_all_the_same(embedded: Callable[..., LocalServer]) -> None:
    server = embedded()
    server.start()
    pids = server.pids()
    freeze(pids[0])
    server.close()
    assert_gone(pids)


CONTROLLER = """
import sys, time
from pathlib import Path
from autotune.adapters.triton.environment import prepare
from autotune.adapters.triton.launchers import EmbeddedLauncher
from autotune.adapters.triton.local import LocalServer
from autotune.adapters.triton.repository import from_onnx
from autotune.core.study import ServerSpec
from search_spaces.candidate import Candidate

cache, onnx, work = map(Path, sys.argv[1:])
model = from_onnx(onnx, "double", work / "repository")
server = LocalServer(ServerSpec(), model, EmbeddedLauncher(lambda: prepare(cache)), work_dir=work)
server.apply(Candidate({"instances": 2}))
print(*server.pids(), flush=True)
time.sleep(60)
"""


def test_the_server_and_its_stubs_end_when_their_controller_is_killed(
    cache_dir: Path, double: ServedModel, server_environment: ServerEnvironment, tmp_path: Path
) -> None:
    assert double.onnx is not None
    arguments = [str(cache_dir), str(double.onnx), str(tmp_path)]
    with subprocess.Popen(
        [sys.executable, "-c", CONTROLLER, *arguments], stdout=subprocess.PIPE, text=True
    ) as controller:
        assert controller.stdout is not None
        pids = [int(pid) for pid in controller.stdout.readline().split()]
        assert len(pids) == 3
        prefix = shm_prefix(pids[0])
        controller.kill()
    assert_gone(pids, within_s=20)
    until(lambda: not segments(prefix), within_s=5)


# ------------------------------------------------------------------------------------------ ports
def test_a_fixed_port_in_use_is_refused_by_name(
    embedded: Callable[..., LocalServer], started: Started
) -> None:
    ports = free_ports()
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", ports.grpc))
        holder.listen()
        server = started(embedded(replace(FAST, ports=(ports.http, ports.grpc, ports.metrics))))
        with pytest.raises(InputRefused, match=rf"the grpc port {ports.grpc} "):
            server.start()


def test_free_ports_that_are_lost_in_a_race_are_picked_anew(
    embedded: Callable[..., LocalServer], started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = free_ports()
    offered = iter([lost, free_ports()])
    monkeypatch.setattr("autotune.adapters.triton.local.free_ports", lambda: next(offered))
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", lost.http))
        holder.listen()
        server = started(embedded())
        server.start()
    assert server.alive()
    assert server.endpoint.http != f"127.0.0.1:{lost.http}"


# --------------------------------------------------------------------------------- other launches
def test_a_strict_server_loads_the_configuration_of_the_file(
    embedded: Callable[..., LocalServer], started: Started
) -> None:
    server = started(embedded(strict=True))
    applied = server.apply(BATCHING.replacing(instances=2))
    assert applied.instances == 1
    np.testing.assert_array_equal(ask(server, np.ones((1, 2), np.float32)), [[2, 2]])


def test_a_binary_is_served_from_its_path(
    server_environment: ServerEnvironment, double: ServedModel, tmp_path: Path, started: Started
) -> None:
    binary = script(tmp_path / "tritonserver", embedded_shell(server_environment, '"$@"'))
    spec = replace(FAST, launch=Launch.BINARY, binary=binary)
    server = started(Servers(cache_dir=tmp_path, work_dir=tmp_path).tuned(spec, double))
    assert server.apply(PLAIN).instances == 1
    assert server.identity()["launch"] == "binary"
    np.testing.assert_array_equal(ask(server, np.ones((1, 2), np.float32)), [[2, 2]])


FAKE_DOCKER = """
echo "$@" >> {calls}
case "$1" in
  image) exit {image} ;;
  inspect) cat {calls}.pid ;;
  run)
    for argument in "$@"; do
      shift
      case "$argument" in
        *:/models:ro) repository=${{argument%:/models:ro}} ;;
        tritonserver) break ;;
      esac
    done
    for argument in "$@"; do
      shift
      case "$argument" in
        --model-repository=/models) set -- "$@" "--model-repository=$repository" ;;
        *) set -- "$@" "$argument" ;;
      esac
    done
    echo $$ > {calls}.pid
    set -- "$@" "--backend-config=python,shm-region-prefix-name=fake_docker_$$_"
    {run}
    ;;
  rm) rm -f "/dev/shm/fake_docker_$(cat {calls}.pid)_"* ;;  # a container's own goes with it
esac
"""


@pytest.fixture
def docker(
    server_environment: ServerEnvironment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[int], Path]:
    """Puts a docker on PATH that runs the embedded server; the file that logs its calls."""

    def make(image_found: int = 0) -> Path:
        calls = tmp_path / "docker-calls"
        run = embedded_shell(server_environment, '"$@"')
        body = FAKE_DOCKER.format(calls=calls, image=image_found, run=run)
        script(tmp_path / "bin" / "docker", body)
        monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
        return calls

    return make


def test_a_container_is_run_on_loopback_and_removed_at_the_end(
    docker: Callable[..., Path], double: ServedModel, tmp_path: Path, started: Started
) -> None:
    calls = docker()
    spec = replace(FAST, launch=Launch.DOCKER, image="triton:test", gpus="all")
    server = started(Servers(cache_dir=tmp_path, work_dir=tmp_path).tuned(spec, double))
    server.apply(PLAIN)
    pids = server.pids()
    assert psutil.Process(pids[0]).name() == "tritonserver"
    np.testing.assert_array_equal(ask(server, np.ones((1, 2), np.float32)), [[2, 2]])
    server.close()
    assert_gone(pids)
    log = calls.read_text()
    run = next(line for line in log.splitlines() if line.startswith("run "))
    assert "--gpus=all" in run
    assert "--http-address=127.0.0.1" in run
    name = run.partition("--name=")[2].split()[0]
    assert log.splitlines()[-1] == f"rm --force {name}"


def test_an_image_that_is_not_there_is_refused_with_the_pull_command(
    docker: Callable[[int], Path], double: ServedModel, tmp_path: Path
) -> None:
    docker(1)
    spec = replace(FAST, launch=Launch.DOCKER, image="triton:test")
    server = Servers(cache_dir=tmp_path, work_dir=tmp_path).tuned(spec, double)
    with pytest.raises(InputRefused, match="docker pull triton:test"):
        server.start()


# ----------------------------------------------------------------------------------------- remote
def test_a_remote_server_is_tuned_and_its_model_left_as_it_was_found(
    shared: LocalServer, double: ServedModel
) -> None:
    shared.apply(BATCHING.replacing(instances=2))
    found = shared.interface(), config_of(shared)
    with closing(RemoteServer(remote(shared.endpoint.http, shared.endpoint.grpc), double)) as far:
        far.start()
        assert far.apply(PLAIN.replacing(instances=1)).instances == 1
        assert far.alive()
        assert far.pids() == ()
        assert config_of(shared) != found[1]
    assert (shared.interface(), config_of(shared)) == found


def test_a_remote_model_is_left_as_it_was_though_one_is_interrupted_in_the_middle_of_a_load(
    double: ServedModel, shared: LocalServer
) -> None:
    """Triton goes on with the load, and serves what was served before until its end."""
    shared.apply(BATCHING)
    control = Control(shared.endpoint.grpc, "double")
    before = control.config()
    with _interrupting() as within:
        for part in range(8):
            far = RemoteServer(remote(shared.endpoint.http, shared.endpoint.grpc), double)
            far.apply(BATCHING)
            within(0.001 + part * 0.04)
            with pytest.raises(InterruptedError), closing(far):
                load_one_after_another(far)
            assert control.config() == before
            time.sleep(0.3)
            assert control.config() == before
    control.close()


def load_one_after_another(far: RemoteServer) -> None:
    for size in itertools.cycle((1, 2)):
        far.apply(PLAIN.replacing(max_batch_size=size))


@contextmanager
def _interrupting() -> Iterator[Callable[[float], None]]:
    """Has InterruptedError come up, after so many seconds, whatever is under way."""

    def interrupt(*_: object) -> None:
        raise InterruptedError

    former = signal.signal(signal.SIGALRM, interrupt)
    try:
        yield lambda seconds: signal.setitimer(signal.ITIMER_REAL, seconds) and None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, former)


def test_a_remote_model_that_was_not_loaded_is_unloaded_at_the_end(
    embedded: Callable[..., LocalServer], double: ServedModel, started: Started
) -> None:
    near = started(embedded())
    near.start()
    far = RemoteServer(remote(near.endpoint.http, near.endpoint.grpc), double)
    far.start()
    far.apply(PLAIN)
    far.interface()
    far.close()
    with pytest.raises(ServerFailed):
        near.interface()


def test_a_remote_server_that_is_not_in_explicit_mode_is_refused(
    server_environment: ServerEnvironment, double: ServedModel, tmp_path: Path
) -> None:
    with uncontrolled(server_environment, double, tmp_path / "log") as ports:
        far = RemoteServer(remote(ports.endpoint.http, ports.endpoint.grpc), double)
        with closing(far), pytest.raises(InputRefused, match="--model-control-mode=explicit"):
            far.start()


def test_a_remote_server_that_is_not_there_is_said_so(double: ServedModel) -> None:
    ports = free_ports()
    far = RemoteServer(remote(ports.endpoint.http, ports.endpoint.grpc), double)
    with closing(far), pytest.raises(ServerFailed, match=f"127.0.0.1:{ports.grpc}"):
        far.start()


# ---------------------------------------------------------------------------------------- helpers
def ask(server: Server, row: NDArray[np.float32]) -> NDArray[np.generic]:
    with closing(tritonclient.http.InferenceServerClient(server.endpoint.http)) as client:
        tensor = tritonclient.http.InferInput("x", row.shape, "FP32")
        tensor.set_data_from_numpy(row)
        answer: NDArray[np.generic] = client.infer("double", [tensor]).as_numpy("y")
        return answer


def config_of(server: Server) -> object:
    with closing(tritonclient.http.InferenceServerClient(server.endpoint.http)) as client:
        return client.get_model_config("double")


def remote(http: str, grpc: str) -> ServerSpec:
    return ServerSpec(launch=Launch.REMOTE, http=http, grpc=grpc, load_timeout_s=30)


@contextmanager
def uncontrolled(environment: ServerEnvironment, model: ServedModel, log: Path) -> Iterator[Ports]:
    """A server that loads its models by itself and takes no requests to."""
    ports = free_ports()
    launcher = EmbeddedLauncher(lambda: environment)
    command = launcher.command(model.repository, ports, {"model-control-mode": "none"})
    child = ChildProcess(command, log=log, grace_s=8)
    try:
        until(lambda: accepts(ports.grpc), within_s=30)
        yield ports
    finally:
        child.close()


def accepts(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def embedded_shell(environment: ServerEnvironment, arguments: str) -> str:
    exports = "; ".join(f"export {k}='{v}'" for k, v in environment.variables().items())
    flags = f"--backend-directory='{environment.backends}'"
    return f"{exports}; exec '{environment.tritonserver}' {flags} {arguments}"


def script(path: Path, body: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def freeze(pid: int) -> None:
    """Returns when every thread of it has stopped."""
    os.kill(pid, signal.SIGSTOP)
    tasks = Path(f"/proc/{pid}/task")
    until(
        lambda: all(psutil.Process(int(t.name)).status() == "stopped" for t in tasks.iterdir()),
        within_s=5,
    )


def children() -> set[int]:
    return {process.pid for process in psutil.Process().children(recursive=True)}


def shm_prefix(server: int) -> str:
    """How the shared-memory segments of a server's process begin; others run here too."""
    return " ".join(psutil.Process(server).cmdline()).partition("prefix-name=")[2].split()[0]


def segments(prefix: str) -> list[Path]:
    return list(Path("/dev/shm").glob(f"{prefix}*"))


def assert_gone(pids: object, *, within_s: float = 1.0) -> None:
    assert isinstance(pids, list | tuple)
    assert pids
    until(lambda: not any(map(psutil.pid_exists, pids)), within_s=within_s)


def until(condition: Callable[[], bool], *, within_s: float) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)
