"""Starts a null server in a process of its own and ends it by its id."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from autotune.core.model_interface import Endpoint, ModelInterface, TensorSpec

MODEL = ModelInterface(
    name="null",
    inputs=(TensorSpec(name="IN", datatype="FP32", shape=(4,)),),
    outputs=(TensorSpec(name="OUT", datatype="FP32", shape=(4,)),),
    batched=True,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NullServer:
    port: int
    process: subprocess.Popen[str]

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint(http=f"127.0.0.1:{self.port}", grpc="")


@contextmanager
def null_server(*options: str) -> Iterator[NullServer]:
    """``options``: see ``python -m tests.null_server --help``."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.null_server", *options],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parent.parent,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield NullServer(port=int(process.stdout.readline()), process=process)
    finally:
        process.stdin.close()
        process.kill()
        process.wait(10)
        process.stdout.close()
