"""Files that outlast a power cut, and directories that change places in one step (Linux)."""

from __future__ import annotations

import ctypes
import errno
import os
from pathlib import Path

_AT_FDCWD = -100
_RENAME_NOREPLACE = 1
_RENAME_EXCHANGE = 2
_LACKING = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP)


def exchange(one: Path, other: Path) -> bool:
    """``renameat2(RENAME_EXCHANGE)``: each gets the other's name, and nobody ever sees only one of
    them. False where kernel or file system lack it."""
    return _renameat2(one, other, _RENAME_EXCHANGE)


def rename_into_nothing(source: Path, target: Path) -> bool:
    """``renameat2(RENAME_NOREPLACE)``; FileExistsError where ``target`` is there. False where
    kernel or file system lack it."""
    return _renameat2(source, target, _RENAME_NOREPLACE)


def _renameat2(source: Path, target: Path, flags: int) -> bool:
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except AttributeError:
        return False
    paths = [os.fsencode(path) for path in (source, target)]
    if renameat2(_AT_FDCWD, paths[0], _AT_FDCWD, paths[1], flags) == 0:
        return True
    code = ctypes.get_errno()
    if code in _LACKING:
        return False
    raise OSError(code, os.strerror(code), str(target))


def write_synced(path: Path, text: str) -> None:
    """Write a new file, in place of an older one of that name but not into it: that may have other
    links."""
    path.unlink(missing_ok=True)
    with path.open("w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())


def replace_synced(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    fresh = path.with_name(f"{path.name}.new")
    write_synced(fresh, text)
    fresh.replace(path)
    sync_directory(path.parent)


def sync_tree(root: Path) -> None:
    """Every file and directory below ``root``, and itself; symbolic links, pipes and the like are
    left alone."""
    for directory, _, files in os.walk(root):
        for file in files:
            path = Path(directory) / file
            if path.is_file() and not path.is_symlink():
                with path.open("rb") as stream:
                    os.fsync(stream.fileno())
        sync_directory(Path(directory))


def sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
