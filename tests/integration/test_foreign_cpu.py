from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from autotune.adapters.telemetry.foreign_cpu import ForeignCpu
from autotune.adapters.telemetry.process_cpu import ProcessCpu
from autotune.adapters.telemetry.sampling import SampledTelemetry
from autotune.core.model_interface import Endpoint

WINDOW_S = 1.5
HOG = """
import os, time
if os.fork():
    os._exit(0)
os.setsid()
print(os.getpid(), flush=True)
os.close(1)
ends = time.monotonic() + 3
while time.monotonic() < ends: pass
"""


@contextmanager
def stranger() -> Iterator[psutil.Process]:
    """A process that keeps a core busy for 3 s at most, and descends from nobody of ours."""
    started = subprocess.run(
        [sys.executable, "-c", HOG], stdout=subprocess.PIPE, text=True, check=True, timeout=20
    )
    hog = psutil.Process(int(started.stdout))
    try:
        yield hog
    finally:
        end(hog)


def end(hog: psutil.Process) -> None:
    """Kill it, and see it gone: a zombie is what it stays where the first process does not reap."""
    with suppress(psutil.NoSuchProcess):
        hog.kill()
        until = time.monotonic() + 10
        while time.monotonic() < until and hog.status() != psutil.STATUS_ZOMBIE:
            time.sleep(0.01)


@pytest.fixture
def server() -> Iterator[subprocess.Popen[bytes]]:
    """Something idle in a server's place."""
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as idle:
        yield idle
        idle.kill()


def test_a_stranger_s_busy_loop_is_seen_as_foreign(
    server: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    # An empty folder of control groups: a quota of the tests' own machine is not the subject.
    telemetry = SampledTelemetry([ProcessCpu()], watches=[ForeignCpu(cgroups=tmp_path)])
    with stranger() as hog:
        telemetry.start([server.pid], Endpoint(http="127.0.0.1:1", grpc="127.0.0.1:2"))
        began, before = time.monotonic(), hog.cpu_times()
        time.sleep(WINDOW_S)
        after, lasted = hog.cpu_times(), time.monotonic() - began
        window = telemetry.stop()
        assert psutil.Process() not in hog.parents()
    used = after.user + after.system - before.user - before.system
    assert used > 0.1
    assert window.foreign_cpu is not None
    assert window.foreign_cpu * len(os.sched_getaffinity(0)) * lasted > 0.6 * used
