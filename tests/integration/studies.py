"""Drives the command line as a user does: in a process of its own, in a folder of its own."""

from __future__ import annotations

import io
import json
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from autotune.bootstrap.bench import lock_name
from autotune.cli import main
from tests import onnx_models

FINISH_S = 200.0
"""This and the other limits are for what hangs: other tests may have the machine meanwhile."""
LOOK_S = 0.2
"""How often all processes of this machine are looked through: that takes 20 ms of its time."""
MARK = "AUTOTUNE_TEST_RUN"
SHM = Path("/dev/shm")
QUICK = {
    "target_qps": 60,
    "headroom": 1,
    "arrival": "constant",
    "warmup_s": 0.3,
    "measure_s": 1,
    "saturation_s": 0.3,
    "timeout_s": 3,
}
"""A workload of about two seconds a candidate: a median wants only twenty requests."""
EASY = {"p50_ms": 300, "min_achieved": 0.5}
"""Also met on a machine that is busy with other tests, by a model that takes a millisecond."""
CALM: dict[str, Any] = {"finals": "none", "trust": {"foreign_cpu": 1, "send_lag": 1}}
"""No more phases than the search's, and none refused because other tests are at work too."""


@dataclass(frozen=True)
class Finished:
    """A command that has ended."""

    code: int
    stdout: str
    stderr: str

    def expect(self, code: int, *words: str) -> Finished:
        """Itself, if it ended with that code and said these words on standard error."""
        shown = f"exit {self.code}\n{self.stdout}\n--- standard error\n{self.stderr}"
        assert self.code == code, shown
        assert "Traceback" not in self.stderr, shown
        said = " ".join(self.stderr.split())
        missing = [each for each in words if each not in said]
        assert not missing, f"{missing} not said; {shown}"
        return self

    @property
    def document(self) -> Any:
        return json.loads(self.stdout)


@contextmanager
def _signals_heeded() -> Iterator[None]:
    """A test session in the background has some signals ignored, and its children with it; the
    tool leaves what was ignored at its start so. (Not by ``preexec_fn``: what gRPC does in a child
    that is forked has been its end.)"""
    ignored = [
        each
        for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(each) is signal.SIG_IGN
    ]
    for each in ignored:
        signal.signal(each, signal.SIG_DFL)
    try:
        yield
    finally:
        for each in ignored:
            signal.signal(each, signal.SIG_IGN)


