"""``autotune serve``: a web server, and beside it a scheduler, a worker and what tidies up."""

from __future__ import annotations

import errno
import ipaddress
import os
import secrets
import signal
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Protocol

import structlog
import uvicorn
from fastapi import FastAPI

from autotune.adapters.scheduling import Scheduler
from autotune.bootstrap.access import Access
from autotune.bootstrap.desks import compose
from autotune.bootstrap.guard import Limits
from autotune.bootstrap.readiness import Readiness
from autotune.bootstrap.schedules import begin_run
from autotune.bootstrap.service import open_service
from autotune.bootstrap.settling import Settling
from autotune.bootstrap.upkeep import Aftermath, Forgetting, Upkeep
from autotune.bootstrap.web import web_app
from autotune.bootstrap.worker import GRACE_S, Timing, Worker, job_command
from autotune.core.errors import AutotuneError, InputRefused, Interrupted
from autotune.core.jobs import Place
from autotune.settings import Settings
from storage.opening import parse_url, shown
from storage.service import ServiceStore

SESSION_KEY = "session.key"
_DRAIN_S = 5
"""How long requests under way may take when the service is stopped."""
_BACKLOG = 2048
_END_S = GRACE_S + 15
"""How long all the rest may take then: longer than a job that is asked to stop."""

log = structlog.get_logger("autotune.serve")


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """``root`` is the folder that requests may name paths in, ``hosts`` are names that the service
    goes by besides its address, ``remotes`` hosts of Triton servers that requests may name,
    ``proxies`` addresses or networks of the proxies that are believed who asks through them.
    ``lease_s``: how long a worker that gives no sign of life keeps its job. ``keep_samples_days``:
    how long the raw times of a study's requests are kept; None for ever."""

    db: str
    root: Path
    host: str = "127.0.0.1"
    port: int = 8080
    hosts: Sequence[str] = ()
    remotes: Sequence[str] = ()
    proxies: Sequence[str] = ()
    worker: bool = True
    scheduler: bool = True
    lease_s: float = 30.0
    keep_samples_days: float | None = None


class Part(Protocol):
    """Something that runs beside the web server."""

    def start(self) -> None: ...

    def alive(self) -> bool: ...

    def stop(self) -> None: ...


def serve(asked: Asked) -> None:
    """Until SIGTERM or Ctrl-C; returns when every part has ended."""
    settings = Settings.from_environment()
    settings.refuse_unusable()
    settings.service_dir.mkdir(parents=True, exist_ok=True)
    addresses = _addresses(asked)
    _refuse_names_of_proxies(asked)
    loopback = not asked.proxies and all(
        ipaddress.ip_address(each[0]).is_loopback for _, each in addresses
    )
    with ExitStack() as stack:
        store = stack.enter_context(open_service(asked.db))
        _refuse_open_door(asked, store, loopback=loopback)
        listening = stack.enter_context(_bound(asked, addresses[0]))
        parts = _parts(asked, store, settings)
        ready = Readiness(store, parts=parts, folder=settings.service_dir)
        desks = compose(
            store,
            settings=settings,
            access=Access(store.tokens, loopback=loopback),
            limits=Limits(root=asked.root.resolve(), remotes=tuple(asked.remotes)),
            problems=ready.problems,
        )
        app = web_app(desks, key=_session_key(settings), hosts=asked.hosts)
        told = {"database": shown(parse_url(asked.db)), "parts": ",".join(["web", *parts])}
        _run(
            _server(
                app,
                asked.proxies,
                lambda: log.info("serving", url=_url(listening), **told),
            ),
            listening,
            parts,
        )


def _run(server: uvicorn.Server, listening: socket.socket, parts: Mapping[str, Part]) -> None:
    started: list[Part] = []
    try:
        for part in parts.values():
            part.start()
            started.append(part)
        with suppress(Interrupted):  # by then the web server has answered what it was asked
            server.run(sockets=[listening])
    finally:
        log.info("stopping")
        _end_in_time()
        _stop(started)
    log.info("stopped")


