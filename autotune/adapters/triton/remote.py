"""A Triton server that runs elsewhere and is tuned through its explicit model control."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from autotune.adapters.triton import statistics
from autotune.adapters.triton.config import (
    ModelConfig,
    instance_count,
    override_json,
    with_candidate,
)
from autotune.adapters.triton.control import (
    Control,
    Refused,
    Unanswered,
    candidate_failed,
)
from autotune.adapters.triton.repository import ServedModel
from autotune.core.errors import CandidateFailed, InputRefused, ServerFailed
from autotune.core.measurement import ServerWindow
from autotune.core.model_interface import Endpoint, ModelInterface
from autotune.core.study import ServerSpec
from autotune.ports import Applied, StatisticsMark
from search_spaces.candidate import Candidate

T = TypeVar("T")

_NOT_EXPLICIT = "not allowed"
"""In the refusal of a server in model control mode none or poll (core, server.cc)."""


@dataclass(frozen=True, slots=True)
class _Found:
    """How the model stood before the first candidate; None: it was not loaded."""

    config: ModelConfig | None


class RemoteServer:
    """Implements `ports.Server` for given addresses. It has no processes or log to be had.

    ``close`` leaves the model as it was found: unloaded, or loaded with the configuration that it
    had.
    """

    def __init__(self, spec: ServerSpec, model: ServedModel) -> None:
        if not spec.http or not spec.grpc:
            raise InputRefused(
                "launch: remote needs server.http and server.grpc",
                next_step="give both as host:port, and server.metrics as a URL if there is one",
            )
        self._spec = spec
        self._model = model
        self._endpoint = Endpoint(http=spec.http, grpc=spec.grpc, metrics_url=spec.metrics)
        self._control: Control | None = None
        self._found: _Found | None = None
        self._version = ""

    def start(self) -> None:
        """InputRefused if the server is not in explicit mode, ServerFailed if it is not there."""
        if self._control is None:
            self._control = Control(self._endpoint.grpc, self._model.name)
        if not self._control.live():
            raise ServerFailed(
                f"no live Triton answers at {self._endpoint.grpc}",
                next_step="check server.grpc (host:port of its gRPC service) and that it is up",
            )
        self._version = self._control.version()
        require_explicit(self._control)

    def apply(self, candidate: Candidate) -> Applied:
        began = time.monotonic()
        if candidate.server_flags:
            raise InputRefused(
                "a remote server cannot be restarted with other flags",
                value=", ".join(candidate.server_flags),
                next_step="take server.* out of the space, or use another launch",
            )
        override = override_json(with_candidate(self._model.config, candidate))
        if self._control is None:
            self.start()
        if self._found is None:
            self._found = _Found(self._asked(lambda c: c.config() if c.loaded() else None))
        try:
            self._asked(lambda control: control.load(override, self._spec.load_timeout_s))
        except Refused as error:
            raise candidate_failed(error, candidate) from error
        return Applied(
            seconds=time.monotonic() - began,
            restarted=False,
            instances=instance_count(self._asked(Control.config)),
        )

    def alive(self) -> bool:
        return self._control is not None and self._control.live()

    def interface(self) -> ModelInterface:
        return self._asked(Control.interface)

    @property
    def endpoint(self) -> Endpoint:
        return self._endpoint

    def pids(self) -> Sequence[int]:
        return ()

    def mark(self) -> StatisticsMark:
        return self._asked(Control.statistics)

    def between(self, start: StatisticsMark, end: StatisticsMark) -> ServerWindow:
        assert isinstance(start, statistics.Mark)
        assert isinstance(end, statistics.Mark)
        return statistics.between(start, end)

    def identity(self) -> Mapping[str, Any]:
        return {
            "triton": self._version,
            "launch": "remote",
            "model": self._model.name,
            "model_digest": self._model.digest,
        }

    def log_tail(self, lines: int = 20) -> str:  # noqa: ARG002
        return ""

    def close(self) -> None:
        """Raises ServerFailed if the model could not be put back."""
        control, self._control = self._control, None
        found, self._found = self._found, None
        if control is None:
            return
        try:
            if found is not None:
                restore(control, found.config, self._spec.load_timeout_s)
        except ServerFailed as error:
            raise ServerFailed(
                f"the model {self._model.name} on {self._endpoint.grpc} could not be left as it"
                f" was found: {error}",
                next_step="load it again there (v2/repository/models/NAME/load)",
            ) from error
        finally:
            control.close()

    def _asked(self, question: Callable[[Control], T]) -> T:
        if self._control is None:
            raise ServerFailed("the server is not connected", next_step="call start() or apply()")
        try:
            return question(self._control)
        except Unanswered as error:
            if self._control.live():
                raise CandidateFailed(f"the remote server did not finish: {error}") from error
            raise


def require_explicit(control: Control) -> None:
    """InputRefused unless models can be loaded and unloaded by request.

    Asked by unloading a model that cannot exist: explicit mode has nothing to do then.
    """
    try:
        control.unload(model=f"autotune-probe-{uuid.uuid4().hex}")
    except Refused as error:
        if _NOT_EXPLICIT in str(error.value):
            raise InputRefused(
                "the remote server does not let its models be loaded by request",
                value=str(error.value),
                next_step="start it with --model-control-mode=explicit (and --load-model=NAME)",
            ) from error


def restore(control: Control, config: ModelConfig | None, timeout_s: float) -> None:
    """Unload the model if ``config`` is None; else load it from its file, and with ``config`` in
    its place if the file says something else."""
    if config is None:
        control.unload(timeout_s)
        return
    control.load(None, timeout_s)
    if control.config() != config:
        control.load(override_json(config), timeout_s)


def remote_config(spec: ServerSpec, name: str) -> ModelConfig:
    """The configuration of a model that a remote server has loaded, for one whose repository is
    not at hand. InputRefused if it is not loaded."""
    control = Control(spec.grpc or "", name)
    try:
        return control.config()
    except Refused as error:
        raise InputRefused(
            f"the remote server has no model {name} loaded",
            value=str(error.value),
            next_step="load it there, or give model.repository",
        ) from error
    finally:
        control.close()
