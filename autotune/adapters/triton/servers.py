"""Makes the server that a study asks for."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from autotune.adapters.triton.environment import Progress, ServerEnvironment, prepare
from autotune.adapters.triton.extras import prepare_with_packages
from autotune.adapters.triton.launchers import (
    BinaryLauncher,
    DockerLauncher,
    EmbeddedLauncher,
    Launcher,
)
from autotune.adapters.triton.local import LocalServer
from autotune.adapters.triton.remote import RemoteServer
from autotune.adapters.triton.repository import ServedModel
from autotune.adapters.triton.server_python import ServerPython, of_environment, this_python
from autotune.core.errors import InputRefused
from autotune.core.study import Launch, ServerSpec
from autotune.ports import Server

T = TypeVar("T")


class Servers:
    """Makes servers, none started; logs go below ``work_dir``, the embedded one is prepared below
    ``cache_dir`` when it is first started, which ``progress`` is told of; around the one that is
    there unpacked in ``server_dir``, where that is given."""

    def __init__(
        self,
        *,
        cache_dir: Path,
        work_dir: Path,
        progress: Progress = lambda _: None,
        server_dir: Path | None = None,
    ) -> None:
        self._cache_dir = cache_dir
        self._server_dir = server_dir
        self._work_dir = work_dir
        self._progress = progress

    def tuned(self, spec: ServerSpec, model: ServedModel) -> Server:
        """A server that loads the model under each candidate's configuration."""
        if spec.launch is Launch.REMOTE:
            return RemoteServer(spec, model)
        return LocalServer(spec, model, self._launcher(spec), work_dir=self._work_dir / model.name)

    def strict(self, spec: ServerSpec, model: ServedModel) -> Server:
        """A server with auto-completion off that loads the model as its file says.

        For a remote server, whose repository is its own, a strict one cannot be had: InputRefused.
        """
        if spec.launch is Launch.REMOTE:
            raise InputRefused(
                "an export cannot be loaded again by a remote server",
                next_step="confirm it where it is deployed",
            )
        return LocalServer(
            spec,
            model,
            self._launcher(spec),
            work_dir=self._work_dir / f"{model.name}-strict",
            strict=True,
        )

    def python(self, spec: ServerSpec) -> ServerPython:
        """The Python that runs what models need run: the embedded server's, which is prepared for
        that; beside any other server, whose own is not at hand, this one."""
        if spec.launch is Launch.EMBEDDED:
            return of_environment(self._environment(spec), spec.devices)
        return this_python()

    def _launcher(self, spec: ServerSpec) -> Launcher:
        if spec.launch is Launch.EMBEDDED:
            return EmbeddedLauncher(lambda: self._environment(spec), spec.devices)
        if spec.launch is Launch.BINARY:
            binary = _given(spec.binary, "binary", "the path of a tritonserver")
            return BinaryLauncher(binary, spec.devices)
        image = _given(spec.image, "image", "a Triton image")
        return DockerLauncher(image, spec.gpus, spec.devices)

    def _environment(self, spec: ServerSpec) -> ServerEnvironment:
        if spec.requirements is None:
            return prepare(self._cache_dir, self._progress, self._server_dir)
        return prepare_with_packages(
            spec.requirements, self._cache_dir, self._progress, self._server_dir
        )


def _given(value: T | None, key: str, what: str) -> T:
    if value is None:
        raise InputRefused(f"server.{key} must give {what} for this launch")
    return value
