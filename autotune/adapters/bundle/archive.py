"""The .tar.xz of a folder, the same bytes for the same content.

It is two xz streams, one after the other, as the format allows: programs and shared libraries with
the filter for x86 code, then everything else, by kind, so that like stands by like. Both are
packed at the same time. `tar xJf` and Python's `tarfile` read them as one.
"""

from __future__ import annotations

import lzma
import shutil
import tarfile
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from threading import Event
from typing import Any

from autotune.adapters.bundle.staged import Component, Staged, is_elf

BEST = 9
_DICTIONARY = 96 * 2**20
_MTIME = 1_600_000_000
"""Of every file: fixed, and later than 1980, before which some tools know no time."""


def write(staged: Staged, top: str, path: Path, *, level: int) -> Mapping[Component, int]:
    """Write the staged files, below a folder ``top``, to ``path``; the packed bytes that each
    component takes, about. OSError where it cannot be written; what is left then is to be removed,
    beside ``path`` too."""
    code = [each for each in sorted(staged.owners) if is_elf(staged.root / each)]
    rest = sorted(set(staged.owners) - set(code), key=lambda each: _order(staged, each))
    stop = Event()
    parts = [
        _Part(staged, top, code, _filters(level, code=True), stop),
        _Part(staged, top, rest, _filters(level, code=False), stop),
    ]
    paths = [path, path.with_name(f"{path.name}.rest")]
    with ThreadPoolExecutor(len(parts)) as workers:
        jobs = [workers.submit(part.write, to) for part, to in zip(parts, paths, strict=True)]
        try:
            spent = sum((job.result() for job in jobs), Counter[Component]())
        except BaseException:
            stop.set()
            raise
    _append(paths[1], path)
    return spent


@dataclass(frozen=True, slots=True)
class _Part:
    """One xz stream: some files of a tar archive, whose end the last one brings."""

    staged: Staged
    top: str
    members: Sequence[str]
    filters: list[dict[str, Any]]
    stop: Event

    def write(self, path: Path) -> Counter[Component]:
        spent: Counter[Component] = Counter()
        with path.open("wb") as raw, lzma.open(raw, "wb", filters=self.filters) as packed:
            tar = tarfile.TarFile(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT)
            for member in self.members:
                if self.stop.is_set():
                    return spent
                before = raw.tell()
                self._add(tar, member)
                spent[self.staged.owners[member]] += raw.tell() - before
        return spent

    def _add(self, tar: tarfile.TarFile, member: str) -> None:
        path = self.staged.root / member
        entry = tarfile.TarInfo(f"{self.top}/{member}")
        entry.mtime = _MTIME
        if path.is_symlink():
            entry.type, entry.linkname = tarfile.SYMTYPE, str(path.readlink())
            tar.addfile(entry)
            return
        entry.size = path.stat().st_size
        entry.mode = 0o755 if _runs(path) else 0o644
        with path.open("rb") as content:
            tar.addfile(entry, content)


def _append(rest: Path, path: Path) -> None:
    with path.open("ab") as whole, rest.open("rb") as more:
        shutil.copyfileobj(more, whole)
        whole.write(lzma.compress(bytes(2 * tarfile.BLOCKSIZE)))
    rest.unlink()


def _order(staged: Staged, path: str) -> tuple[str, str, str]:
    return staged.owners[path].name, PurePosixPath(path).suffix, path


def _runs(path: Path) -> bool:
    with path.open("rb") as stream:
        script = stream.read(2) == b"#!"
    return script or is_elf(path)


def _filters(level: int, *, code: bool) -> list[dict[str, Any]]:
    last: dict[str, Any] = {"id": lzma.FILTER_LZMA2, "preset": level}
    if level == BEST:
        last |= {"preset": level | lzma.PRESET_EXTREME, "dict_size": _DICTIONARY}
    if code:
        return [{"id": lzma.FILTER_X86}, last]
    return [{**last, "lc": 4, "pb": 0}]
