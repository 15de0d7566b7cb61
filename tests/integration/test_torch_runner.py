"""The PyTorch runner in the real Python backend. Most of it wants PyTorch in the Python of the
tests, as `test_torch_build` does; the server is then let see it."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from autotune.adapters.triton.environment import ServerEnvironment, make_virtualenv
from autotune.adapters.triton.export import RepositoryExporter
from autotune.adapters.triton.launchers import EmbeddedLauncher
from autotune.adapters.triton.local import LocalServer
from autotune.adapters.triton.reference import TorchOutputCheck
from autotune.adapters.triton.repository import (
    ServedModel,
    adapt_for_embedded,
    from_repository,
)
from autotune.adapters.triton.runners import EmbeddedHost
from autotune.adapters.triton.server_python import of_environment
from autotune.core.errors import CandidateFailed, InputRefused
from search_spaces.candidate import Candidate
from tests.integration.conftest import FAST, made_apart
from tests.integration.test_runner import infer
from tests.pipelines import put_ensemble, put_step

TORCH = importlib.util.find_spec("torch")
pytestmark = pytest.mark.server
with_torch = pytest.mark.skipif(TORCH is None, reason="torch is not installed (the extra `torch`)")
AS_FOUND = Candidate({})

MAKE_MODELS = """
    import sys, torch
    from torch import Tensor, nn

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.head = nn.Conv2d(3, 8, 3), nn.Linear(8, 5)
        def forward(self, image: Tensor, bias: Tensor):
            x = torch.relu(self.conv(image)).mean(dim=[2, 3])
            y = self.head(x) + bias
            return y, y.argmax(dim=1)

    class Same(nn.Module):
        def forward(self, a: Tensor, b: Tensor, c: Tensor, d: Tensor, e: Tensor, f: Tensor):
            return a, b, c, d, e, f

    class Pick(nn.Module):
        def forward(self, x: Tensor, idx: Tensor):
            return x.gather(1, idx)

    class Twice(nn.Module):
        def forward(self, x: Tensor):
            return 2 * x

    torch.manual_seed(1)
    torch.jit.script(Twice()).save(sys.argv[1] + "/twice.pt")
    net = Net().eval()
    torch.jit.script(net).save(sys.argv[1] + "/net.pt")
    torch.jit.script(Same()).save(sys.argv[1] + "/same.pt")
    torch.jit.script(Pick()).save(sys.argv[1] + "/pick.pt")
    example = (torch.zeros(2, 3, 16, 16), torch.zeros(2, 5))
    batch = torch.export.Dim("batch", min=1, max=64)
    free = torch.export.export(net, example, dynamic_shapes=({0: batch}, {0: batch}))
    torch.export.save(free, sys.argv[1] + "/net.pt2")
"""
NET = """
input [ { name: "image" data_type: TYPE_FP32 dims: [ 3, 16, 16 ] },
        { name: "bias" data_type: TYPE_FP32 dims: 5 } ]
output [ { name: "y__0" data_type: TYPE_FP32 dims: 5 },
         { name: "best__1" data_type: TYPE_INT64 dims: 1 reshape { shape: [ ] } } ]
"""
PICK = """
input [ { name: "x" data_type: TYPE_FP32 dims: 3 }, { name: "idx" data_type: TYPE_INT64 dims: 1 } ]
output [ { name: "OUTPUT__0" data_type: TYPE_FP32 dims: 1 } ]
"""
BATCHING = "max_batch_size: 8 dynamic_batching { max_queue_delay_microseconds: 500000 }"
TYPES = ("FP32", "FP16", "FP64", "INT64", "UINT8", "BOOL")
ROWS = [
    np.array([[1.5, -2, 3], [0, 1, 2]], np.float32),
    np.array([[0.5, -0.25, 8], [0, 1, 2]], np.float16),
    np.array([[1e300, -2, 3], [0, 1, 2]], np.float64),
    np.array([[2**40, -1, 3], [0, 1, 2]], np.int64),
    np.array([[255, 0, 1], [0, 1, 2]], np.uint8),
    np.array([[True, False, True], [True, True, False]]),
]

Serve = Callable[..., LocalServer]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_apart(tmp_path_factory.mktemp("torch-models"), MAKE_MODELS)


@pytest.fixture(scope="module")
def seeing(
    server_environment: ServerEnvironment, tmp_path_factory: pytest.TempPathFactory
) -> ServerEnvironment:
    """The server's environment, which also sees the PyTorch of this Python."""
    assert TORCH is not None
    assert TORCH.origin is not None
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    own = server_environment.root / "lib" / version / "site-packages"
    if not own.is_dir():
        pytest.skip(f"the server's Python is another than the {version} that has torch")
    root = tmp_path_factory.mktemp("seeing") / "environment"
    make_virtualenv(root, server_environment.python)
    packages = f"{own}\n{Path(TORCH.origin).parents[1]}\n"
    (root / "lib" / version / "site-packages" / "seen.pth").write_text(packages)
    return replace(server_environment, root=root)


