"""Pipelines on the real embedded Triton: what a candidate loads, and what the steps then do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import numpy as np
import psutil
import pytest
import tritonclient.grpc
from numpy.typing import NDArray
from tritonclient.utils import InferenceServerException

from autotune.adapters.triton.environment import ServerEnvironment
from autotune.adapters.triton.export import RepositoryExporter
from autotune.adapters.triton.launchers import EmbeddedLauncher
from autotune.adapters.triton.local import LocalServer
from autotune.adapters.triton.remote import RemoteServer, remote_model
from autotune.adapters.triton.repository import (
    ServedModel,
    adapt_for_embedded,
    from_repository,
)
from autotune.core.errors import CandidateFailed
from autotune.core.study import Launch, ServerSpec
from autotune.ports import Server
from search_spaces.candidate import Candidate
from tests.integration.conftest import FAST, double_onnx
from tests.pipelines import put_ensemble, put_step

pytestmark = pytest.mark.server

PLAIN = Candidate({"first.workers": 1})
ROW = np.array([[1, 2, 4]], np.float32)
Started = Callable[[Server], Server]

NATIVE = """
platform: "onnxruntime_onnx" max_batch_size: 8
input [ { name: "x" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ -1 ] } ]
instance_group [ { count: 1 kind: KIND_CPU } ]
"""


@pytest.fixture(scope="module")
def pipe(tmp_path_factory: pytest.TempPathFactory) -> ServedModel:
    """``outer``: ``pipe`` (first, second), then ``third``."""
    folder = tmp_path_factory.mktemp("pipe")
    put_step(folder, "first", "+ 1")
    put_step(folder, "second", "* 2", "dynamic_batching { }")
    put_step(folder, "third", "- 3")
    put_ensemble(folder, "pipe", ["first", "second"])
    put_ensemble(folder, "outer", ["pipe", "third"])
    return from_repository(folder, "outer", folder / "work")


@pytest.fixture(scope="module")
def server(
    server_environment: ServerEnvironment,
    pipe: ServedModel,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[LocalServer]:
    """One for all tests, which leave it alive."""
    launcher = EmbeddedLauncher(lambda: server_environment)
    server = LocalServer(FAST, pipe, launcher, work_dir=tmp_path_factory.mktemp("server"))
    server.start()
    yield server
    server.close()


def test_a_candidate_loads_only_the_models_whose_configuration_it_changes(
    server: LocalServer,
) -> None:
    applied = server.apply(PLAIN)
    assert applied.reloaded == ("first", "second", "pipe", "third", "outer")
    assert (applied.instances, applied.by_step) == (3, {"first": 1, "second": 1, "third": 1})
    np.testing.assert_array_equal(ask(server, ROW), whole(ROW))
    before, served = instances(server), requests(server)
    applied = server.apply(PLAIN.replacing(**{"second.instances": 2, "second.max_batch_size": 16}))
    after = instances(server)
    assert applied.reloaded == ("second",)
    assert (applied.instances, applied.by_step["second"], applied.restarted) == (4, 2, False)
    assert applied.largest_batches == {"first": 1, "second": 16, "third": 1}
    for untouched in ("first", "third"):
        assert after[untouched] == before[untouched]
        assert requests(server)[untouched] == served[untouched] == 1
    assert len(after["second"]) == 2
    assert not after["second"] & before["second"]
    np.testing.assert_array_equal(ask(server, ROW), whole(ROW))


def test_lowering_a_step_lowers_the_pipeline_and_keeps_what_the_others_had(
    server: LocalServer,
) -> None:
    server.apply(PLAIN.replacing(**{"first.workers": 2}))
    lower = {"first.workers": 2, "second.max_batch_size": 2}
    applied = server.apply(PLAIN.replacing(**lower))
    assert set(applied.reloaded) >= {"second", "pipe", "outer"}
    assert applied.by_step["first"] == 2
    two, three = np.repeat(ROW, 2, axis=0), np.repeat(ROW, 3, axis=0)
    np.testing.assert_array_equal(ask(server, two), whole(two))
    with pytest.raises(InferenceServerException, match=r"batch-size must be <= 2"):
        ask(server, three)
    server.apply(PLAIN)
    np.testing.assert_array_equal(ask(server, three), whole(three))


def test_the_window_of_a_pipeline_tells_of_each_step(server: LocalServer) -> None:
    server.apply(
        PLAIN.replacing(**{"second.queue_delay_us": 200_000, "second.preferred_batch_sizes": (8,)})
    )
    ask(server, ROW)
    start = server.mark()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: ask(server, ROW), range(8)))
    window = server.between(start, server.mark())
    assert (window.requests, window.failures, window.batches) == (8, 0, {})
    assert list(window.steps) == ["first", "second", "third"]
    assert {step.requests for step in window.steps.values()} == {8}
    second = window.steps["second"]
    assert sum(size * stat.executions for size, stat in second.batches.items()) == 8
    assert second.executions < 8
    assert window.steps["first"].batches.keys() == {1}
    assert window.queue_ms == pytest.approx(sum(s.queue_ms for s in window.steps.values()))
    assert {name: step.instances for name, step in window.steps.items()} == dict.fromkeys(
        window.steps, 1
    )


def test_a_step_that_does_not_load_fails_the_candidate_and_the_next_one_loads(
    server: LocalServer,
) -> None:
    server.apply(PLAIN)
    broken = {"third.parameters.EXECUTION_ENV_PATH": "/nowhere.tar.gz"}
    with pytest.raises(CandidateFailed, match="third"):
        server.apply(PLAIN.replacing(**broken))
    assert server.alive()
    assert not server.apply(PLAIN.replacing(**{"first.workers": 2})).restarted
    np.testing.assert_array_equal(ask(server, ROW), whole(ROW))


def test_a_pipeline_on_a_remote_server_is_tuned_and_left_as_it_was_found(
    server: LocalServer, pipe: ServedModel, tmp_path: Path
) -> None:
    server.apply(PLAIN.replacing(**{"second.max_batch_size": 4}))
    spec = ServerSpec(
        launch=Launch.REMOTE,
        http=server.endpoint.http,
        grpc=server.endpoint.grpc,
        load_timeout_s=30,
    )
    model = remote_model(spec, "outer", tmp_path)
    assert list(model.composing) == list(pipe.composing)
    found = sizes(server)
    assert found["outer"] == found["pipe"] == found["second"] == 4
    with closing(RemoteServer(spec, model)) as far:
        lower = {"third.instances": 2, "second.max_batch_size": 2}
        assert far.apply(PLAIN.replacing(**lower)).by_step["third"] == 2
        assert sizes(server)["outer"] == 2
        np.testing.assert_array_equal(ask(server, ROW), whole(ROW))
    assert sizes(server) == found
    np.testing.assert_array_equal(ask(server, ROW), whole(ROW))


def test_a_pipeline_with_a_native_step_is_served_and_its_export_loads_strictly(
    server_environment: ServerEnvironment, tmp_path: Path, started: Started
) -> None:
    models = tmp_path / "models"
    put_step(models, "decode", "+ 1")
    double_onnx(models / "double" / "1" / "model.onnx")
    (models / "double" / "config.pbtxt").write_text(NATIVE)
    put_ensemble(models, "outer", ["decode", "double"])
    given = from_repository(models, "outer", tmp_path / "work")
    model = adapt_for_embedded(given, tmp_path / "work")
    candidate = Candidate({"decode.workers": 2, "double.max_batch_size": 4})

    def serve(what: ServedModel, *, strict: bool) -> Server:
        launcher = EmbeddedLauncher(lambda: server_environment)
        folder = tmp_path / ("strict" if strict else "tuned")
        return started(LocalServer(FAST, what, launcher, work_dir=folder, strict=strict))

    tuned = serve(model, strict=False)
    assert tuned.apply(candidate).by_step == {"decode": 2, "double": 1}
    np.testing.assert_array_equal(ask(tuned, ROW), (ROW + 1) * 2)
    tuned.close()

    exporter = RepositoryExporter(
        model,
        lambda repository, name: serve(
            from_repository(repository, name, tmp_path / "again"), strict=True
        ),
        workdir=tmp_path / "exporting",
    )
    exporter.write(candidate, tmp_path / "out", "s", [])
    strict = exporter.strict_server(tmp_path / "out")
    applied = strict.apply(candidate)
    assert applied.by_step == {"decode": 2, "double": 1}
    assert applied.largest_batches["double"] == 4
    np.testing.assert_array_equal(ask(strict, ROW), (ROW + 1) * 2)
    with pytest.raises(InferenceServerException, match="batch-size must be <= 4"):
        ask(strict, np.repeat(ROW, 5, axis=0))


# ---------------------------------------------------------------------------------------- helpers
def whole(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    return ((rows + 1) * 2) - 3


def ask(server: Server, rows: NDArray[np.float32]) -> NDArray[np.generic]:
    with closing(tritonclient.grpc.InferenceServerClient(server.endpoint.grpc)) as client:
        tensor = tritonclient.grpc.InferInput("x", rows.shape, "FP32")
        tensor.set_data_from_numpy(rows)
        answer: NDArray[np.generic] = client.infer("outer", [tensor]).as_numpy("y")
        return answer


def sizes(server: Server) -> dict[str, int]:
    names = ("first", "second", "pipe", "third", "outer")
    with closing(tritonclient.grpc.InferenceServerClient(server.endpoint.grpc)) as client:
        return {name: client.get_model_config(name).config.max_batch_size for name in names}


def requests(server: Server) -> dict[str, int]:
    with closing(tritonclient.grpc.InferenceServerClient(server.endpoint.grpc)) as client:
        models = client.get_inference_statistics().model_stats
        return {model.name: model.inference_stats.success.count for model in models}


def instances(server: Server) -> dict[str, set[int]]:
    """The processes of each step's instances, by the model's file that they were started with."""
    found: dict[str, set[int]] = {}
    for pid in server.pids()[1:]:
        words = psutil.Process(pid).cmdline()
        file = next((word for word in words if word.endswith("/model.py")), None)
        if file is not None:
            found.setdefault(Path(file).parent.parent.name, set()).add(pid)
    return found
