"""examples/emulated on the embedded Triton: what it takes time for, and what it says of it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc
from numpy.typing import NDArray

from autotune.adapters.telemetry import choose
from autotune.adapters.telemetry.emulated import told
from autotune.adapters.telemetry.triton_metrics import read_page
from autotune.adapters.triton.environment import ServerEnvironment
from autotune.adapters.triton.launchers import EmbeddedLauncher
from autotune.adapters.triton.local import LocalServer
from autotune.adapters.triton.repository import from_repository
from autotune.core.measurement import TelemetryWindow
from search_spaces.candidate import Candidate
from tests.integration.conftest import FAST

pytestmark = pytest.mark.server

MODELS = Path(__file__).parents[2] / "examples" / "emulated" / "models"
DEVICE = Candidate(
    {
        "max_batch_size": 4,
        "instances": 2,
        "parameters.batch_ms": "1:50, 3:90",
        "parameters.device": f"test-{os.getpid()}",
        "parameters.jitter": "0",
    }
)
WORKERS = Candidate(
    {
        "max_batch_size": 1,
        "instances": 4,
        "parameters.batch_ms": None,
        "parameters.work_ms": "300",
        "parameters.jitter": "0",
    }
)


@pytest.fixture(scope="module")
def server(
    server_environment: ServerEnvironment, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LocalServer]:
    folder = tmp_path_factory.mktemp("emulated")
    model = from_repository(MODELS, "accelerator", folder)
    launcher = EmbeddedLauncher(lambda: server_environment)
    server = LocalServer(FAST, model, launcher, work_dir=folder)
    server.start()
    server.apply(DEVICE)
    yield server
    server.close()


def test_instances_share_the_device_and_say_how_long_it_was_held(server: LocalServer) -> None:
    before_s = held_s(server)
    took_s, window = timed(server, requests=40, at_once=8)
    busy_s = held_s(server) - before_s
    assert 0.5 < busy_s <= took_s + 0.05  # the request that opened the connection came before
    assert window.source == "emulated"
    assert window.utilization == pytest.approx(busy_s / took_s, abs=0.08)
    assert (window.memory_source or "").startswith("process_")


def test_a_batch_holds_the_device_for_the_time_of_the_table(server: LocalServer) -> None:
    for batch, ms in ((1, 50), (2, 70), (4, 110)):
        before_s = held_s(server)
        took_s, _ = timed(server, requests=5, at_once=1, batch=batch)
        assert held_s(server) - before_s == pytest.approx(6 * ms / 1e3)
        assert took_s >= 5 * ms / 1e3


def test_workers_work_side_by_side_and_no_device_is_told_of(server: LocalServer) -> None:
    server.apply(WORKERS)
    tries = [timed(server, requests=8, at_once=4) for _ in range(3)]  # others may be at work, too
    assert 2 * 0.3 <= min(took_s for took_s, _ in tries) < 8 * 0.3
    assert {window.source for _, window in tries}.isdisjoint({"emulated"})


def held_s(server: LocalServer) -> float:
    url = server.endpoint.metrics_url
    assert url is not None
    return told(read_page(url))[1]


def timed(
    server: LocalServer, *, requests: int, at_once: int, batch: int = 1
) -> tuple[float, TelemetryWindow]:
    """Seconds that so many requests took, after one that opens the connection, and what was seen
    of the device meanwhile. Each answer is its own request's input."""
    telemetry = choose(remote=False, interval_s=0.05)
    with (
        closing(tritonclient.grpc.InferenceServerClient(server.endpoint.grpc)) as client,
        ThreadPoolExecutor(at_once) as pool,
    ):

        def ask(number: int) -> None:
            row = np.full((batch, 128), number, np.float32)
            np.testing.assert_array_equal(answer(client, row), row)

        ask(-1)
        telemetry.start(server.pids(), server.endpoint)
        began = time.monotonic()
        list(pool.map(ask, range(requests)))
        took_s = time.monotonic() - began
        return took_s, telemetry.stop()


def answer(
    client: tritonclient.grpc.InferenceServerClient, row: NDArray[np.float32]
) -> NDArray[np.generic]:
    tensor = tritonclient.grpc.InferInput("X", row.shape, "FP32")
    tensor.set_data_from_numpy(row)
    found: NDArray[np.generic] = client.infer("accelerator", [tensor]).as_numpy("Y")
    return found
