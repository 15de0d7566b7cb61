"""An embedded server that is there already, as a bundle brings it, and the Python it runs on."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from autotune.adapters.triton import libpython
from autotune.adapters.triton.interpreter import Interpreter, find_installed, host
from autotune.core.errors import ServerFailed

DESCRIPTION = "server.json"
"""What describes the server, in its folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unpacked:
    """``packages`` are the server's own; ``links`` is what its stub calls its libpython; ``spare``
    is one for machines that have none, which may be missing."""

    python: tuple[int, int]
    tritonserver: Path
    backends: Path
    packages: Path
    links: str
    spare: Path

    def interpreter(self) -> Interpreter:
        """The interpreter that the bundle was started with, or another of that version."""
        own = host()
        found = own if own and own.minor == self.python else find_installed(self.python)
        if found is None:
            version = ".".join(map(str, self.python))
            raise ServerFailed(
                f"the unpacked server needs Python {version}",
                value=sys.executable,
                next_step="start autotune by the script beside it, or put that Python on PATH",
            )
        return found

    def libpython(
        self, python: Interpreter, cache_dir: Path, progress: Callable[[str], None]
    ) -> Path:
        """What its stub will link, nothing fetched; `libpython.NoLibpython`."""
        return libpython.locate_offline(python, cache_dir, progress, self.spare)

    def examine(self) -> str:
        """How it would run here, in words, nothing prepared; ServerFailed says what this machine
        lacks."""
        python = self.interpreter()
        if not os.access(self.tritonserver, os.X_OK):
            raise ServerFailed(
                "the unpacked server may not be executed",
                value=str(self.tritonserver),
                next_step="unpack the bundle on a file system that is not mounted noexec",
            )
        return f"unpacked, for Python {python.name} at {python.path}; {self._stub_words(python)}"

    def _stub_words(self, python: Interpreter) -> str:
        found = libpython.find(python)
        if found is not None:
            return f"{found} serves its stub"
        if (archive := libpython.static_library(python)) and libpython.compiler():
            return f"a libpython for its stub is linked from {archive}"
        if not libpython.suits(self.spare, python):
            raise libpython.lacking(python)
        return (
            f"there is no {python.shared_library} here: the bundle's own, of Python"
            f" {libpython.version_of(self.spare)}, serves its stub"
        )


def read(server_dir: Path) -> Unpacked:
    """ServerFailed if there is none."""
    try:
        told = json.loads((server_dir / DESCRIPTION).read_text("utf-8"))
        (major, minor), links = told.pop("python"), told.pop("links")
        paths = {name: server_dir / path for name, path in told.items()}
        return Unpacked(python=(major, minor), links=links, **paths)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ServerFailed(
            "AUTOTUNE_SERVER is the server/ folder of an unpacked bundle",
            value=str(server_dir),
            next_step="unpack it again, or unset AUTOTUNE_SERVER",
        ) from error


def describe(python: tuple[int, int], links: str, **paths: str) -> str:
    """The description of a server whose files are at these paths below its folder."""
    return json.dumps({"python": list(python), "links": links, **paths}, indent=2) + "\n"


def link_environment(root: Path, python: Interpreter, packages: Sequence[Path]) -> None:
    """A virtual environment without a file of its own: Python, and folders of packages to be looked
    through in that order. One whose name is not ASCII is given by a link: the Python in the stub
    never asks for the locale, and can name no other."""
    (root / "bin").mkdir(parents=True)
    for name in ("python", "python3", f"python{python.name}"):
        (root / "bin" / name).symlink_to(python.path.resolve())
    site = root / "lib" / f"python{python.name}" / "site-packages"
    site.mkdir(parents=True)
    lines = [_path_line(root, number, folder) for number, folder in enumerate(packages)]
    (site / "packages.pth").write_text("".join(lines), "ascii")
    (root / "pyvenv.cfg").write_text(f"home = {python.base_prefix / 'bin'}\n", "utf-8")


def _path_line(root: Path, number: int, folder: Path) -> str:
    if str(folder).isascii():
        return f"import site; site.addsitedir({str(folder)!r})\n"
    (root / "packages").mkdir(exist_ok=True)
    (root / "packages" / str(number)).symlink_to(folder)
    return f"import site, sys; site.addsitedir(sys.prefix + '/packages/{number}')\n"
