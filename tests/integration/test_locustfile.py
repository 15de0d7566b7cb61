from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.null_process import null_server

ROOT = Path(__file__).parents[2]


def locust(*options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "locust", "-f", "loadgen/locustfile.py", "--headless"]
    return subprocess.run(
        [*command, "--only-summary", *options],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def host(port: int) -> str:
    return f"http://127.0.0.1:{port}"


def test_the_user_class_runs_by_itself_under_locust():
    with null_server() as server:
        ran = locust(
            *("--host", host(server.port), "--model-name", "null", "--qps", "50"),
            *("--arrival", "constant", "--duration", "1", "--warm-up", "0.2"),
        )
    assert ran.returncode == 0, ran.stderr
    summary = json.loads(ran.stdout.splitlines()[0])
    assert (summary["scheduled"], summary["ok"], summary["errors"]) == (50, 50, {})
    assert summary["latency"]["percentiles_ms"]["95.0"] > 0
    assert "infer" in ran.stderr + ran.stdout  # Locust's own table heard of the requests


def test_the_environment_configures_it_too():
    with null_server("--mode", "503") as server:
        ran = locust(
            *("--host", host(server.port), "--arrival", "constant"),
            LOADGEN_MODEL_NAME="null",
            LOADGEN_QPS="20",
            LOADGEN_DURATION="1",
            LOADGEN_WARM_UP="0",
        )
    assert ran.returncode == 1  # Locust's own code for failed requests
    summary = json.loads(ran.stdout.splitlines()[0])
    assert summary["errors"] == {"http_503": 20}


def test_a_server_that_does_not_answer_is_refused_with_its_address():
    ran = locust("--host", "http://127.0.0.1:9", "--model-name", "null")
    assert ran.returncode == 2
    assert "127.0.0.1:9" in ran.stderr


def test_inputs_that_do_not_fit_the_model_are_refused():
    with null_server() as server:
        ran = locust(
            *("--host", host(server.port), "--model-name", "null"),
            *("--input-shapes", '{"IN": [5]}'),
        )
    assert ran.returncode == 2
    assert "takes the shape [4]" in ran.stderr
