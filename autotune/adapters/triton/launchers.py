"""How a tritonserver of our own is started: embedded, from a path, or in a container."""

from __future__ import annotations

import shutil
import subprocess
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import psutil

from autotune.adapters.triton import devices
from autotune.adapters.triton.environment import ServerEnvironment
from autotune.adapters.triton.plain_paths import PlainPaths
from autotune.adapters.triton.ports import LOOPBACK, Ports
from autotune.adapters.triton.process import ChildProcess, Command
from autotune.core.errors import InputRefused, ServerFailed
from search_spaces.targets import OWN_FLAGS

_DOCKER_TIMEOUT_S = 60
_NOT_THE_MODELS = dict.fromkeys(
    ("AUTOTUNE_DB", "AUTOTUNE_SECRET_KEY", "AUTOTUNE_SMTP_URL", "AUTOTUNE_WEBHOOK_URL"), ""
)
"""What this process may be told and the models that a server loads may not: passwords."""


class Launcher(Protocol):
    kind: str

    def command(self, repository: Path, ports: Ports, flags: Mapping[str, str]) -> Command:
        """What starts the server; prepares what it needs, which may take minutes once."""

    def pids(self, child: ChildProcess) -> Sequence[int]:
        """The server's process and its children."""


def arguments(repository: str, ports: Ports, flags: Mapping[str, str]) -> list[str]:
    """Tritonserver's arguments; InputRefused for a flag that autotune sets itself.

    A flag may be written with underscores, as in Python; an empty value gives the bare flag.
    """
    own = {
        "model-repository": repository,
        "model-control-mode": "explicit",
        "http-address": LOOPBACK,
        "http-port": str(ports.http),
        "grpc-address": LOOPBACK,
        "grpc-port": str(ports.grpc),
        "metrics-address": LOOPBACK,
        "metrics-port": str(ports.metrics),
        "metrics-interval-ms": "200",
    }
    given = {name.lstrip("-").replace("_", "-"): value for name, value in flags.items()}
    return [flag(name, value) for name, value in {**own, **given}.items()]


def refuse_reserved(flags: Mapping[str, str]) -> None:
    for name in flags:
        if name.lstrip("-").replace("_", "-") in OWN_FLAGS:
            raise InputRefused(
                "this server flag is autotune's own to set",
                value=name,
                next_step="take it out; ports go in server.ports, the repository in model",
            )


def flag(name: str, value: str) -> str:
    return f"--{name}={value}" if value else f"--{name}"


class EmbeddedLauncher:
    """The tritonserver of the nvidia-pytriton wheel; ``environment`` makes it on first use."""

    kind = "embedded"

    def __init__(
        self, environment: Callable[[], ServerEnvironment], devices: Sequence[str] = ()
    ) -> None:
        self._environment = environment
        self._devices = devices

    def command(self, repository: Path, ports: Ports, flags: Mapping[str, str]) -> Command:
        devices.refuse_gone(self._devices)
        prefix, plain = _shm_prefix(), PlainPaths()
        environment = self._environment()
        environment = replace(environment, root=plain.of(environment.root))
        return Command(
            argv=[
                str(environment.tritonserver),
                f"--backend-directory={plain.of(environment.backends)}",
                f"--backend-config=python,shm-region-prefix-name={prefix}",
                *arguments(str(plain.of(repository)), ports, flags),
            ],
            variables={
                **environment.variables(),
                **devices.variables(self._devices),
                **_NOT_THE_MODELS,
            },
            shm_prefix=prefix,
            after=plain.after,
        )

    def pids(self, child: ChildProcess) -> Sequence[int]:
        return child.pids()


class BinaryLauncher:
    """A tritonserver that is installed here."""

    kind = "binary"

    def __init__(self, binary: Path, devices: Sequence[str] = ()) -> None:
        self._binary = binary
        self._devices = devices

    def command(self, repository: Path, ports: Ports, flags: Mapping[str, str]) -> Command:
        binary = shutil.which(str(self._binary))
        if binary is None:
            raise InputRefused(
                "server.binary is the path of an executable tritonserver",
                value=str(self._binary),
                next_step="correct the path, or use launch: embedded",
            )
        devices.refuse_gone(self._devices)
        prefix, plain = _shm_prefix(), PlainPaths()
        return Command(
            argv=[
                binary,
                f"--backend-config=python,shm-region-prefix-name={prefix}",
                *arguments(str(plain.of(repository)), ports, flags),
            ],
            variables={**devices.variables(self._devices), **_NOT_THE_MODELS},
            shm_prefix=prefix,
            after=plain.after,
        )

    def pids(self, child: ChildProcess) -> Sequence[int]:
        return child.pids()


class DockerLauncher:
    """A container of an image that is present, on the host's network, bound to loopback.

    The host's network keeps Docker's address translation out of what is measured.
    """

    kind = "docker"

    def __init__(self, image: str, gpus: str | None = None, devices: Sequence[str] = ()) -> None:
        self._image = image
        self._gpus = gpus
        self._devices = devices
        self._name = ""
        self._pid: int | None = None

    def command(self, repository: Path, ports: Ports, flags: Mapping[str, str]) -> Command:
        docker = self._docker()
        self._name = f"autotune-{uuid.uuid4().hex[:12]}"
        self._pid = None
        devices.refuse_gone(self._devices)
        gpus = devices.docker_arguments(self._devices, self._gpus)
        return Command(
            argv=[
                *(docker, "run", "--rm", "--pull=never", f"--name={self._name}"),
                *("--network=host", "--shm-size=1g", *gpus),
                *("--volume", f"{repository.absolute()}:/models:ro", self._image),
                *("tritonserver", *arguments("/models", ports, flags)),
            ],
            after=[docker, "rm", "--force", self._name],
        )

    def pids(self, child: ChildProcess) -> Sequence[int]:  # noqa: ARG002
        """The container's processes as the host sees them; empty where they are hidden."""
        try:
            if self._pid is None:
                answer = self._ask(["inspect", "--format={{.State.Pid}}", self._name])
                self._pid = int(answer.stdout)
            server = psutil.Process(self._pid)
            return [server.pid, *(each.pid for each in server.children(recursive=True))]
        except (ServerFailed, ValueError, psutil.Error):
            return []

    def _docker(self) -> str:
        docker = shutil.which("docker")
        if docker is None:
            raise InputRefused(
                "launch: docker needs the docker command on PATH",
                next_step="install Docker, or use launch: embedded, binary or remote",
            )
        if self._ask(["image", "inspect", self._image]).returncode != 0:
            raise InputRefused(
                "the image is not on this machine, or Docker does not answer",
                value=self._image,
                next_step=f"try `docker pull {self._image}`",
            )
        return docker

    def _ask(self, arguments: list[str]) -> subprocess.CompletedProcess[str]:
        try:
            return subprocess.run(
                ["docker", *arguments],  # noqa: S607
                capture_output=True,
                text=True,
                timeout=_DOCKER_TIMEOUT_S,
                check=False,
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise ServerFailed("docker does not answer", value=str(error)) from error


def _shm_prefix() -> str:
    return f"autotune_{uuid.uuid4().hex[:12]}_"
