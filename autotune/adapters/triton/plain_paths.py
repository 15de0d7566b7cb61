"""Paths as Triton's Python backend can take them.

It starts its stub by a line of shell in which no path is quoted: in a folder with a space in its
name the stub is never found, and the server waits for it for ever.
"""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Sequence
from pathlib import Path

_FOLDERS = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108 - the folder in it is made for this alone


def is_plain(path: Path) -> bool:
    """Whether a shell takes it as one word, as it stands."""
    return shlex.quote(str(path)) == str(path)


class PlainPaths:
    """Those of one server: a path that a shell would take apart is given by a link. ``after`` is
    the command that removes the links."""

    def __init__(self) -> None:
        self._folder: Path | None = None
        self._links = 0

    def of(self, path: Path) -> Path:
        if is_plain(path):
            return path
        if self._folder is None:
            self._folder = _make_folder()
        link = self._folder / str(self._links)
        link.symlink_to(path.absolute())
        self._links += 1
        return link

    @property
    def after(self) -> Sequence[str]:
        return () if self._folder is None else ("rm", "-rf", str(self._folder))


def _make_folder() -> Path:
    """In the folder for temporary files, or in one that has a plain name."""
    roots = [Path(each) for each in (tempfile.gettempdir(), *_FOLDERS)]
    root = next(each for each in roots if is_plain(each) and each.is_dir())
    return Path(tempfile.mkdtemp(prefix="autotune-paths-", dir=root))
