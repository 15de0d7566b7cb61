"""What this host has for the check: the embedded server, PyTorch, a GPU of its own choosing.

python -m tests.gpu.host      makes the server ready, or says why it cannot be
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TextIO

from autotune.adapters.triton import devices
from autotune.adapters.triton.environment import Progress, ServerEnvironment, prepare
from autotune.adapters.triton.server_python import ServerPython, of_environment
from autotune.cli.signals import interruptible
from autotune.core.errors import AutotuneError
from autotune.settings import Settings
from tests.gpu.plan import ROOT

DRIVER_S = 15.0
"""The first answer of a GPU's driver takes seconds where nothing keeps it loaded."""
_ASK_S = 120.0
"""The first import of PyTorch on a machine reads gigabytes."""
_TORCH = """
import json, torch
print(json.dumps({"torch": torch.__version__, "cuda": torch.version.cuda}))
"""


def server_environment(say: Progress = lambda _: None) -> ServerEnvironment:
    settings = Settings.from_environment()
    return prepare(settings.cache_dir, say, settings.server_dir)


def chosen_devices() -> tuple[str, ...]:
    """The first GPU of this host, or the first slice of one, as `server.devices` takes it: the
    check is of one. Empty where there is none, or where CUDA_VISIBLE_DEVICES has chosen already, be
    it none by being empty."""
    here = {} if devices.VISIBLE in os.environ else devices.names()
    slices = sorted(name for name, part in here.items() if ":" in part)
    return ("0",) if "0" in here else tuple(slices[:1])


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchPython:
    """A Python that has PyTorch; ``versions`` of the two and of its CUDA."""

    python: ServerPython
    versions: Mapping[str, str]


def python_with_torch() -> TorchPython | str:
    """The server's Python, which serves models of PyTorch; or why it cannot."""
    try:
        python = of_environment(server_environment(), chosen_devices())
    except AutotuneError as error:
        return f"there is no server: {error.rule}"
    try:
        done = python.run(["-c", _TORCH], timeout_s=_ASK_S)
    except (OSError, subprocess.SubprocessError) as error:
        return f"the server's Python could not be asked for PyTorch: {error}"
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["it ended without a word"])[-1]
        return f"the server's Python has no PyTorch: {last}"
    found = json.loads(done.stdout.splitlines()[-1])
    return TorchPython(python=python, versions={k: str(v) for k, v in found.items() if v})


class Apart:
    """A module of `tests.gpu.apart` in a process of its own, on a given Python: it is spoken to in
    lines of JSON, and ended when the context is left.

    ``log`` takes what it says beside.
    """

    def __init__(
        self, python: ServerPython, module: str, order: Mapping[str, Any], log: TextIO
    ) -> None:
        self._process = subprocess.Popen(
            [str(python.path), "-m", f"tests.gpu.apart.{module}", json.dumps(order)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env={**os.environ, **python.variables, "PYTHONPATH": str(ROOT)},
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def tell(self, **command: Any) -> None:
        """One that has ended is told in vain: then there is nothing to hear."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(command) + "\n")
            self._process.stdin.flush()

    def hear(self) -> dict[str, Any] | None:
        """The next thing that it says; None when it has ended. (The check's own time limit ends it
        if it never does.)"""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):  # a library may print as well
                found: dict[str, Any] = json.loads(line)
                return found
        return None

    @property
    def status(self) -> int | None:
        return self._process.poll()

    def __enter__(self) -> Apart:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()


def main() -> int:
    def say(text: str) -> None:
        sys.stderr.write(f"{text}\n")

    try:
        with interruptible():
            server_environment(say)
    except (AutotuneError, OSError) as error:
        say(f"error: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
