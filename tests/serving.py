"""The dashboard on a real database, as `autotune serve` puts it together, served on loopback.

python -m tests.serving DATABASE FOLDER    says its address, and serves until it is ended
"""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from typing import Any

import structlog
import uvicorn
from fastapi import FastAPI

from autotune.bootstrap.desk_studies import Studies
from autotune.bootstrap.web import web_app
from autotune.core.access import Identity, Role
from autotune.core.errors import InputRefused
from autotune.core.jobs import Job
from autotune.service_ports import Desks
from autotune.settings import Settings
from storage.service.database import Database
from storage.store import SqlTrialStore
from storage.summaries import SqlStudyReader


@dataclass
class JobsInHand:
    """The part of a JobStore that lists jobs."""

    known: Sequence[Job] = ()

    def jobs(self, **_asked: Any) -> Sequence[Job]:
        return self.known


class OpenDoor:
    """An AccessDesk that asks nobody."""

    def required(self) -> bool:
        return False

    def identify(self, secret: str) -> Identity | None:
        return Identity(name=secret, role=Role.VIEW)

    def holder(self, token: str) -> Identity | None:
        return None


def refuse(_definition: Mapping[str, Any], _by: str) -> Job:
    raise InputRefused("nothing is run here")


def studies_desk(where: str, cache: Path, jobs: Sequence[Job] = ()) -> Studies:
    return Studies(
        store=SqlTrialStore(where),
        reader=SqlStudyReader(Database(where)),
        jobs=JobsInHand(jobs),  # type: ignore[arg-type]
        settings=Settings(
            cache_dir=cache, work_dir=cache, database=where, service_dir=cache / "service"
        ),
        submit=refuse,
    )


def desks_of(studies: Any, **others: Any) -> Desks:
    """Desks of which the studies' is real; the others are given, or not to be asked."""
    nobody: Any = object()
    given = {
        "jobs": nobody,
        "schedules": nobody,
        "promotions": nobody,
        "access": OpenDoor(),
        "checks": nobody,
        "notices": lambda: (),
        "problems": lambda: (),
    }
    return Desks(studies=studies, **{**given, **others})


@contextmanager
def served(app: FastAPI) -> Iterator[str]:
    """The application's address, while it is served in a thread."""
    config = uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error", ws="none")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive(), "the dashboard did not start"
            time.sleep(0.02)
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(20)


@contextmanager
def served_apart(where: str, folder: Path) -> Iterator[tuple[str, int]]:
    """The dashboard in a process of its own, whose id comes with the address."""
    command = [sys.executable, "-m", "tests.serving", where, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip(), process.pid
        finally:
            process.terminate()


def main() -> None:
    where, folder = sys.argv[1:]
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    app = web_app(desks_of(studies_desk(where, Path(folder))), key=token_hex())
    with served(app) as address:
        sys.stdout.write(address + "\n")
        sys.stdout.flush()
        threading.Event().wait()


if __name__ == "__main__":
    main()
