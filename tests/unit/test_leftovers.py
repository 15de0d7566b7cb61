"""What is left of an earlier candidate in a server that says it is live."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from autotune.adapters.triton.leftovers import dead, told, unfinished
from autotune.core.model_interface import Endpoint

PAGE = """# HELP nv_inference_pending_request_count Number of requests awaiting execution
# TYPE nv_inference_pending_request_count gauge
nv_inference_pending_request_count{{model="own",version="1"}} {pending}
nv_inference_request_success{{model="own",version="1"}} 8
nv_inference_request_failure{{model="own",reason="BACKEND",version="1"}} {backend}
nv_inference_request_failure{{model="own",reason="REJECTED",version="1"}} {rejected}
"""


@pytest.mark.parametrize(
    ("pending", "backend", "rejected", "expected"),
    [(0, 0, 0, False), (49, 0, 0, True), (0, 3, 0, True), (0, 0, 7, False)],
    ids=["none", "waiting", "failed", "rejected by the queue"],
)
def test_requests_that_wait_or_that_an_instance_failed_are_unfinished(
    pending: int, backend: int, rejected: int, expected: bool
) -> None:
    page = PAGE.format(pending=pending, backend=backend, rejected=rejected)
    assert told(page) is expected


def test_a_server_without_metrics_tells_of_nothing() -> None:
    assert not unfinished(Endpoint(http="127.0.0.1:9", grpc="127.0.0.1:9", metrics_url=None))
    nobody = "http://127.0.0.1:9/metrics"
    assert not unfinished(Endpoint(http="127.0.0.1:9", grpc="127.0.0.1:9", metrics_url=nobody))


def test_a_process_that_has_died_and_is_not_reaped_is_told_from_those_that_run() -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as child:
        assert dead(lambda: [os.getpid(), child.pid]) == []
        child.send_signal(signal.SIGKILL)
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert dead(lambda: [os.getpid(), child.pid]) == [child.pid]


def test_a_process_that_is_gone_at_the_second_look_has_ended_as_it_should() -> None:
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    looks = iter([[child.pid], []])
    assert dead(lambda: next(looks)) == []
    child.wait()
