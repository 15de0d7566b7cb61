"""A Triton server that runs elsewhere and is tuned through its explicit model control."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from autotune.adapters.triton import statistics
from autotune.adapters.triton.config import ModelConfig, override_json
from autotune.adapters.triton.control import (
    Control,
    Refused,
    Unanswered,
    not_loaded,
)
from autotune.adapters.triton.loading import Loading, applied, loaded_configs
from autotune.adapters.triton.pipeline import calls, configs, instances_of, steps
from autotune.adapters.triton.repository import ServedModel, from_configuration
from autotune.core.errors import CandidateFailed, InputRefused, ServerFailed
from autotune.core.measurement import ServerWindow
from autotune.core.model_interface import Endpoint, ModelInterface
from autotune.core.study import ServerSpec
from autotune.ports import Applied, StatisticsMark
from search_spaces.candidate import Candidate

T = TypeVar("T")

_NOT_EXPLICIT = "not allowed"
"""In the refusal of a server in model control mode none or poll (core, server.cc)."""


Found: TypeAlias = Mapping[str, ModelConfig | None]
"""How the model, and each that it needs, stood before the first candidate, by name in loadable
order; None: it was not loaded."""


class RemoteServer:
    """Implements `ports.Server` for given addresses. It has no processes or log to be had.

    ``close`` leaves the model, and a pipeline's steps, as they were found: unloaded, or loaded with
    the configuration that they had.
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
        self._found: Found | None = None
        self._unsettled = False
        self._version = ""
        self._loading = Loading(model)
        self._steps = tuple(steps(model))
        self._calls = calls(model)
        self._instances: Mapping[str, int] = {}

    def start(self) -> None:
        """InputRefused if the server is not in explicit mode, ServerFailed if it is not there."""
        if self._control is None:
            self._control = self._connected()
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
        wanted = configs(self._model, candidate)
        if self._control is None:
            self.start()
        if self._found is None:
            self._found = self._asked(lambda control: found(control, list(wanted)))
        timeout_s = self._spec.load_timeout_s
        try:
            reloaded = self._asked(lambda c: self._loading.bring(c, wanted, timeout_s))
        except Refused as error:
            raise not_loaded(error, candidate) from error
        except BaseException:
            self._unsettled = True
            raise
        loaded = self._asked(lambda control: loaded_configs(control, self._model))
        self._instances = instances_of(loaded)
        return applied(loaded, seconds=time.monotonic() - began, restarted=False, reloaded=reloaded)

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
        return self._asked(lambda control: control.statistics(self._steps))

    def between(self, start: StatisticsMark, end: StatisticsMark) -> ServerWindow:
        assert isinstance(start, statistics.Mark)
        assert isinstance(end, statistics.Mark)
        return statistics.between(start, end, instances=self._instances, calls=self._calls)

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
        """Raises ServerFailed if the model could not be put back: the next call tries it again."""
        control, self._control = self._control, None
        if control is None and self._found is None:
            return
        control = control or self._connected()
        try:
            if self._found is not None:
                timeout_s = self._spec.load_timeout_s
                restore(control, self._found, timeout_s, unsettled=self._unsettled)
            self._found = None
        except ServerFailed as error:
            raise ServerFailed(
                f"the model {self._model.name} on {self._endpoint.grpc} could not be left as it"
                f" was found: {error}",
                next_step="load it again there (v2/repository/models/NAME/load)",
            ) from error
        finally:
            control.close()

    def _connected(self) -> Control:
        return Control(self._endpoint.grpc, self._model.name, to_the_end=True)

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


def found(control: Control, names: Sequence[str]) -> Found:
    return {name: control.config(name) if control.loaded(name) else None for name in names}


def restore(control: Control, before: Found, timeout_s: float, *, unsettled: bool) -> None:
    """Leave each model as it was: unloaded, an ensemble before its steps; or loaded, its steps
    before an ensemble, from its file, with its configuration in the file's place where that says
    something else; a pipeline's in the file's place at once, since loading one from its file does
    not undo an override (see `loading`).

    ``unsettled``: the server may still be at a load that was given up, and serves what it served
    before until then: everything is loaded, which it does after that."""
    for name in reversed([name for name, config in before.items() if config is None]):
        control.unload(timeout_s, model=name)
    alone = len(before) == 1
    for doubted in (unsettled, False):  # twice: a load may have undone an earlier one
        for name, config in before.items():
            if config is None or not (doubted or _differs(control, name, config)):
                continue
            if alone:
                control.load(None, timeout_s)
            if (doubted and not alone) or _differs(control, name, config):
                control.load(override_json(config), timeout_s, model=name)


def _differs(control: Control, name: str, config: ModelConfig) -> bool:
    return not control.loaded(name) or control.config(name) != config


def remote_model(spec: ServerSpec, name: str, workdir: Path) -> ServedModel:
    """A model, or a pipeline, as a remote server has it loaded: its configurations alone, since its
    repository is not at hand. InputRefused if it is not loaded there."""
    control = Control(spec.grpc or "", name)
    try:
        config = control.config()
        return from_configuration(config, name, workdir, _composing(control, config))
    except Refused as error:
        raise InputRefused(
            f"the remote server has no model {name} loaded",
            value=str(error.value),
            next_step="load it there, or give model.repository",
        ) from error
    finally:
        control.close()


def _composing(control: Control, config: ModelConfig) -> dict[str, ModelConfig]:
    """The models that an ensemble needs, each after those that it needs itself."""
    needed: dict[str, ModelConfig] = {}
    for step in config.ensemble_scheduling.step:
        own = control.config(step.model_name)
        needed |= {**_composing(control, own), step.model_name: own}
    return needed
