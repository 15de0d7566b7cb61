"""Temporary folders that do not outlive a process that was killed by more than its next run."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_RANDOM = r"[a-z0-9_]{8}"
"""What `tempfile` puts behind a prefix."""


@contextmanager
def scratch(prefix: str, folder: Path | None = None) -> Iterator[Path]:
    """A temporary folder in ``folder`` (None: in that for temporary files), removed at the end;
    those of the same prefix that killed processes left there are removed first.

    Its process holds a lock on it, which the kernel releases however that ends: so one that is used
    by another process, of a container too that shares the folder, is known.
    """
    parent = Path(tempfile.gettempdir()) if folder is None else folder
    _sweep(parent, prefix)
    made, lock = _locked(parent, prefix)
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)
        os.close(lock)


def _locked(parent: Path, prefix: str) -> tuple[Path, int]:
    """Another process may sweep a folder away that is made and not locked yet."""
    while True:
        made = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        lock = os.open(made, os.O_RDONLY)
        with suppress(OSError):  # a file system without locks: nothing is swept there either
            fcntl.flock(lock, fcntl.LOCK_EX)
        if made.exists():
            return made, lock
        os.close(lock)


def _sweep(parent: Path, prefix: str) -> None:
    whole = re.compile(re.escape(prefix) + _RANDOM)
    entries: list[Path] = []
    with suppress(OSError):  # it may be written, but not read
        entries += parent.iterdir()
    for entry in entries:
        if whole.fullmatch(entry.name):
            with suppress(OSError):  # in use, another user's, or gone meanwhile
                _remove_unused(entry)


def _remove_unused(folder: Path) -> None:
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if os.fstat(lock).st_uid == os.getuid():
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder)
    finally:
        os.close(lock)
