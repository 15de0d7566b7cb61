"""Which Python the embedded server's environment is built on.

The server's Python backend has a stub for each Python 3.8 to 3.13 and reads tensors right only
with NumPy 1, which has wheels up to Python 3.12; with NumPy 2 our runner goes by DLPack, which
is right for all but strings. So: 3.11 and 3.12 first, then 3.13.
"""

from __future__ import annotations

import json
import os
import pwd
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from autotune.core.errors import ServerFailed

PREFERRED = ((3, 11), (3, 12))
POSSIBLE = (*PREFERRED, (3, 13))
_TIMEOUT_S = 30
_PROBE = """
import json, site, sys, sysconfig
v = sysconfig.get_config_var
link = " ".join(v(name) or "" for name in ("LIBS", "SYSLIBS", "MODLIBS"))
print(json.dumps([list(sys.version_info[:3]), sys.base_prefix, v("LIBDIR"), v("LIBPL"), link,
    site.getsitepackages(), sys.builtin_module_names]))
"""
HOST_PYTHON = "host-python"
"""The line of pyvenv.cfg in which a bundle's start notes the interpreter that it was run with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interpreter:
    """A CPython; ``libdir`` is where its build says that its shared library is, ``archives`` where
    its static one is, ``link`` what that wants to be linked with, ``packages`` its folders of
    site-packages, ``builtins`` the modules that are in it and not in files."""

    path: Path
    version: tuple[int, int, int]
    base_prefix: Path
    libdir: Path | None
    archives: Path | None = None
    link: tuple[str, ...] = ()
    packages: tuple[Path, ...] = ()
    builtins: frozenset[str] = frozenset()

    @property
    def minor(self) -> tuple[int, int]:
        return self.version[:2]

    @property
    def name(self) -> str:
        return f"{self.version[0]}.{self.version[1]}"

    @property
    def shared_library(self) -> str:
        """The file name that the stub of this version asks the loader for."""
        return f"libpython{self.name}.so.1.0"


def probe(path: Path) -> Interpreter | None:
    """Ask an interpreter what it is; None if it does not run."""
    try:
        answer = subprocess.run(
            [str(path), "-I", "-c", _PROBE], capture_output=True, timeout=_TIMEOUT_S, check=True
        )
        version, prefix, libdir, archives, link, packages, names = json.loads(answer.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    return Interpreter(
        path=path,
        version=(version[0], version[1], version[2]),
        base_prefix=Path(prefix),
        libdir=Path(libdir) if libdir else None,
        archives=Path(archives) if archives else None,
        link=tuple(link.split()),
        packages=tuple(Path(each) for each in packages),
        builtins=frozenset(names),
    )


def host() -> Interpreter | None:
    """The interpreter of this machine that this one was made on: the one that a bundle's start was
    run with, whose packages models may import; else this one itself. None if it does not run."""
    return probe(_noted_host() or Path(sys.executable))


def _noted_host() -> Path | None:
    try:
        lines = (Path(sys.prefix) / "pyvenv.cfg").read_text("utf-8").splitlines()
    except OSError:
        return None
    stated = [line.partition("=") for line in lines]
    return next((Path(to.strip()) for key, _, to in stated if key.strip() == HOST_PYTHON), None)


def ranked(
    own: Interpreter, find: Callable[[tuple[int, int]], Interpreter | None]
) -> Iterator[Interpreter]:
    """The usable interpreters, best first, each looked for only when it is asked for.

    The tool's own if NumPy 1 has a wheel for it, then those that ``find`` knows of a preferred
    version, then the tool's own or any other of a possible version.
    """
    seen = set()
    for wanted in (PREFERRED, POSSIBLE):
        if own.minor in wanted and own.minor not in seen:
            seen.add(own.minor)
            yield own
        for minor in reversed(wanted):
            other = None if minor in seen else find(minor)
            if other is not None:
                seen.add(minor)
                yield other


def usable_interpreters() -> Iterator[Interpreter]:
    """Interpreters on this machine for the server, best first; ServerFailed if there is none."""
    own = probe(Path(sys.executable))
    if own is None:
        raise ServerFailed("this Python cannot be run again", value=sys.executable)
    found = False
    for interpreter in ranked(own, find_installed):
        found = True
        yield interpreter
    if not found:
        raise ServerFailed(
            "the embedded server needs a Python " + _listed(POSSIBLE),
            value=f"only Python {own.version[0]}.{own.version[1]}",
            next_step="install one so that it is on PATH (for example the package python3.12, or"
            " `uv python install 3.12`), or use launch: binary, docker or remote",
        )


def find_installed(minor: tuple[int, int]) -> Interpreter | None:
    """The first interpreter of that version that runs: on PATH, then among pyenv's and uv's."""
    for path in installed_paths(minor):
        interpreter = probe(path)
        if interpreter is not None and interpreter.minor == minor:
            return interpreter
    return None


def installed_paths(minor: tuple[int, int]) -> list[Path]:
    """Where an interpreter of that version may be; pyenv's shims on PATH may not run."""
    name = f"{minor[0]}.{minor[1]}"
    on_path = shutil.which(f"python{name}")
    return [*([Path(on_path)] if on_path else []), *sorted(_managed(name))]


def _managed(name: str) -> Iterator[Path]:
    """Those of pyenv and uv: of this user, whatever HOME says, and beside the one that runs."""
    for versions in dict.fromkeys(each for home in _homes() for each in _versions(home)):
        yield from versions.glob(f"{name}*/bin/python{name}")
        yield from versions.glob(f"cpython-{name}*/bin/python{name}")


def _versions(home: Path) -> Iterator[Path]:
    yield home / ".pyenv" / "versions"
    yield home / ".local" / "share" / "uv" / "python"
    yield Path(sys.base_prefix).parent


def _homes() -> Iterator[Path]:
    with suppress(RuntimeError):  # neither HOME nor an entry for this user
        yield Path.home()
    with suppress(KeyError):
        yield Path(pwd.getpwuid(os.getuid()).pw_dir)


def _listed(versions: Sequence[tuple[int, int]]) -> str:
    names = [f"{major}.{minor}" for major, minor in versions]
    return ", ".join(names[:-1]) + " or " + names[-1]
