"""The shared libraries that wheels bring along: only those that something packed links."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath

from autotune.adapters.bundle import binaries
from autotune.adapters.bundle.staged import Staged, is_elf

_BROUGHT = ".libs"
"""How the folder's name ends in which auditwheel puts a distribution's libraries."""
_BLAS_NAME = re.compile(rb"(?<=\0)scipy_[a-z]+_(?=\0)")
"""In a library's table of symbols, a function of SciPy's own build of OpenBLAS."""
_HARMONICS = b"scipy_dstevr_"
_ABORT = b"abort".ljust(len(_HARMONICS), b"\0")


def trim(staged: Staged, site: str) -> None:
    """Of the distributions below a folder of site-packages."""
    _without_scipys_blas(staged, site)
    folders = {str(PurePosixPath(path).parent) for path in staged.below(site)}
    for folder in sorted(each for each in folders if each.endswith(_BROUGHT)):
        _drop_unlinked(staged, site, folder)


def _drop_unlinked(staged: Staged, site: str, folder: str) -> None:
    brought = staged.below(folder)
    owner = staged.owners[brought[0]]
    programs = [
        staged.root / path
        for path in staged.below(site)
        if staged.owners[path] == owner and path not in brought and is_elf(staged.root / path)
    ]
    needed = binaries.linked(programs, staged.root / folder)
    for path in brought:
        if needed is not None and Path(path).name not in needed:
            staged.remove(path)


def _without_scipys_blas(staged: Staged, site: str) -> None:
    """What is packed of SciPy calls one function of its OpenBLAS, for the ellipsoidal harmonics.
    Have it end the process instead, and NumPy's OpenBLAS stand where the other one is looked for.

    Nothing is changed if SciPy calls more than that.
    """
    scipys = _first(staged, f"{site}/scipy.libs/libscipy_openblas-")
    numpys = _first(staged, f"{site}/numpy.libs/libscipy_openblas64_-")
    if scipys is None or numpys is None:
        return
    owner = staged.owners[scipys]
    own = [staged.root / path for path in staged.below(f"{site}/scipy")]
    callers = {file: content for file in own if _BLAS_NAME.search(content := file.read_bytes())}
    called = {name for content in callers.values() for name in _BLAS_NAME.findall(content)}
    if called <= {_HARMONICS}:
        for file, content in callers.items():
            file.write_bytes(content.replace(b"\0" + _HARMONICS, b"\0" + _ABORT))
        staged.remove(scipys)
        staged.link(owner, scipys.removeprefix(f"{owner.folder}/"), numpys)


def _first(staged: Staged, beginning: str) -> str | None:
    folder = str(PurePosixPath(beginning).parent)
    return next((path for path in staged.below(folder) if path.startswith(beginning)), None)
