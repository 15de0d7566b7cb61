"""Exports and the output check, with the real embedded Triton."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
from tritonclient.utils import InferenceServerException

from autotune.adapters.triton.environment import ServerEnvironment
from autotune.adapters.triton.export import RepositoryExporter
from autotune.adapters.triton.launchers import EmbeddedLauncher
from autotune.adapters.triton.local import LocalServer
from autotune.adapters.triton.ports import free_ports
from autotune.adapters.triton.process import ChildProcess
from autotune.adapters.triton.reference import BasicOutputCheck, OnnxOutputCheck
from autotune.adapters.triton.repository import (
    ServedModel,
    adapt_for_embedded,
    from_onnx,
    from_repository,
)
from autotune.core.errors import OutputsDiffer
from autotune.core.model_interface import Sample
from autotune.ports import ExportFile, Server
from search_spaces.candidate import Candidate
from tests import onnx_models
from tests.integration.conftest import FAST

pytestmark = pytest.mark.server

PICK = Candidate(
    {
        "max_batch_size": 8,
        "queue_delay_us": 20_000,
        "instances": 2,
        "parameters.intra_op_threads": 1,
    }
)
Started = Callable[[Server], Server]


def samples(width: int = 4, count: int = 6) -> list[Sample]:
    rng = np.random.default_rng(3)
    return [{"x": rng.normal(size=width).astype("float32")} for _ in range(count)]


@pytest.fixture
def serve(
    server_environment: ServerEnvironment, started: Started, tmp_path: Path
) -> Callable[..., Server]:
    def make(model: ServedModel, *, strict: bool = False) -> Server:
        launcher = EmbeddedLauncher(lambda: server_environment)
        log = tmp_path / ("strict" if strict else "tuned")
        server = LocalServer(FAST, model, launcher, work_dir=log, strict=strict)
        server.start()
        return started(server)

    return make


@pytest.fixture
def exporter(
    server_environment: ServerEnvironment, tmp_path: Path
) -> Callable[[ServedModel], RepositoryExporter]:
    def make(model: ServedModel) -> RepositoryExporter:
        def strict(repository: Path, name: str) -> Server:
            exported = from_repository(repository, name, tmp_path / "again")
            launcher = EmbeddedLauncher(lambda: server_environment)
            return LocalServer(FAST, exported, launcher, work_dir=tmp_path / "strict", strict=True)

        return RepositoryExporter(model, strict, workdir=tmp_path / "exporting")

    return make


@contextmanager
def whole_directory(
    environment: ServerEnvironment, repository: Path, log: Path
) -> Iterator[triton_grpc.InferenceServerClient]:
    """A server as a user would start it: every directory is loaded, nothing is completed."""
    ports = free_ports()
    flags = {"model-control-mode": "none", "disable-auto-complete-config": ""}
    command = EmbeddedLauncher(lambda: environment).command(repository, ports, flags)
    child = ChildProcess(command, log=log, nice=5, grace_s=5)
    try:
        with triton_grpc.InferenceServerClient(ports.endpoint.grpc) as client:
            wait_until_ready(client, child, log)
            yield client
    finally:
        child.close()


def wait_until_ready(
    client: triton_grpc.InferenceServerClient, child: ChildProcess, log: Path
) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        assert child.running(), log.read_text()
        try:
            if client.is_server_ready(client_timeout=2):
                return
        except InferenceServerException:
            pass
        time.sleep(0.1)
    pytest.fail(log.read_text())


def test_an_export_loads_whole_and_strictly_as_a_user_would_start_it(
    server_environment: ServerEnvironment,
    exporter: Callable[[ServedModel], RepositoryExporter],
    tmp_path: Path,
) -> None:
    model = from_onnx(onnx_models.linear(tmp_path / "l.onnx"), "linear", tmp_path / "built")
    out = tmp_path / "out"
    exporter(model).write(PICK, out, "s", [ExportFile(name="report.html", text="<html>")])
    with whole_directory(server_environment, out, tmp_path / "server.log") as client:
        index = client.get_model_repository_index().models
        assert [(each.name, each.state) for each in index] == [("linear", "READY")]
        config = client.get_model_config("linear").config
        assert config.max_batch_size == 8
        assert config.instance_group[0].count == 2
        assert config.dynamic_batching.max_queue_delay_microseconds == 20_000
        # Left unset in the file: Triton sets it on every load, without auto-completion too.
        assert list(config.dynamic_batching.preferred_batch_size) == [8]


def test_the_strict_server_over_an_export_answers_as_the_model_does(
    exporter: Callable[[ServedModel], RepositoryExporter], started: Started, tmp_path: Path
) -> None:
    model = from_onnx(onnx_models.linear(tmp_path / "l.onnx"), "linear", tmp_path / "built")
    one = exporter(model)
    one.write(PICK, tmp_path / "out", "s", [])
    server = started(one.strict_server(tmp_path / "out"))
    server.start()
    assert server.apply(PICK).instances == 2
    assert model.onnx is not None
    line = OnnxOutputCheck(model.onnx).check(server.endpoint, server.interface(), samples())
    assert "12 answers" in line


def test_requests_that_the_batcher_joins_are_compared_too(
    serve: Callable[..., Server], tmp_path: Path
) -> None:
    file = onnx_models.linear(tmp_path / "l.onnx")
    model = from_onnx(file, "linear", tmp_path / "built")
    server = serve(model)
    server.apply(Candidate({"max_batch_size": 8, "queue_delay_us": 100_000}))
    start = server.mark()
    OnnxOutputCheck(file).check(server.endpoint, server.interface(), samples())
    window = server.between(start, server.mark())
    assert max(window.batches) > 1


def test_an_output_without_dimensions_is_served_and_compared(
    serve: Callable[..., Server], tmp_path: Path
) -> None:
    file = onnx_models.row_sum(tmp_path / "s.onnx")
    server = serve(from_onnx(file, "sum", tmp_path / "built"))
    server.apply(Candidate({"max_batch_size": 4}))
    assert OnnxOutputCheck(file).check(server.endpoint, server.interface(), samples())


def test_a_native_onnx_model_is_tuned_through_the_runner_and_its_export_confirmed(
    exporter: Callable[[ServedModel], RepositoryExporter],
    serve: Callable[..., Server],
    started: Started,
    tmp_path: Path,
) -> None:
    source = tmp_path / "models" / "linear" / "1"
    source.mkdir(parents=True)
    onnx_models.linear(source / "model.onnx")
    native = from_repository(tmp_path / "models", "linear", tmp_path / "work")
    model = adapt_for_embedded(native, tmp_path / "work")
    server = serve(model)
    server.apply(PICK)
    assert model.onnx is not None
    OnnxOutputCheck(model.onnx).check(server.endpoint, server.interface(), samples())
    one = exporter(model)
    config = one.write(PICK, tmp_path / "out", "s", [])
    assert 'backend: "onnxruntime"' in config.read_text()
    strict = started(one.strict_server(tmp_path / "out"))
    strict.start()
    strict.apply(PICK)
    OnnxOutputCheck(model.onnx).check(strict.endpoint, strict.interface(), samples())


CORRUPT = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
            x = {damage}
            w = (np.arange(12).reshape(4, 3) / 7).astype("float32")
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("y", x @ w + 1)]))
        return answers
"""


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        ("x", ""),
        ("np.full_like(x, x.flat[0])", "where the model run directly gives"),
        ("np.full_like(x, 7)", "where the model run directly gives"),
        ("x[:0]", r"the server's shape is \(0, 3\)"),
    ],
)
def test_a_backend_that_misreads_its_inputs_is_caught_before_any_timing(
    serve: Callable[..., Server], tmp_path: Path, damage: str, words: str
) -> None:
    file = onnx_models.linear(tmp_path / "l.onnx")
    model = from_onnx(file, "linear", tmp_path / "built")
    (model.source / "1" / "model.py").write_text(CORRUPT.replace("{damage}", damage))
    server = serve(model)
    server.apply(Candidate({"max_batch_size": 1}))
    reference = OnnxOutputCheck(file)
    if not words:
        assert reference.check(server.endpoint, server.interface(), samples())
        assert BasicOutputCheck().check(server.endpoint, server.interface(), samples())
        return
    with pytest.raises(OutputsDiffer, match=words):
        reference.check(server.endpoint, server.interface(), samples())
    if "x[:0]" in damage or "7" in damage:
        with pytest.raises(OutputsDiffer):
            BasicOutputCheck().check(server.endpoint, server.interface(), samples())