@pytest.fixture(scope="module")
def serve(seeing: ServerEnvironment, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve]:
    """Serves a file under a configuration, adapted; one server at a time, ended with the module."""
    running: list[LocalServer] = []

    def make(file: Path, config: str) -> LocalServer:
        while running:
            running.pop().close()
        folder = tmp_path_factory.mktemp("served")
        model = adapted(folder, file, config, EmbeddedHost(python=lambda: of_environment(seeing)))
        server = LocalServer(FAST, model, EmbeddedLauncher(lambda: seeing), work_dir=folder)
        running.append(server)
        server.apply(AS_FOUND)
        return server

    yield make
    while running:
        running.pop().close()


def adapted(folder: Path, file: Path, config: str, host: EmbeddedHost) -> ServedModel:
    version = folder / "models" / "m" / "1"
    version.mkdir(parents=True)
    (version / f"model{file.suffix}").write_bytes(file.read_bytes())
    (version.parent / "config.pbtxt").write_text(f'backend: "pytorch" {config}')
    native = from_repository(folder / "models", "m", folder / "work")
    return adapt_for_embedded(native, folder / "work", host=host)


def samples() -> list[dict[str, Any]]:
    random = np.random.default_rng(3)
    return [
        {
            "image": random.normal(size=(3, 16, 16)).astype("f4"),
            "bias": random.normal(size=5).astype("f4"),
        }
        for _ in range(4)
    ]


# --------------------------------------------------------------------------------- with PyTorch
@with_torch
@pytest.mark.parametrize("name", ["net.pt", "net.pt2"])
def test_served_answers_are_those_of_the_file_run_directly(
    serve: Serve, files: Path, seeing: ServerEnvironment, name: str
) -> None:
    server = serve(files / name, BATCHING + NET)
    model = server._model
    assert model.torch is not None
    check = TorchOutputCheck(
        file=model.torch, config=model.config, python=lambda: of_environment(seeing)
    )
    line = check.check(server.endpoint, server.interface(), samples())
    assert f"match model{Path(name).suffix} run directly by PyTorch" in line
    assert "on the CPU" in line


@with_torch
def test_every_datatype_comes_back_as_it_went(serve: Serve, files: Path) -> None:
    ins = [
        f"{{ name: '{n}' data_type: TYPE_{t} dims: 3 }}"
        for n, t in zip("abcdef", TYPES, strict=True)
    ]
    outs = [f"{{ name: 'o__{i}' data_type: TYPE_{t} dims: 3 }}" for i, t in enumerate(TYPES)]
    config = f"max_batch_size: 4 input [ {', '.join(ins)} ] output [ {', '.join(outs)} ]"
    server = serve(files / "same.pt", config)
    for _ in range(20):
        output = infer(server, dict(zip("abcdef", ROWS, strict=True)))
        for index, rows in enumerate(ROWS):
            np.testing.assert_array_equal(output(f"o__{index}"), rows, err_msg=TYPES[index])
    assert "PyCapsule" not in server.log_tail(1000)


@with_torch
def test_requests_of_one_batch_get_their_own_rows_and_a_bad_one_fails_alone(
    serve: Serve, files: Path
) -> None:
    server = serve(files / "pick.pt", BATCHING + PICK)

    def pick(index: int) -> float | Exception:
        row, idx = np.array([[10, 11, 12]], np.float32), np.array([[index]], np.int64)
        try:
            return float(infer(server, {"x": row, "idx": idx})("OUTPUT__0")[0, 0])
        except InferenceServerException as error:
            return error

    start = server.mark()
    indices = [0, 1, 2, 99, 0, 1, 2, 0]
    with ThreadPoolExecutor(len(indices)) as pool:
        answers = list(pool.map(pick, indices))
    window = server.between(start, server.mark())
    assert [a if isinstance(a, float) else "failed" for a in answers] == [
        "failed" if index == 99 else 10.0 + index for index in indices
    ]
    assert "out of bounds" in str(answers[3])
    assert max(window.batches) > 1


@with_torch
def test_a_warm_up_of_the_configuration_runs_before_the_first_request(
    serve: Serve, files: Path
) -> None:
    warm_up = """ model_warmup { name: "w" batch_size: 2 count: 4
        inputs { key: "x" value { data_type: TYPE_FP32 dims: 3 random_data: true } }
        inputs { key: "idx" value { data_type: TYPE_INT64 dims: 1 zero_data: true } } }"""
    server = serve(files / "pick.pt", BATCHING + PICK + warm_up)
    row, idx = np.array([[10, 11, 12]], np.float32), np.array([[2]], np.int64)
    assert infer(server, {"x": row, "idx": idx})("OUTPUT__0") == 12


