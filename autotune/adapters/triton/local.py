"""A Triton server that autotune starts, restarts and ends itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from autotune.adapters.triton import leftovers, statistics
from autotune.adapters.triton.completion import needs_no_completion
from autotune.adapters.triton.config import ModelConfig
from autotune.adapters.triton.control import (
    CALL_TIMEOUT_S,
    Control,
    Refused,
    Unanswered,
    Unreachable,
    not_loaded,
)
from autotune.adapters.triton.launchers import Launcher, refuse_reserved
from autotune.adapters.triton.loading import Loading, applied, loaded_configs
from autotune.adapters.triton.memory_watch import MemoryWatch
from autotune.adapters.triton.pipeline import (
    calls,
    configs,
    instances_of,
    processes_of,
    steps,
)
from autotune.adapters.triton.ports import (
    Ports,
    fixed_ports,
    free_ports,
    refuse_without_loopback,
)
from autotune.adapters.triton.process import ChildProcess, tail
from autotune.adapters.triton.repository import ServedModel
from autotune.core.errors import CandidateFailed, InputRefused, ServerCrashed, ServerFailed
from autotune.core.measurement import ServerWindow
from autotune.core.memory import blamed
from autotune.core.model_interface import Endpoint, ModelInterface
from autotune.core.study import ServerSpec
from autotune.ports import Applied, StatisticsMark
from search_spaces.candidate import SERVER_PREFIX, Candidate

T = TypeVar("T")

NICE = 5
"""Added to the server's niceness, so that the load generator keeps its schedule on few cores."""
EXIT_S = 1.0
"""Triton's own exit timeout. It takes all of it, idle or not; no request is open by then."""
_WIND_DOWN_S = 10.0
_PORT_ATTEMPTS = 4
_POLL_S = 0.05
_TAKEN = "already in use"
_KILLED = "SIGKILL"
"""How the kernel ends a process for want of memory."""


