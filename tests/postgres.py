"""A PostgreSQL server of the tests' own, from the binaries that this machine has."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

START_S = 60.0
USER = "autotune"


def binaries() -> Path | None:
    """The folder of initdb and postgres; None where there is no server."""
    found = shutil.which("initdb")
    if found is not None:
        return Path(found).resolve().parent
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), reverse=True)
    return folders[0].parent if folders else None


@contextmanager
def server() -> Iterator[str]:
    """The URL of a database in which the tests may do as they like, on loopback; the server and its
    files go with the context. (They are not below pytest's own folder, which each further session
    of pytest closes to other accounts.)"""
    with (
        tempfile.TemporaryDirectory(prefix="autotune-postgresql-") as name,
        _server(Path(name)) as url,
    ):
        yield url


@contextmanager
def _server(folder: Path) -> Iterator[str]:
    programs = binaries()
    assert programs is not None
    account = _account()
    data = folder / "data"
    if account is not None:
        shutil.chown(folder, account)
    options = ["--username", USER, "--auth", "trust", "--no-sync", "--encoding", "UTF8"]
    _run([programs / "initdb", "--pgdata", data, *options], account)
    port = _free_port()
    command = [programs / "postgres", "-D", data, "-p", port, "-k", folder, "-h", "127.0.0.1"]
    log = folder / "log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            list(map(str, [*command, "-c", "fsync=off"])),
            stdout=file,
            stderr=subprocess.STDOUT,
            user=account,
            cwd="/",
        )
        try:
            _wait_for(process, port, log)
            yield f"postgresql+psycopg://{USER}@127.0.0.1:{port}/postgres"
        finally:
            process.send_signal(signal.SIGINT)  # not SIGTERM: that waits until all have gone
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(10)


def _account() -> str | None:
    """Whom to run it as: the server refuses to be root's. None: as ourselves."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            pwd.getpwnam(name)
        except KeyError:
            continue
        return name
    raise AssertionError("root has no other account to run PostgreSQL as")


def _run(command: list[object], account: str | None) -> None:
    done = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, check=False, user=account, cwd="/"
    )
    assert done.returncode == 0, done.stdout + done.stderr


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_for(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        assert process.poll() is None, log.read_text(errors="replace")
        if "ready to accept connections" in log.read_text(errors="replace"):
            with socket.create_connection(("127.0.0.1", port), timeout=5):
                return
        time.sleep(0.1)
    raise AssertionError(f"PostgreSQL did not come up: {log.read_text(errors='replace')}")
