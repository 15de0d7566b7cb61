"""The embedded server in a bundle: tritonserver and its Python backend, in the layout of the wheel,
by which they find their libraries."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import partial
from pathlib import Path

from autotune.adapters.bundle import binaries
from autotune.adapters.bundle.staged import Component, Staged
from autotune.adapters.bundle.target import Target
from autotune.adapters.triton import libpython, unpacked

FOLDER = "server"
PACKAGES = f"{FOLDER}/site"
LIBPYTHON = f"{FOLDER}/libpython"
_TRITON = "pytriton/tritonserver"
_STUBS = f"{PACKAGES}/{_TRITON}/python_backend_stubs"
_STUB = "triton_python_backend_stub"
_LIBRARIES = f"{PACKAGES}/nvidia_pytriton.libs"
_OWN = Component(name="triton-autotune", version="", folder=FOLDER)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spare:
    """A shared libpython of this machine that goes along, for hosts that have none."""

    library: Path
    version: str
    licence: Path | None


def finish(staged: Staged, target: Target, spare: Spare | None) -> None:
    """Of nvidia-pytriton's files, which are staged, keep what a server on the target needs, and
    describe the server for `environment.prepare`."""
    _place_stub(staged, target)
    _blank_data(staged)
    name = f"libpython{target.version}.so.1.0"
    links = _take_out_brought(staged, target, name)
    if spare is not None:
        _add_libpython(staged, name, spare)
    description = unpacked.describe(
        target.minor,
        links or name,
        tritonserver=f"site/{_TRITON}/bin/tritonserver",
        backends=f"site/{_TRITON}/backends",
        packages="site",
        spare=f"libpython/{name}",
    )
    staged.add_text(_OWN, unpacked.DESCRIPTION, description)


def _take_out_brought(staged: Staged, target: Target, name: str) -> str | None:
    """Have the libpython that came with the stub stand where a spare one does, and give what the
    stub calls it."""
    pattern = f"{_LIBRARIES}/libpython{target.minor[0]}-*.{target.minor[1]}.so.1.0"
    brought = next((path for path in staged.below(_LIBRARIES) if fnmatch(path, pattern)), None)
    if brought is None or target.minor not in libpython.BROUGHT:
        return None
    library = staged.root / brought
    version = libpython.version_of(library) or ""
    _add_libpython(staged, name, Spare(library=library, version=version, licence=None))
    staged.remove(brought)
    return library.name


def _place_stub(staged: Staged, target: Target) -> None:
    owner = staged.owners[f"{PACKAGES}/{_TRITON}/bin/tritonserver"]
    stub = staged.root / _STUBS / target.version / _STUB
    staged.add(owner, f"{_TRITON}/backends/python/{_STUB}", partial(shutil.copyfile, stub))
    for path in staged.below(_STUBS):
        staged.remove(path)


def _blank_data(staged: Staged) -> None:
    """ICU's tables, of which Triton's XML reader for remote model repositories would take encodings
    other than UTF-8. ICU is used to having none: its own name for that is stub data."""
    for path in staged.below(_LIBRARIES):
        if Path(path).name.startswith("libicudata"):
            binaries.blank(staged.root / path)


def _add_libpython(staged: Staged, name: str, spare: Spare) -> None:
    owner = Component(name="libpython", version=spare.version, folder=LIBPYTHON)
    staged.add(owner, name, partial(shutil.copyfile, spare.library))
    if spare.licence is not None:
        staged.add(owner, "LICENSE.txt", partial(shutil.copyfile, spare.licence))
