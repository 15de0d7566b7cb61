"""What the environment decides: the one place that reads environment variables."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

import platformdirs

from autotune.core.errors import InputRefused

APP = "triton-autotune"
SHORTEST_SECRET = 6
"""Letters of a part of an address that may be a secret; a shorter one stands in any text."""
LONGEST = {"AUTOTUNE_SLOT": 60, "AUTOTUNE_MACHINE": 253}
"""A slot's name becomes part of a socket's; a machine's may be a full host name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NotifySettings:
    """Where notices go; a channel that is not set is not there. ``webhook`` (AUTOTUNE_WEBHOOK_URL)
    is posted to. ``smtp`` (AUTOTUNE_SMTP_URL: ``smtp://user:password@host:587``, ``smtps://`` for
    TLS from the start) takes mail from ``mail_from`` (AUTOTUNE_MAIL_FROM) to ``mail_to``
    (AUTOTUNE_MAIL_TO, comma-separated). Addresses may be secrets: they are never stored, logged or
    shown."""

    webhook: str | None = field(default=None, repr=False)
    smtp: str | None = field(default=None, repr=False)
    mail_from: str | None = None
    mail_to: tuple[str, ...] = ()

    @property
    def secrets(self) -> frozenset[str]:
        """What may stand nowhere: the addresses, their paths, passwords."""
        found: set[str] = set()
        for address in filter(None, (self.webhook, self.smtp)):
            found |= {address, *_secret_parts(address)}
        return frozenset(found)

    @classmethod
    def from_environment(cls) -> NotifySettings:
        env = os.environ
        to = env.get("AUTOTUNE_MAIL_TO", "")
        return cls(
            webhook=env.get("AUTOTUNE_WEBHOOK_URL") or None,
            smtp=env.get("AUTOTUNE_SMTP_URL") or None,
            mail_from=env.get("AUTOTUNE_MAIL_FROM") or None,
            mail_to=tuple(filter(None, (each.strip() for each in to.split(",")))),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """``cache_dir`` (AUTOTUNE_CACHE) holds what can be built again: the embedded server, fetched
    models. ``work_dir`` (AUTOTUNE_WORK) holds server logs and model repositories of running
    studies. ``database`` (AUTOTUNE_DB) is the default database URL or path. ``server_dir``
    (AUTOTUNE_SERVER) holds an embedded server that is there already, as a bundle brings it; None
    has one built in ``cache_dir``. ``slot`` (AUTOTUNE_SLOT) names the part of this machine that is
    measured on, where it was split (empty: all of it); studies on different slots may run at once.
    ``ray_address`` (AUTOTUNE_RAY_ADDRESS) is the Ray cluster that ``--executor ray`` runs on.
    ``machine`` (AUTOTUNE_MACHINE) is what the machine is called in leases: its host name, unless
    that is a container's, of which several may be on one machine.
    ``visible_devices`` (CUDA_VISIBLE_DEVICES) is what CUDA shows this process and those that it
    starts, as a batch system sets it; None shows all. ``service_dir`` (AUTOTUNE_SERVICE; by default
    below ``work_dir``, under a name that no study can have) holds what the service keeps beside the
    database: exports of jobs, their logs, releases. ``secret_key`` (AUTOTUNE_SECRET_KEY) signs its
    sessions; None has one made and kept in ``service_dir``."""

    cache_dir: Path
    work_dir: Path
    database: str
    server_dir: Path | None = None
    slot: str = ""
    ray_address: str = "auto"
    machine: str = field(default_factory=platform.node)
    visible_devices: str | None = None
    service_dir: Path
    secret_key: str | None = field(default=None, repr=False)
    notify: NotifySettings = field(default_factory=NotifySettings)

    def refuse_unusable(self) -> None:
        """InputRefused, with the variable's name, unless both directories can be had."""
        for path, variable in (
            (self.cache_dir, "AUTOTUNE_CACHE"),
            (self.work_dir, "AUTOTUNE_WORK"),
        ):
            try:
                path.mkdir(parents=True, exist_ok=True)
                writable = os.access(path, os.W_OK | os.X_OK)
            except OSError:
                writable = False
            if not writable:
                raise InputRefused(
                    f"a directory that autotune needs cannot be written: {path}",
                    next_step=f"set {variable} to one that can (or HOME, below which it is found)",
                )

    @classmethod
    def from_environment(cls) -> Settings:
        env = os.environ
        cache = env.get("AUTOTUNE_CACHE") or platformdirs.user_cache_path(APP)
        work = Path(env.get("AUTOTUNE_WORK") or platformdirs.user_state_path(APP))
        service = Path(env.get("AUTOTUNE_SERVICE") or work / ".service")
        server = env.get("AUTOTUNE_SERVER")
        return cls(
            cache_dir=Path(cache).expanduser().absolute(),
            work_dir=work.expanduser().absolute(),
            database=env.get("AUTOTUNE_DB") or "autotune.db",
            server_dir=Path(server).expanduser().absolute() if server else None,
            ray_address=env.get("AUTOTUNE_RAY_ADDRESS") or "auto",
            slot=_plain("AUTOTUNE_SLOT", env.get("AUTOTUNE_SLOT", "")),
            machine=_plain("AUTOTUNE_MACHINE", env.get("AUTOTUNE_MACHINE", "")) or platform.node(),
            visible_devices=env.get("CUDA_VISIBLE_DEVICES"),
            service_dir=service.expanduser().absolute(),
            secret_key=env.get("AUTOTUNE_SECRET_KEY") or None,
            notify=NotifySettings.from_environment(),
        )


def _secret_parts(address: str) -> Iterator[str]:
    try:
        parts = urlsplit(address)
    except ValueError:
        return
    password = parts.password or ""
    for part in (password, unquote(password), parts.path, parts.query):
        if len(part) >= SHORTEST_SECRET:
            yield part


def _plain(variable: str, name: str) -> str:
    if len(name) > LONGEST[variable] or not name.isascii() or not name.isprintable():
        raise InputRefused(
            f"{variable} is at most {LONGEST[variable]} plain letters, digits or signs", value=name
        )
    return name
