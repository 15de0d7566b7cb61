"""Which TCP ports a server listens on."""

from __future__ import annotations

import contextlib
import socket
from dataclasses import dataclass

from autotune.core.errors import InputRefused, ServerFailed
from autotune.core.model_interface import Endpoint

LOOPBACK = "127.0.0.1"
LOOPBACK_UP = "bring it up: `ip link set lo up`, as root of this machine or container"
_CONNECT_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    http: int
    grpc: int
    metrics: int

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint(
            http=f"{LOOPBACK}:{self.http}",
            grpc=f"{LOOPBACK}:{self.grpc}",
            metrics_url=f"http://{LOOPBACK}:{self.metrics}/metrics",
        )


def loopback_fault() -> str:
    """Why a connection within this machine does not come about; empty where one does. A port can be
    opened, too, where the interface is down."""
    try:
        with (
            socket.create_server((LOOPBACK, 0)) as listening,
            socket.create_connection(listening.getsockname(), timeout=_CONNECT_S),
        ):
            return ""
    except OSError as error:
        return error.strerror or str(error)


def refuse_without_loopback() -> None:
    """ServerFailed where no client would reach a server here."""
    fault = loopback_fault()
    if fault:
        raise ServerFailed(
            f"loopback is down: no connection to {LOOPBACK} can be made",
            value=fault,
            next_step=LOOPBACK_UP,
        )


def free_ports() -> Ports:
    """Three ports that are free now; another process may still take one before the server does."""
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(3)]
        for each in sockets:
            each.bind((LOOPBACK, 0))
        http, grpc, metrics = (each.getsockname()[1] for each in sockets)
    return Ports(http=http, grpc=grpc, metrics=metrics)


def fixed_ports(numbers: tuple[int, int, int]) -> Ports:
    """The given (http, grpc, metrics) ports; InputRefused names one that is in use or no port."""
    for name, number in zip(("http", "grpc", "metrics"), numbers, strict=True):
        if not 1 <= number <= 65535:
            raise InputRefused(f"the {name} port is between 1 and 65535", value=number)
        with socket.socket() as probe:
            # As servers do, so that a connection of an earlier run in TIME_WAIT is no obstacle.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((LOOPBACK, number))
            except OSError as error:
                raise InputRefused(
                    f"the {name} port {number} cannot be used: {error.strerror}",
                    next_step="end what listens there, choose another, or leave server.ports out"
                    " to have free ones picked",
                ) from error
    return Ports(http=numbers[0], grpc=numbers[1], metrics=numbers[2])