def _stop(parts: Sequence[Part]) -> None:
    """All at once: one may have to wait for a job to end."""
    threads = [threading.Thread(target=part.stop) for part in parts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _end_in_time() -> None:
    """By force, where a thread waits for a database that hangs: Python waits for them all. Leases
    run out, and the guard of a job ends it."""

    def end() -> None:
        log.error("ended by force: something still waits, for a database that does not answer?")
        os._exit(1)

    timer = threading.Timer(_END_S, end)
    timer.daemon = True
    timer.start()


# ---------------------------------------------------------------------------------------- parts
def _parts(asked: Asked, store: ServiceStore, settings: Settings) -> Mapping[str, Part]:
    """By names that anyone may read."""
    if not asked.worker and not asked.scheduler:
        return {}
    aftermath = Aftermath(
        jobs=store.jobs,
        schedules=store.schedules,
        promotions=store.promotions,
        notices=store.notices,
        settings=settings,
    )
    forgetting = None
    if asked.keep_samples_days is not None:
        forgetting = Forgetting(forget=store.forget_samples, days=asked.keep_samples_days)
    upkeep = Upkeep(
        aftermath,
        store.notices,
        settings,
        forgetting=forgetting,
        settle=Settling(store).see_to,
    )
    parts: dict[str, Part] = {"upkeep": upkeep}
    if asked.worker:
        url = parse_url(asked.db).render_as_string(hide_password=False)
        parts["worker"] = Worker(
            store.jobs,
            command=lambda job: job_command(job, url),
            logs=settings.service_dir / "logs",
            ended=lambda _: upkeep.hurry(),
            timing=Timing.of_lease(asked.lease_s),
            place=Place(machine=settings.machine, slot=settings.slot),
        )
    if asked.scheduler:
        parts["scheduler"] = Scheduler(
            store.engine,
            schedules=store.schedules.schedules,
            fire=lambda name, at: begin_run(store, name, at),
        )
    return parts


# ----------------------------------------------------------------------------------- web server
def _server(app: FastAPI, proxies: Sequence[str], begun: Callable[[], None]) -> uvicorn.Server:
    """``begun`` is called when it answers. A lost terminal ends it as SIGTERM does."""

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
                signal.signal(signal.SIGHUP, self.handle_exit)
            begun()

    return Server(
        uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            server_header=False,
            http="h11",  # which bounds a request's head: httptools, where it is there, does not
            ws="none",
            proxy_headers=bool(proxies),
            forwarded_allow_ips=list(proxies),
            timeout_graceful_shutdown=_DRAIN_S,
        )
    )


def _url(listening: socket.socket) -> str:
    address, port = listening.getsockname()[:2]
    return f"http://[{address}]:{port}" if ":" in address else f"http://{address}:{port}"


# ----------------------------------------------------------------------------------------- doors
def _addresses(asked: Asked) -> list[tuple[socket.AddressFamily, tuple[str, int]]]:
    """What the host's name stands for."""
    try:
        found = socket.getaddrinfo(
            asked.host, asked.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except OSError as exc:
        raise InputRefused(
            "this machine has no such address", value=asked.host, next_step="e.g. --host 127.0.0.1"
        ) from exc
    return [(family, (str(where[0]), int(where[1]))) for family, _, _, _, where in found]


def _refuse_open_door(asked: Asked, store: ServiceStore, *, loopback: bool) -> None:
    if not loopback and not store.tokens.valid():
        raise InputRefused(
            "others could reach the service at this address, and no token is there to ask them for",
            value=asked.host,
            next_step="make one first: autotune token add NAME --role operate",
        )


def _refuse_names_of_proxies(asked: Asked) -> None:
    for proxy in asked.proxies:
        try:
            ipaddress.ip_network(proxy)
        except ValueError as exc:
            raise InputRefused(
                "a proxy is named by its address or its network",
                value=proxy,
                next_step="e.g. --trust-proxy 127.0.0.1",
            ) from exc


def _bound(asked: Asked, address: tuple[socket.AddressFamily, tuple[str, int]]) -> socket.socket:
    family, where = address
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(where)
        listening.listen(_BACKLOG)  # now: two that are bound may both believe that it is theirs
    except OSError as exc:
        listening.close()
        busy = exc.errno == errno.EADDRINUSE
        raise AutotuneError(
            f"port {asked.port} of {asked.host} "
            + ("is taken by another program" if busy else f"cannot be had: {exc.strerror}"),
            next_step="give another one with --port; 0 takes a free one",
        ) from exc
    return listening


def _session_key(settings: Settings) -> str:
    """The settings' own, or one that is made once and that only its owner may read."""
    if settings.secret_key is not None:
        return settings.secret_key
    path = settings.service_dir / SESSION_KEY
    if not path.exists():
        with NamedTemporaryFile("w", dir=settings.service_dir) as fresh:  # its owner's alone
            fresh.write(secrets.token_hex(32))
            fresh.flush()
            with suppress(FileExistsError):  # another process was faster: one key for both
                os.link(fresh.name, path)
    return path.read_text()
