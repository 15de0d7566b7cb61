"""The folder of a bundle as it grows, and whose each of its files is."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from autotune.adapters.bundle.sources import Writer
from autotune.adapters.hashes import sha256_of

_ELF = b"\x7fELF"


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """A distribution, or another part by a name of its own; ``folder`` is that of its packages."""

    name: str
    version: str
    folder: str


@dataclass(slots=True, kw_only=True)
class Staged:
    """``owners``: by the path of a file below ``root``, the component that it is of."""

    root: Path
    owners: dict[str, Component] = field(default_factory=dict)

    def add(self, component: Component, path: str, write: Writer) -> Path:
        """Write a file of a component at ``path`` below the component's folder. ValueError for a
        path that leads out of that, as a wheel may name one."""
        relative = os.path.normpath(f"{component.folder}/{path}")
        if path.startswith("/") or ".." in path.split("/"):
            raise ValueError(f"{component.name} {component.version} has a file outside: {path}")
        target = self.root / relative
        target.parent.mkdir(parents=True, exist_ok=True)
        write(target)
        self.owners[relative] = component
        return target

    def add_text(self, component: Component, path: str, text: str) -> Path:
        return self.add(component, path, lambda to: to.write_text(text, "utf-8"))

    def link(self, component: Component, path: str, target: str) -> None:
        """A link, relative, to a file or a folder of the bundle."""
        start = Path(f"{component.folder}/{path}").parent
        relative = Path(os.path.relpath(target, start))
        self.add(component, path, partial(_link, relative))

    def remove(self, path: str) -> None:
        del self.owners[path]
        (self.root / path).unlink()

    def below(self, folder: str) -> list[str]:
        """Paths of the files below a folder, sorted."""
        return sorted(path for path in self.owners if path.startswith(f"{folder}/"))

    def entries(self, folder: str) -> list[str]:
        """What stands right in a folder, sorted."""
        beginning = "" if folder == "." else f"{folder}/"
        own = (path.removeprefix(beginning) for path in self.owners if path.startswith(beginning))
        return sorted({path.partition("/")[0] for path in own})

    def share(self, folder: str, other: str) -> None:
        """What stands in both folders with the same content becomes, in the first, a link to the
        second: a package that two of them need is packed once."""
        for entry in sorted((self.root / folder).iterdir()):
            twin = self.root / other / entry.name
            own = f"{folder}/{entry.name}"
            if twin.is_dir() and self._tree(own) == self._tree(f"{other}/{entry.name}"):
                owner = self.owners[self.below(own)[0]]
                for path in self.below(own):
                    self.remove(path)
                self._remove_folders(entry)
                self.link(owner, entry.name, f"{other}/{entry.name}")

    def components(self) -> list[dict[str, Any]]:
        """What there is of each, and a hash of all its paths and contents."""
        grouped: dict[Component, list[str]] = {}
        for path in sorted(self.owners):
            grouped.setdefault(self.owners[path], []).append(path)
        ordered = sorted(grouped.items(), key=lambda item: (item[0].folder, item[0].name))
        return [self._described(component, paths) for component, paths in ordered]

    def _described(self, component: Component, paths: list[str]) -> dict[str, Any]:
        return {
            "name": component.name,
            "version": component.version,
            "folder": component.folder,
            "files": len(paths),
            "bytes": sum((self.root / path).lstat().st_size for path in paths),
            "sha256": _digest((path, self._content(path)) for path in paths),
        }

    def _tree(self, folder: str) -> str:
        return _digest((p.removeprefix(folder), self._content(p)) for p in self.below(folder))

    def _content(self, path: str) -> str:
        file = self.root / path
        return f"-> {file.readlink()}" if file.is_symlink() else sha256_of(file)

    def _remove_folders(self, folder: Path) -> None:
        for empty in sorted(folder.rglob("*"), reverse=True):
            empty.rmdir()
        folder.rmdir()


def _link(target: Path, link: Path) -> None:
    link.symlink_to(target)


def is_elf(path: Path) -> bool:
    """A program or a shared library, not a link to one."""
    if path.is_symlink():
        return False
    with path.open("rb") as stream:
        return stream.read(len(_ELF)) == _ELF


def _digest(items: Iterator[tuple[str, str]]) -> str:
    """As `sha256sum` would have it of lines of a hash, two spaces and a path."""
    lines = "".join(f"{content}  {path}\n" for path, content in items)
    return hashlib.sha256(lines.encode()).hexdigest()
