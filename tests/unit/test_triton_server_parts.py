"""The pure parts of the Server adapters: statistics, ports, flags, errors, processes."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import model_config_pb2, service_pb2

from autotune.adapters.triton import control, statistics
from autotune.adapters.triton.launchers import arguments, refuse_reserved
from autotune.adapters.triton.ports import Ports, fixed_ports, free_ports
from autotune.adapters.triton.process import ChildProcess, Command, tail
from autotune.core.errors import CandidateFailed, InputRefused, ServerCrashed, ServerFailed
from autotune.core.measurement import BatchStat

MS = 1_000_000


# -------------------------------------------------------------------------------------- statistics
def reading(
    requests: int, *, failures: int = 0, queue_ms: int = 0, batches: dict[int, tuple[int, int]]
) -> statistics.Mark:
    """``batches``: size → (executions, infer ms in all)."""
    response = service_pb2.ModelStatisticsResponse()
    version = response.model_stats.add()
    version.execution_count = sum(count for count, _ in batches.values())
    version.inference_stats.success.count = requests
    version.inference_stats.fail.count = failures
    version.inference_stats.queue.count = requests
    version.inference_stats.queue.ns = queue_ms * MS
    for size, (count, infer_ms) in batches.items():
        batch = version.batch_stats.add(batch_size=size)
        for name, ms in (("compute_input", 1), ("compute_infer", infer_ms), ("compute_output", 2)):
            getattr(batch, name).count = count
            getattr(batch, name).ns = ms * MS
    return statistics.read(response)


def test_a_window_is_the_difference_of_two_readings_with_times_per_request() -> None:
    start = reading(10, queue_ms=100, batches={1: (10, 40)})
    end = reading(30, failures=2, queue_ms=160, batches={1: (14, 60), 8: (2, 37)})
    window = statistics.between(start, end)
    assert (window.requests, window.failures, window.executions) == (20, 2, 6)
    assert window.queue_ms == pytest.approx(3.0)
    assert window.batches == {
        1: BatchStat(executions=4, compute_ms=20 / 4),
        8: BatchStat(executions=2, compute_ms=40 / 2),
    }
    assert window.mean_batch == pytest.approx((4 + 16) / 6)


def test_versions_of_a_model_are_summed() -> None:
    response = service_pb2.ModelStatisticsResponse()
    for version in ("1", "2"):
        response.model_stats.add(version=version).inference_stats.success.count = 5
    assert statistics.between(statistics.Mark({}), statistics.read(response)).requests == 10


def test_an_idle_window_has_zeros_and_no_batches() -> None:
    mark = reading(10, queue_ms=100, batches={1: (10, 40)})
    window = statistics.between(mark, mark)
    assert (window.requests, window.queue_ms, window.batches, window.mean_batch) == (0, 0, {}, None)


def test_counters_that_went_back_are_no_measurement() -> None:
    start = reading(10, batches={1: (10, 40)})
    with pytest.raises(ServerFailed, match="began anew"):
        statistics.between(start, reading(3, batches={1: (3, 12)}))


counters = st.dictionaries(st.sampled_from([1, 2, 4, 8]), st.integers(1, 1000), min_size=1)


@given(first=counters, more=counters)
def test_windows_add_up(first: dict[int, int], more: dict[int, int]) -> None:
    nothing = statistics.Mark({})

    def upto(batches: dict[int, int]) -> statistics.Mark:
        requests = sum(size * count for size, count in batches.items())
        return reading(requests, batches={k: (n, n) for k, n in batches.items()})

    both = {size: first.get(size, 0) + more.get(size, 0) for size in {*first, *more}}
    early = statistics.between(nothing, upto(first))
    late = statistics.between(upto(first), upto(both))
    whole = statistics.between(nothing, upto(both))
    assert early.requests + late.requests == whole.requests
    assert early.executions + late.executions == whole.executions


# --------------------------------------------------------------------------------------- interface
def test_an_unbatched_interface_keeps_its_shapes_and_says_what_is_optional() -> None:
    metadata = service_pb2.ModelMetadataResponse(name="m")
    metadata.inputs.add(name="x", datatype="FP32", shape=[2, -1])
    config = model_config_pb2.ModelConfig(max_batch_size=0)
    config.input.add(name="x", optional=True)
    found = control.interface(metadata, config)
    assert not found.batched
    assert (found.inputs[0].shape, found.inputs[0].optional) == ((2, -1), True)


# ------------------------------------------------------------------------------------------- ports
def test_free_ports_are_three_that_can_be_bound() -> None:
    ports = free_ports()
    numbers = (ports.http, ports.grpc, ports.metrics)
    assert len(set(numbers)) == 3
    assert fixed_ports(numbers) == ports


def test_a_port_in_use_is_refused_by_its_name_and_number() -> None:
    ports = free_ports()
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", ports.metrics))
        holder.listen()
        with pytest.raises(InputRefused, match=f"the metrics port {ports.metrics} "):
            fixed_ports((ports.http, ports.grpc, ports.metrics))


def test_a_number_that_is_no_port_is_refused() -> None:
    with pytest.raises(InputRefused, match="between 1 and 65535"):
        fixed_ports((8000, 70_000, 8002))


# ------------------------------------------------------------------------------------------- flags
PORTS = Ports(http=1, grpc=2, metrics=3)


def test_a_server_is_bound_to_loopback_in_explicit_mode() -> None:
    given = arguments("/models", PORTS, {"log_verbose": "1", "bare": ""})
    assert "--model-control-mode=explicit" in given
    assert {"--http-address=127.0.0.1", "--grpc-address=127.0.0.1"} < set(given)
    assert {"--log-verbose=1", "--bare"} < set(given)


@pytest.mark.parametrize("flag", ["http-port", "model_repository", "--grpc-address", "id"])
def test_a_flag_that_is_autotunes_own_is_refused(flag: str) -> None:
    with pytest.raises(InputRefused, match="autotune's own"):
        refuse_reserved({flag: "x"})


# --------------------------------------------------------------------------------------- processes
def run(tmp_path: Path, code: str, *, grace_s: float = 5.0, shm_prefix: str = "") -> ChildProcess:
    command = Command(argv=[sys.executable, "-u", "-c", code], shm_prefix=shm_prefix)
    return ChildProcess(command, log=tmp_path / "log", nice=3, grace_s=grace_s)


def wait_for(log: Path, text: str) -> str:
    deadline = time.monotonic() + 20
    while text not in (found := tail(log, 50)):
        assert time.monotonic() < deadline, found
        time.sleep(0.02)
    return found


def assert_gone(pids: list[int]) -> None:
    assert pids
    assert not any(map(psutil.pid_exists, pids))


SLEEP = "import time; print('up'); time.sleep(60)"
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + SLEEP
PARENT = (
    "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import time;"
    " time.sleep(60)'], start_new_session=True); " + SLEEP
)


def test_a_child_is_nicer_and_logs_to_its_file(tmp_path: Path) -> None:
    child = run(tmp_path, SLEEP)
    wait_for(child.log, "up")
    (pid,) = child.pids()
    assert psutil.Process(pid).nice() == min(19, psutil.Process().nice() + 3)
    child.close()
    assert_gone([pid])
    assert "SIGTERM" in child.ending()


@pytest.mark.skipif(
    not Path("/proc/self/autogroup").exists(), reason="this kernel does not group by session"
)
def test_a_child_steps_back_before_other_sessions_too(tmp_path: Path) -> None:
    child = run(tmp_path, SLEEP)
    wait_for(child.log, "up")
    (pid,) = child.pids()
    group = Path(f"/proc/{pid}/autogroup").read_text()
    child.close()
    assert group.split()[-2:] == ["nice", "3"]


def test_a_child_that_ignores_sigterm_is_killed_after_its_grace(tmp_path: Path) -> None:
    child = run(tmp_path, STUBBORN, grace_s=0.3)
    wait_for(child.log, "up")
    pids = child.pids()
    child.close()
    assert_gone(pids)
    assert "SIGKILL" in child.ending()


ASKS = f"""
import sys, time
from pathlib import Path
from autotune.adapters.triton.process import ChildProcess, Command
command = Command(argv=[sys.executable, "-u", "-c", {STUBBORN!r}])
child = ChildProcess(command, log=Path(sys.argv[1]), grace_s=3600, orphaned_s=0.2)
time.sleep(60)
"""


def test_a_child_whose_parent_is_killed_has_a_grace_of_its_own(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", ASKS, str(tmp_path / "log")]) as parent:
        wait_for(tmp_path / "log", "up")
        left = psutil.Process(parent.pid).children(recursive=True)
        parent.kill()
    assert len(left) == 2
    assert psutil.wait_procs(left, timeout=20)[1] == []


def test_a_grandchild_in_a_session_of_its_own_does_not_escape(tmp_path: Path) -> None:
    child = run(tmp_path, PARENT)
    wait_for(child.log, "up")
    pids = child.pids()
    assert len(pids) == 2
    os.kill(pids[0], signal.SIGKILL)
    deadline = time.monotonic() + 20
    while child.running() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert_gone(pids)
    assert child.ending() == "was ended by SIGKILL"
    assert child.ended_by is signal.SIGKILL


def test_shared_memory_of_its_prefix_is_removed_and_no_other(tmp_path: Path) -> None:
    prefix = f"autotune_test_{os.getpid()}_"
    mine, other = Path("/dev/shm", prefix + "a"), Path("/dev/shm", "not_" + prefix)
    for segment in (mine, other):
        segment.touch()
    try:
        child = run(tmp_path, "pass", shm_prefix=prefix)
        deadline = time.monotonic() + 20
        while child.running() and time.monotonic() < deadline:
            time.sleep(0.02)
        assert (mine.exists(), other.exists()) == (False, True)
    finally:
        mine.unlink(missing_ok=True)
        other.unlink()


def test_a_command_that_cannot_be_run_ends_with_the_reason_in_the_log(tmp_path: Path) -> None:
    child = ChildProcess(Command(argv=[str(tmp_path / "absent")]), log=tmp_path / "log")
    text = wait_for(child.log, "No such file")
    assert "absent" in text
    child.close()


def test_the_tail_of_a_log_is_its_last_lines(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert tail(log, 3) == ""
    log.write_text("".join(f"{n}\n" for n in range(10)))
    assert tail(log, 2) == "8\n9"
    assert tail(log, 9, since=16) == "8\n9"


def test_of_a_line_that_never_ends_the_tail_is_its_end(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"x" * 1_000_000 + b"end")
    last = tail(log, 1)
    assert last.endswith("end")
    assert len(last) < 500_000


# --------------------------------------------------------------------------- what Triton refuses
def test_a_module_that_is_missing_is_told_with_where_to_name_it():
    said = (
        "load failed: Internal: ModuleNotFoundError: No module named 'cv2'\n\nAt:\n"
        "  /models/decode/1/model.py(1): <module>\n"
        "  <frozen importlib._bootstrap>(241): _call_with_frames_removed\n;"
    )
    failed = control.not_loaded(control.Refused("refused", value=said), "a")
    assert failed.rule == (
        "the server cannot load a: load failed: Internal: ModuleNotFoundError: No module named"
        " 'cv2'\n  /models/decode/1/model.py(1): <module>"
    )
    assert "no module cv2: name its package in the file of server.requirements" in str(failed)


def test_what_else_a_server_refuses_is_told_as_it_says_it():
    failed = control.not_loaded(control.Refused("refused", value="no such input"), "a")
    assert str(failed) == "the server cannot load a: no such input"


@pytest.mark.parametrize(
    ("said", "memory", "kind"),
    [
        ("load failed: Stub process 'm_0_0' is not healthy.", "", ServerCrashed),
        ("Failed to initialize stub, stub process exited unexpectedly: m_0_0", "", ServerCrashed),
        ("Stub process 'm_0_0' is not healthy.", "its log: std::bad_alloc", CandidateFailed),
        ("unable to find 'healthy.onnx' for model 'm'", "", CandidateFailed),
    ],
)
def test_a_stub_that_is_gone_is_a_crash_unless_memory_ran_out(
    said: str, memory: str, kind: type[ServerFailed]
) -> None:
    failed = control.not_loaded(control.Refused("refused", value=said), "a", memory)
    assert type(failed) is kind