@with_torch
@pytest.mark.parametrize(
    ("config", "words"),
    [
        (NET.replace("y__0", "y__7"), "gives 2 outputs"),
        (NET.replace('"bias"', '"I__2"').replace('"image"', '"I__0"'), "takes image, bias"),
    ],
)
def test_a_configuration_that_is_not_the_models_is_refused(
    serve: Serve, files: Path, config: str, words: str
) -> None:
    with pytest.raises(CandidateFailed, match=words):
        serve(files / "net.pt", "max_batch_size: 4" + config)


@with_torch
def test_an_exported_program_of_other_types_is_refused_when_it_is_loaded(
    serve: Serve, files: Path
) -> None:
    other = NET.replace("TYPE_INT64", "TYPE_INT32")
    with pytest.raises(CandidateFailed, match="best__1 is TYPE_INT64 in the PyTorch model"):
        serve(files / "net.pt2", "max_batch_size: 4" + other)


@with_torch
def test_an_export_is_confirmed_through_the_runner(
    serve: Serve, files: Path, seeing: ServerEnvironment, tmp_path: Path
) -> None:
    model = serve(files / "net.pt", "max_batch_size: 4" + NET)._model
    pick = Candidate({"max_batch_size": 8, "parameters.intra_op_threads": 1})

    def strict(repository: Path, name: str) -> LocalServer:
        served = from_repository(repository, name, tmp_path / "strict")
        launcher = EmbeddedLauncher(lambda: seeing)
        return LocalServer(FAST, served, launcher, work_dir=tmp_path / "log", strict=True)

    host = EmbeddedHost(python=lambda: of_environment(seeing))
    exporter = RepositoryExporter(model, strict, workdir=tmp_path / "work", host=host)
    config = exporter.write(pick, tmp_path / "out", "s", [])
    assert 'backend: "pytorch"' in config.read_text()
    with closing(exporter.strict_server(tmp_path / "out")) as server:
        server.start()
        server.apply(pick)
        check = TorchOutputCheck(
            file=files / "net.pt", config=model.config, python=lambda: of_environment(seeing)
        )
        assert "run directly" in check.check(server.endpoint, server.interface(), samples())


@with_torch
def test_a_step_of_a_pipeline_is_served_by_the_runner(
    files: Path, seeing: ServerEnvironment, tmp_path: Path
) -> None:
    repository = tmp_path / "models"
    put_step(repository, "first", "+ 1")
    put_ensemble(repository, "pipe", ["first", "twice"])
    (repository / "twice" / "1").mkdir(parents=True)
    (repository / "twice" / "1" / "model.pt").write_bytes((files / "twice.pt").read_bytes())
    (repository / "twice" / "config.pbtxt").write_text(
        "platform: 'pytorch_libtorch' max_batch_size: 8"
        " input [ { name: 'x' data_type: TYPE_FP32 dims: -1 } ]"
        " output [ { name: 'y' data_type: TYPE_FP32 dims: -1 } ]"
    )
    given = from_repository(repository, "pipe", tmp_path / "work")
    host = EmbeddedHost(python=lambda: of_environment(seeing))
    model = adapt_for_embedded(given, tmp_path / "work", host=host)
    launcher = EmbeddedLauncher(lambda: seeing)
    with closing(LocalServer(FAST, model, launcher, work_dir=tmp_path / "log")) as server:
        server.apply(Candidate({"twice.max_batch_size": 8, "twice.instances": 2}))
        rows = np.array([[1, 2, 3]], np.float32)
        answer = infer(server, {"x": rows}, "pipe")("y")
    np.testing.assert_array_equal(answer, 2 * (rows + 1))


# ------------------------------------------------------------------------------ without PyTorch
def test_a_server_without_pytorch_is_told_before_anything_is_loaded(
    server_environment: ServerEnvironment, tmp_path: Path
) -> None:
    (tmp_path / "net.pt").write_text("TorchScript")
    host = EmbeddedHost(python=lambda: of_environment(server_environment))
    with pytest.raises(InputRefused, match="no PyTorch can be loaded") as refused:
        adapted(tmp_path, tmp_path / "net.pt", "max_batch_size: 4" + NET, host)
    assert "server.requirements" in refused.value.next_step


def test_a_model_that_is_loaded_without_pytorch_all_the_same_says_what_is_missing(
    server_environment: ServerEnvironment, tmp_path: Path
) -> None:
    (tmp_path / "net.pt").write_text("TorchScript")
    model = adapted(tmp_path, tmp_path / "net.pt", "max_batch_size: 4" + NET, EmbeddedHost())
    launcher = EmbeddedLauncher(lambda: server_environment)
    with closing(LocalServer(FAST, model, launcher, work_dir=tmp_path / "log")) as server:
        with pytest.raises(CandidateFailed, match="No module named 'torch'") as refused:
            server.apply(AS_FOUND)
        assert "server.requirements" in refused.value.next_step
