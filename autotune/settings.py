"""What the environment decides: the one place that reads environment variables."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from autotune.core.errors import InputRefused

APP = "triton-autotune"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """``cache_dir`` (AUTOTUNE_CACHE) holds what can be built again: the embedded server, fetched
    models. ``work_dir`` (AUTOTUNE_WORK) holds server logs and model repositories of running
    studies. ``database`` (AUTOTUNE_DB) is the default database URL or path. ``server_dir``
    (AUTOTUNE_SERVER) holds an embedded server that is there already, as a bundle brings it; None
    has one built in ``cache_dir``."""

    cache_dir: Path
    work_dir: Path
    database: str
    server_dir: Path | None = None

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
        work = env.get("AUTOTUNE_WORK") or platformdirs.user_state_path(APP)
        server = env.get("AUTOTUNE_SERVER")
        return cls(
            cache_dir=Path(cache).expanduser().absolute(),
            work_dir=Path(work).expanduser().absolute(),
            database=env.get("AUTOTUNE_DB") or "autotune.db",
            server_dir=Path(server).expanduser().absolute() if server else None,
        )
