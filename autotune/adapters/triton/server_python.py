"""What the Python that serves models has: PyTorch, and the providers of its ONNX Runtime."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from autotune.adapters.triton import devices
from autotune.adapters.triton.environment import ServerEnvironment
from autotune.adapters.triton.unpacked import Unpacked

_TIMEOUT_S = 120
_BUILT = (
    "Name its package in a file, and that in server.requirements: the server's Python is a virtual"
    " environment of its own, which does not see what is installed here."
)
_BUNDLED = "Install it for the Python that the bundle runs on, whose packages models can import."
_TORCH = """
import torch
found = {"version": torch.__version__, "gpu": torch.cuda.is_available()}
"""
_PROVIDERS = """
import onnxruntime
found = {"providers": onnxruntime.get_available_providers()}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Torch:
    """An installed PyTorch: its ``version``, and whether it sees a GPU."""

    version: str
    gpu: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerPython:
    """An interpreter. ``variables`` go on top of the present environment; ``first``: folders of
    packages that come before its own where it is asked what it has; ``where``: which one it is, and
    ``install``: how packages get into it, in words. What it has is looked up when asked for,
    once."""

    path: Path
    variables: Mapping[str, str] = field(default_factory=dict)
    first: tuple[Path, ...] = ()
    where: str = "this Python"
    install: str = "Install it with pip."

    def torch(self) -> Torch | None:
        """None where there is none that can be loaded."""
        found = self._found(_TORCH)
        return None if found is None else Torch(version=found["version"], gpu=found["gpu"])

    def providers(self) -> frozenset[str]:
        """Of its ONNX Runtime; empty where there is none that can be loaded."""
        found = self._found(_PROVIDERS)
        return frozenset(found["providers"]) if found else frozenset()

    def run(
        self, arguments: Sequence[str], *, timeout_s: float
    ) -> subprocess.CompletedProcess[str]:
        """Run it as the Python backend's stub runs: apart from this process's own packages.
        OSError or `subprocess.TimeoutExpired` where that cannot be."""
        return subprocess.run(
            [str(self.path), "-I", *arguments],
            capture_output=True,
            text=True,
            timeout=timeout_s,
            env={**os.environ, **self.variables},
            check=False,
        )

    def _found(self, code: str) -> dict[str, Any] | None:
        paths = [str(each) for each in self.first]
        code = f"import sys\nsys.path[:0] = {paths!a}\n{code}"
        answer = _asked(self.path, tuple(sorted(self.variables.items())), code)
        return None if answer is None else dict(json.loads(answer))


def of_environment(environment: ServerEnvironment, gpus: Sequence[str] = ()) -> ServerPython:
    """Of an embedded server that may use these GPUs, all where none is named."""
    return ServerPython(
        path=environment.python,
        variables={**environment.variables(), **devices.variables(gpus)},
        where="the embedded server's Python",
        install=_BUNDLED if environment.root.name.startswith("unpacked-") else _BUILT,
    )


def of_unpacked(server: Unpacked) -> ServerPython:
    """Of a bundle's server, of which nothing is prepared here. ServerFailed without its Python."""
    return ServerPython(
        path=server.interpreter().path,
        first=(server.packages,),
        where="the embedded server's Python",
        install=_BUNDLED,
    )


def this_python() -> ServerPython:
    return ServerPython(path=Path(sys.executable))


@lru_cache(maxsize=32)
def _asked(path: Path, variables: tuple[tuple[str, str], ...], code: str) -> str | None:
    """The JSON that the code finds; None where it fails."""
    python = ServerPython(path=path, variables=dict(variables))
    try:
        done = python.run(
            ["-c", f"import json\n{code}\nprint(json.dumps(found))"], timeout_s=_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = done.stdout.strip().splitlines()
    return lines[-1] if done.returncode == 0 and lines else None