class LocalServer:
    """Implements `ports.Server` with a `Launcher`; ``strict`` loads the model (or the pipeline) as
    its files say, with auto-completion off. The server's log is ``work_dir/server.log``."""

    def __init__(
        self,
        spec: ServerSpec,
        model: ServedModel,
        launcher: Launcher,
        *,
        work_dir: Path,
        strict: bool = False,
    ) -> None:
        refuse_reserved(spec.flags)
        self._spec = spec
        self._model = model
        self._launcher = launcher
        self._log = work_dir / "server.log"
        self._memory = MemoryWatch(self._log)
        self._strict = strict
        self._child: ChildProcess | None = None
        self._control: Control | None = None
        self._ports: Ports | None = None
        self._flags: Mapping[str, str] = dict(spec.flags)
        self._spoiled = False
        self._version = ""
        self._loading = Loading(model)
        self._steps = tuple(steps(model))
        self._calls = calls(model)
        self._instances: Mapping[str, int] = {}

    # ----------------------------------------------------------------------------- start and end
    def start(self) -> None:
        self._restart(self._spec.flags)

    def alive(self) -> bool:
        return self._running() and self._control is not None and self._control.live()

    def close(self) -> None:
        self._end(lambda child: child.close())

    def pids(self) -> Sequence[int]:
        return self._launcher.pids(self._child) if self._child and self._running() else []

    @property
    def endpoint(self) -> Endpoint:
        if self._ports is None:
            raise ServerFailed("the server has not been started", next_step="call start() first")
        return self._ports.endpoint

    def log_tail(self, lines: int = 20) -> str:
        return tail(self._log, lines)

    def identity(self) -> Mapping[str, Any]:
        return {
            "triton": self._version,
            "launch": self._launcher.kind,
            "model": self._model.name,
            "model_digest": self._model.digest,
        }

    # --------------------------------------------------------------------------------- the model
    def apply(self, candidate: Candidate) -> Applied:
        began = time.monotonic()
        self._memory.begin()
        wanted: Mapping[str, ModelConfig] = {}
        if not self._strict:
            refuse_reserved(candidate.server_flags)
            wanted = configs(self._model, candidate)
        restarted = self._ensure(candidate)
        try:
            reloaded = self._asked(lambda control: self._load(control, wanted))
        except Refused as error:
            memory = self._memory.found(lost=True)
            failure = not_loaded(error, candidate, memory)
            self._spoiled = isinstance(failure, ServerCrashed)
            raise failure from error
        loaded = self._asked(lambda control: loaded_configs(control, self._model))
        self._instances = instances_of(loaded)
        if processes := processes_of(loaded):
            self._wait_for_former_instances(processes)
        return applied(
            loaded, seconds=time.monotonic() - began, restarted=restarted, reloaded=reloaded
        )

    def _load(self, control: Control, wanted: Mapping[str, ModelConfig]) -> tuple[str, ...]:
        timeout_s = self._spec.load_timeout_s
        if self._strict:
            return self._loading.as_files_say(control, timeout_s)
        return self._loading.bring(control, wanted, timeout_s)

    def interface(self) -> ModelInterface:
        return self._asked(Control.interface)

    def mark(self) -> StatisticsMark:
        """ServerFailed also where an instance has died: the server stays, and goes on without."""
        mark = self._asked(lambda control: control.statistics(self._steps))
        if leftovers.dead(self.pids):
            raise self._failure("an instance of the model died", lost=True, kind=ServerCrashed)
        return mark

    def between(self, start: StatisticsMark, end: StatisticsMark) -> ServerWindow:
        assert isinstance(start, statistics.Mark)
        assert isinstance(end, statistics.Mark)
        return statistics.between(start, end, instances=self._instances, calls=self._calls)

    def _wait_for_former_instances(self, processes: int) -> None:
        """A load returns while the former instances' processes still wind down, idle, one after
        the other, about a second each; their memory would be counted with the candidate's. An
        instance of the Python backend is a child of the server."""
        leaving = len(self.pids()) - 1 - processes
        deadline = time.monotonic() + _WIND_DOWN_S + leaving
        while len(self.pids()) > 1 + processes and time.monotonic() < deadline:
            time.sleep(_POLL_S)

    # ------------------------------------------------------------------------------- the process
    def _running(self) -> bool:
        return self._child is not None and self._child.running()

    def _ensure(self, candidate: Candidate) -> bool:
        """Have a server with the candidate's flags; whether it had to be started."""
        flags = self._flags_of(candidate)
        usable = self.alive() and not self._holds_leftovers()
        if flags == self._flags and usable:
            return False
        if not usable:
            self._end(lambda child: child.kill())
        try:
            self._restart(flags)
        except ServerFailed as error:
            if candidate.server_flags:
                kind = ServerCrashed if isinstance(error, ServerCrashed) else CandidateFailed
                raise kind(f"the server does not start with {candidate}: {error}") from error
            raise
        return True

    def _holds_leftovers(self) -> bool:
        """Whether an earlier candidate's dead or hung instance, or its backlog, is still there, to
        be measured with the next one; or an instance has died while it was loaded."""
        dead = self._spoiled or leftovers.dead(self.pids)
        return bool(dead) or leftovers.unfinished(self.endpoint)

    def _flags_of(self, candidate: Candidate) -> dict[str, str]:
        """The study's own flags, and in place of those that the space sweeps the candidate's; one
        that the candidate leaves unset is not given at all."""
        swept = {target.removeprefix(SERVER_PREFIX) for target in candidate}
        kept = {name: value for name, value in self._spec.flags.items() if name not in swept}
        return {**kept, **candidate.server_flags}

    def _restart(self, flags: Mapping[str, str]) -> None:
        refuse_without_loopback()
        for attempt in range(1, _PORT_ATTEMPTS + 1):
            self._end(lambda child: child.close())
            self._ports = fixed_ports(self._spec.ports) if self._spec.ports else free_ports()
            self._flags = dict(flags)
            try:
                self._launch(self._ports)
            except _PortTaken:
                if self._spec.ports:
                    raise self._port_refused() from None
                if attempt == _PORT_ATTEMPTS:
                    raise
            except BaseException:
                self._end(lambda child: child.kill())
                raise
            else:
                return

    def _launch(self, ports: Ports) -> None:
        as_it_is = self._strict or needs_no_completion(self._model)
        strict = {"disable-auto-complete-config": ""} if as_it_is else {}
        flags = {"exit-timeout-secs": f"{EXIT_S:g}", **self._flags, **strict}
        command = self._launcher.command(self._model.repository, ports, flags)
        start = self._log.stat().st_size if self._log.exists() else 0
        self._spoiled = False
        self._child = ChildProcess(command, log=self._log, nice=NICE, grace_s=EXIT_S + 2)
        self._control = Control(
            ports.endpoint.grpc,
            self._model.name,
            call_timeout_s=min(CALL_TIMEOUT_S, self._spec.load_timeout_s),
        )
        deadline = time.monotonic() + self._spec.start_timeout_s
        while not self._control.live():
            if not self._child.running():
                raise self._died_at_start(start)
            if time.monotonic() > deadline:
                raise ServerFailed(
                    "the server did not come up in time",
                    value=f"{self._spec.start_timeout_s:g} s",
                    next_step=self._shown_log(),
                )
            time.sleep(_POLL_S)
        self._version = self._control.version()

    def _died_at_start(self, log_start: int) -> ServerFailed:
        with self._log.open(errors="replace") as stream:
            stream.seek(log_start)
            taken = _TAKEN in stream.read().lower()
        kind = _PortTaken if taken else self._kind_of_end()
        return kind(f"the server {self._ending()} at its start", next_step=self._shown_log())

    def _port_refused(self) -> InputRefused:
        return InputRefused(
            f"a port of server.ports {self._spec.ports} is in use",
            value=self.log_tail(3),
            next_step="choose others, or leave server.ports out to have free ones picked",
        )

    def _asked(self, question: Callable[[Control], T]) -> T:
        """An answer of the running server. One that hangs is ended, to be started anew later."""
        if self._control is None or not self._running():
            raise self._gone()
        try:
            return question(self._control)
        except Unanswered as error:
            live = self._control.live()
            self._end(lambda child: child.kill())
            kind = CandidateFailed if live else ServerFailed
            state = "is alive, but did not finish" if live else "hangs and was ended"
            raise self._failure(f"the server {state}: {error}", lost=True, kind=kind) from error
        except Unreachable as error:
            raise self._gone() from error

    def _gone(self) -> ServerFailed:
        """The server died, or will have in a moment: its guard clears up after it."""
        if self._child is None:
            return ServerFailed("the server is not running", next_step="call start() or apply()")
        deadline = time.monotonic() + 2
        while self._running() and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        ending = "does not answer" if self._running() else self._ending()
        return self._failure(
            f"the server {ending}", lost=_KILLED in ending, kind=self._kind_of_end()
        )

    def _ending(self) -> str:
        return self._child.ending() if self._child else "is not running"

    def _kind_of_end(self) -> type[ServerFailed]:
        """A signal ends a server that crashes; one that will not have its options exits."""
        signalled = self._child is not None and self._child.ended_by is not None
        return ServerCrashed if signalled else ServerFailed

    def _failure(self, what: str, *, lost: bool, kind: type[ServerFailed]) -> ServerFailed:
        """What happened under this candidate; where that was for want of memory it says so, and is
        no crash."""
        told = self._memory.found(lost=lost)
        if told and kind is ServerCrashed:
            kind = ServerFailed
        words = blamed(f"{what} ({told})" if told else what, told)
        return kind(words, next_step=self._shown_log())

    def _shown_log(self) -> str:
        """The log's last lines for an error's text, without the tables of the server's options."""
        lines = [line[:200] for line in self.log_tail(60).splitlines() if line[:1] not in "|+"]
        return "\n    ".join([f"the last lines of its log, {self._log}:", *lines[-12:]])

    def _end(self, how: Callable[[ChildProcess], None]) -> None:
        self._loading.restarted()
        control, self._control = self._control, None
        child, self._child = self._child, None
        if control is not None:
            control.close()
        if child is not None:
            how(child)


class _PortTaken(ServerFailed):
    """Another process took a port between our look and the server's."""