@dataclass
class Running:
    """A command under way, with all that it started: known by a mark in their environment."""

    process: subprocess.Popen[bytes]
    log: Path
    mark: str
    temporary: Path
    _shm: set[str] = field(default_factory=set)

    def stderr(self) -> str:
        return self.log.with_suffix(".err").read_text()

    def wait_for(self, text: str, *, within_s: float = 120.0) -> None:
        """Return when it has said ``text`` on standard error."""
        self.until(lambda: text in self.stderr(), within_s, f"{text!r} was not said")

    def wait_for_load(self, trial: int, *, within_s: float = 120.0) -> None:
        """Return in the middle of a trial's load (``trial`` counts from 1): the arrivals of a
        phase are written just before it."""
        self.wait_for(f"measure  {trial}/", within_s=within_s)
        since = time.time()

        def begun() -> bool:
            written = [path.stat().st_mtime for path in self.temporary.glob("*/arrivals.npy")]
            return max(written, default=0.0) > since

        self.until(begun, 30.0, f"no load of trial {trial}")
        time.sleep(0.6)

    def finish(self, within_s: float = FINISH_S) -> Finished:
        try:
            code = self.process.wait(within_s)
        except subprocess.TimeoutExpired:
            self.abandon()
            raise AssertionError(f"still running after {within_s} s:\n{self.stderr()}") from None
        return Finished(code, self.log.with_suffix(".out").read_text(), self.stderr())

    def tell(self, signum: signal.Signals) -> Finished:
        """Send it a signal and wait for its end."""
        self.remember_shared_memory()
        self.process.send_signal(signum)
        return self.finish(60)

    def processes(self) -> list[psutil.Process]:
        """Of this command, itself included: whatever carries its mark."""
        return [process for process in psutil.process_iter() if self._marked(process)]

    def child(self, words: str, *, within_s: float = 90.0) -> psutil.Process:
        """Its newest process whose command line has ``words``."""
        found: list[psutil.Process] = []

        def look() -> bool:
            found[:] = [p for p in self.processes() if words in command_line(p)]
            return bool(found)

        self.until(look, within_s, f"no process {words!r}", every_s=LOOK_S)
        return max(found, key=lambda process: process.create_time())

    def server(self) -> psutil.Process:
        return self.child("/tritonserver --backend")

    def load(self) -> psutil.Process:
        return self.child("loadgen.worker")

    def remember_shared_memory(self) -> None:
        for process in self.processes():
            _, found, rest = command_line(process).partition("shm-region-prefix-name=")
            if found:
                self._shm.add(rest.split()[0])

    def assert_nothing_left(self, *, within_s: float = 30.0) -> None:
        """No process and no shared memory of it is left soon after its end."""
        self.until(lambda: not self.processes(), within_s, "processes are left", every_s=LOOK_S)
        self.until(lambda: not self._segments(), 5.0, "shared memory is left")

    def abandon(self) -> None:
        """End all of it, by their ids."""
        for process in self.processes():
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.wait(10)

    def _segments(self) -> list[Path]:
        return [path for prefix in self._shm for path in SHM.glob(f"{prefix}*")]

    def _marked(self, process: psutil.Process) -> bool:
        try:
            live = process.status() != psutil.STATUS_ZOMBIE
            return live and process.environ().get(MARK) == self.mark
        except psutil.Error:
            return False

    def until(
        self,
        condition: Callable[[], bool],
        within_s: float,
        otherwise: str,
        *,
        every_s: float = 0.05,
    ) -> None:
        deadline = time.monotonic() + within_s
        while not condition():
            if time.monotonic() > deadline:
                left = [command_line(process)[:120] for process in self.processes()]
                raise AssertionError(
                    f"{otherwise} within {within_s} s; processes: {left}\n{self.stderr()}"
                )
            time.sleep(every_s)


class Tool:
    """The command line with database, scratch and output below ``folder``."""

    def __init__(self, folder: Path, cache: Path) -> None:
        self.folder = folder
        self.work = folder / "work"
        self.out = folder / "out"
        self.db = folder / "studies.db"
        self.path = os.environ.get("PATH", os.defpath)
        self.temporary = folder / "tmp"
        self.through: Sequence[object] = ()
        """What the command is run through, as ``unshare``, on its way to be the command itself."""
        self.variables: dict[str, str] = {}
        self._cache = cache
        self._runs: list[Running] = []
        self.temporary.mkdir(parents=True, exist_ok=True)

    def model(self) -> Path:
        """A tiny ONNX model: y = x·W + 1."""
        path = self.folder / "linear.onnx"
        return path if path.exists() else onnx_models.linear(path)

    def study(self, name: str = "tiny", **sections: Any) -> Path:
        """A study file of short phases; ``sections`` replace its own, ``workload`` adds to it."""
        workload = {**QUICK, **sections.pop("workload", {})}
        content = {
            "study": name,
            "model": {"onnx": str(self.model())} if "model" not in sections else None,
            "workload": workload,
            "sla": EASY,
            "space": {"max_batch_size": [1, 4]},
            "search": "grid",
            **CALM,
            **sections,
        }
        path = self.folder / f"{name}.yaml"
        path.write_text(json.dumps(content, indent=1))  # JSON is YAML
        return path

    def start(self, *arguments: object, keep: Sequence[int] = (), **variables: str) -> Running:
        """``keep`` are open files that the command has, too, for as long as it runs."""
        mark = uuid.uuid4().hex
        log = self.folder / f"run-{len(self._runs)}"
        environment = {**os.environ, **self._settings(), MARK: mark, **self.variables, **variables}
        with (
            log.with_suffix(".out").open("wb") as out,
            log.with_suffix(".err").open("wb") as err,
            _signals_heeded(),
        ):
            process = subprocess.Popen(
                [*map(str, self.through), sys.executable, "-m", "autotune", *map(str, arguments)],
                cwd=self.folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                pass_fds=keep,
            )
        running = Running(process, log, mark, self.temporary)
        self._runs.append(running)
        return running

    def tune(self, study: Path, *arguments: object) -> Running:
        """Start a study when it is its turn."""
        return self.measure("tune", study, "--out", self.out, *arguments)

    def measure(self, *arguments: object) -> Running:
        """Start a command when it is its turn: nobody else may measure on this machine. The turn
        ends with the command, whatever becomes of the test."""
        with next_turn() as turn:
            return self.start(*arguments, keep=(turn.fileno(),))

    def run(self, *arguments: object) -> Finished:
        """A command that starts nothing, in this process: to import it all takes seconds."""
        out, err = io.StringIO(), io.StringIO()
        with pytest.MonkeyPatch.context() as here, redirect_stdout(out), redirect_stderr(err):
            for name, value in self._settings().items():
                here.setenv(name, value)
            here.chdir(self.folder)
            here.setattr(sys, "argv", ["autotune", *map(str, arguments)])
            with pytest.raises(SystemExit) as ended:
                main()
        return Finished(int(ended.value.code or 0), out.getvalue(), err.getvalue())

    def refuse(self, study: Path, *arguments: object) -> Finished:
        """Try a study that is to be refused before anything of it is started."""
        with next_turn():
            return self.run("tune", study, "--out", self.out, *arguments)

    def shown(self, study: str = "tiny") -> Any:
        return self.run("show", study, "--json").expect(0).document

    def states(self, study: str = "tiny") -> list[str]:
        """Of the trials, in order."""
        return [trial["state"] for trial in self.shown(study)["trials"]]

    def _settings(self) -> dict[str, str]:
        return {
            "AUTOTUNE_CACHE": str(self._cache),
            "AUTOTUNE_WORK": str(self.work),
            "AUTOTUNE_DB": str(self.db),
            "PATH": self.path,
            "TMPDIR": str(self.temporary),
        }

    def close(self) -> None:
        """End what a failed test left; a test that passed has left nothing."""
        for run in self._runs:
            run.abandon()


