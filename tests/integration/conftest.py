"""The embedded Triton, prepared once in the user's cache, and tiny models made by hand."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent

import onnx
import pytest
from onnx import TensorProto, helper

from autotune.adapters.triton.environment import ServerEnvironment, prepare
from autotune.adapters.triton.repository import ServedModel, from_onnx
from autotune.core.study import ServerSpec
from autotune.ports import Server
from autotune.settings import Settings


@pytest.fixture(scope="session")
def cache_dir() -> Path:
    return Settings.from_environment().cache_dir


@pytest.fixture(scope="session")
def server_environment(cache_dir: Path) -> ServerEnvironment:
    return prepare(cache_dir)


def made_apart(folder: Path, script: str) -> Path:
    """The folder, with what a script of PyTorch's makes in it, which is not loaded into the tests'
    own process. (A file, since TorchScript reads the source of classes.)"""
    file = folder / "make.py"
    file.write_text(dedent(script))
    subprocess.run([sys.executable, file, folder], check=True)
    return folder


def double_onnx(path: Path, *, datatype: int = TensorProto.FLOAT) -> Path:
    """y = x + x over rows of any width."""
    x = helper.make_tensor_value_info("x", datatype, ["batch", "width"])
    y = helper.make_tensor_value_info("y", datatype, ["batch", "width"])
    graph = helper.make_graph([helper.make_node("Add", ["x", "x"], ["y"])], "double", [x], [y])
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(saveable(graph), path)
    return path


def saveable(graph: onnx.GraphProto) -> onnx.ModelProto:
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@pytest.fixture(scope="session")
def double(tmp_path_factory: pytest.TempPathFactory) -> ServedModel:
    """A served model that doubles rows of float32 of any width."""
    folder = tmp_path_factory.mktemp("double")
    return from_onnx(double_onnx(folder / "double.onnx"), "double", folder / "repository")


@pytest.fixture
def started() -> Iterator[Callable[[Server], Server]]:
    """Closes, at the test's end, each server that it is given."""
    servers: list[Server] = []

    def remember(server: Server) -> Server:
        servers.append(server)
        return server

    yield remember
    for server in servers:
        server.close()


FAST = ServerSpec(start_timeout_s=30, load_timeout_s=30)