TURN = f"\0triton-autotune.tests.{os.environ.get('PYTEST_XDIST_WORKER', '')}"


def next_turn() -> socket.socket:
    """Wait until no study runs here, and no other session of these tests is about to start one;
    closing the answer ends the turn."""
    turn = _hold(TURN)
    _hold(lock_name()).close()
    return turn


def _hold(name: str, within_s: float = 300.0) -> socket.socket:
    """A lock that is an abstract socket's name, as a study takes it."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        lock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            lock.bind(name)
        except OSError:
            lock.close()
            time.sleep(0.2)
        else:
            return lock
    raise AssertionError("another study has been measuring on this machine all the time")


def tool(folder: Path, cache: Path) -> Iterator[Tool]:
    made = Tool(folder, cache)
    try:
        yield made
    finally:
        made.close()


def command_line(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


PYTHON_MODEL = """
import os
import time
import numpy as np
import triton_python_backend_utils as pb_utils

W = (np.arange(12).reshape(4, 3) / 7).astype("float32")

class TritonPythonModel:
    def initialize(self, args):
        INITIALIZE
        self.args = args
        self.count = 0

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        self.count += 1
        x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
        BODY
        return pb_utils.InferenceResponse([pb_utils.Tensor("y", x @ W + 1)])
"""
PYTHON_CONFIG = """
name: "own" backend: "python" max_batch_size: 1
input { name: "x" data_type: TYPE_FP32 dims: 4 }
output { name: "y" data_type: TYPE_FP32 dims: 3 }
"""


def own_model(
    repository: Path, body: str = "", *, initialize: str = "", reference: bool = True
) -> dict[str, str]:
    """A model of the user's own on the Python backend, ``body`` being what it does to ``x`` and
    ``initialize`` what it begins with; with ``reference`` the ONNX file that it should answer like
    beside it. The study's model section."""
    version = repository / "own" / "1"
    version.mkdir(parents=True)
    (repository / "own" / "config.pbtxt").write_text(PYTHON_CONFIG)
    (version / "model.py").write_text(
        PYTHON_MODEL.replace("BODY", body).replace("INITIALIZE", initialize)
    )
    if reference:
        onnx_models.linear(version / "model.onnx")
    return {"repository": str(repository), "name": "own"}
