"""The folder beside a repository in which a change of it is prepared, and what it took out kept.

It lies beside and not inside: Triton takes every folder of a repository for a model. ::

    models/                     the repository
    models.autotune/
        lock                    held while somebody changes the repository
        journal.json            the change that is under way; else absent
        staged/<label>/         what is being prepared
        kept/<label>/           what a change has replaced
        undone/<label>/         what was taken out again when it was put back

A change is one rename, of one model's folder or of the whole repository. The journal is on disk
before it, and says by the numbers of inodes (which renames keep) on which side of it a process was
killed: `Sidecar.recover` finishes what has happened, and clears away what has not.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

from filelock import FileLock, Timeout

from autotune.adapters.durable import (
    exchange,
    rename_into_nothing,
    replace_synced,
    sync_directory,
)
from autotune.core.errors import Busy, ExportFailed, InputRefused

KEPT = 5
"""How many replaced versions are kept, and how many that were taken out again."""

SUFFIX = ".autotune"
STAGED, KEPT_IN, UNDONE = "staged", "kept", "undone"
MANIFEST = "manifest.json"
_JOURNAL = "journal.json"

Inode: TypeAlias = tuple[int, int] | None
"""Device and number of what stands at a path; None: nothing does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """``entry``, in the repository (empty: the repository itself), changes places with ``other``,
    in ``holder`` (both in the sidecar), which afterwards moves to ``ends``. Either may be absent:
    the one that is there is then moved to where the other is not. ``was`` stands at the entry
    before, ``becomes`` afterwards."""

    entry: str
    other: str
    holder: str
    ends: str
    was: Inode
    becomes: Inode


class Sidecar:
    """Of a repository given by its real path."""

    def __init__(self, repository: Path) -> None:
        self.repository = repository
        self.path = repository.with_name(repository.name + SUFFIX)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Busy if somebody else is changing the repository."""
        self._make(self.path)
        try:
            with FileLock(self.path / "lock", timeout=0):
                yield
        except Timeout as error:
            raise Busy(
                f"another promotion is under way in {self.repository}",
                next_step="wait until it has ended; `autotune history MODEL` tells of it",
            ) from error

    def folder(self, *parts: str) -> Path:
        """A folder of the sidecar, made if need be."""
        path = self.path.joinpath(*parts)
        self._make(path)
        return path

    def kept(self, label: str) -> Path:
        return self.path / KEPT_IN / label

    def undone(self, label: str) -> Path:
        return self.path / UNDONE / label

    # ------------------------------------------------------------------------------- the change
    def turn(self, entry: str, *, other: Path, holder: Path, ends: Path) -> None:
        """Make the change, at once. What is brought in must have been synced. ExportFailed, with
        nothing changed, where the file system does not take part."""
        turn = Turn(
            entry=entry,
            other=self._relative(other),
            holder=self._relative(holder),
            ends=self._relative(ends),
            was=inode(self._entry(entry)),
            becomes=inode(other),
        )
        ends.parent.mkdir(exist_ok=True)
        replace_synced(self.path / _JOURNAL, json.dumps(asdict(turn)))
        try:
            self._switch(turn)
        except OSError as error:
            self._settle(turn)
            raise ExportFailed(
                f"the files could not be put in the place of those in service: {error.strerror}",
                value=str(self._entry(entry)),
                next_step="Nothing was changed. On a container's own layered file system, give a"
                " volume's directory.",
            ) from error
        self._settle(turn)

    def _switch(self, turn: Turn) -> None:
        here, other = self._entry(turn.entry), self.path / turn.other
        if turn.was is None:
            done = rename_into_nothing(other, here)
        elif turn.becomes is None:
            done = rename_into_nothing(here, other)
        else:
            done = exchange(here, other)
        if not done:
            raise OSError(0, "its file system cannot exchange two directories in one step")
        sync_directory(here.parent)
        sync_directory(other.parent)

    def _settle(self, turn: Turn) -> None:
        """Finish what has happened, clear away what has not."""
        entry, holder, ends = (
            self._entry(turn.entry),
            self.path / turn.holder,
            self.path / turn.ends,
        )
        stands = inode(entry)
        if stands == turn.becomes:
            if holder.exists():
                shutil.rmtree(ends, ignore_errors=True)
                holder.rename(ends)
                sync_directory(ends.parent)
                sync_directory(holder.parent)
        elif stands != turn.was:
            raise ExportFailed(
                f"a promotion was killed half-way, and something else stands at {entry} by now",
                next_step=f"See to it by hand: {holder} holds what is not in service; then remove"
                f" {self.path / _JOURNAL}.",
            )
        (self.path / _JOURNAL).unlink()
        sync_directory(self.path)

    def recover(self) -> None:
        """Finish or undo what a killed process left; whoever calls it holds the lock."""
        if not self.path.is_dir():
            return
        journal = self.path / _JOURNAL
        if journal.exists():
            self._settle(_turn(json.loads(journal.read_text(encoding="utf-8"))))
        shutil.rmtree(self.path / STAGED, ignore_errors=True)

    def prune(self) -> None:
        """Keep the last `KEPT` of what was replaced, and of what was taken out again."""
        for folder in (self.path / KEPT_IN, self.path / UNDONE):
            held = sorted(folder.iterdir(), key=_age, reverse=True) if folder.is_dir() else []
            for old in held[KEPT:]:
                shutil.rmtree(old, ignore_errors=True)

    def probe(self) -> None:
        """InputRefused unless directories can be exchanged here."""
        try:
            with TemporaryDirectory(dir=self.folder(), prefix="probe-") as scratch:
                pair = [Path(scratch) / name for name in ("one", "other")]
                for each in pair:
                    each.mkdir()
                able = exchange(*pair)
        except OSError as error:
            raise InputRefused(
                f"the folder beside the repository cannot be written: {error.strerror}",
                value=str(self.path),
                next_step="Let this user write there: new files are prepared in it, so that the"
                " repository changes in one step.",
            ) from error
        if not able:
            raise InputRefused(
                "the repository's file system cannot exchange two directories in one step, so a"
                " promotion that is killed could leave it half changed",
                value=str(self.repository),
                next_step="Promote to a local file system (ext4, xfs, btrfs, tmpfs), or export to a"
                " new directory and point the server to it.",
            )

    # ------------------------------------------------------------------------------------ paths
    def _entry(self, name: str) -> Path:
        return self.repository / name if name else self.repository

    def _relative(self, path: Path) -> str:
        return path.relative_to(self.path).as_posix()

    def _make(self, path: Path) -> None:
        """As open as the repository is, and no more."""
        fresh = not self.path.exists()
        path.mkdir(parents=True, exist_ok=True)
        if fresh:
            resemble(self.path, self.repository)


def inode(path: Path) -> Inode:
    try:
        status = path.lstat()
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


def resemble(path: Path, like: Path) -> None:
    """The owner and the rights of another file or directory, as far as this user may."""
    status = like.stat()
    path.chmod(status.st_mode & 0o7777)
    try:
        os.chown(path, status.st_uid, status.st_gid)
    except PermissionError:
        return


def _turn(plain: dict[str, Any]) -> Turn:
    for side in ("was", "becomes"):
        plain[side] = None if plain[side] is None else tuple(plain[side])
    return Turn(**plain)


def _age(held: Path) -> float:
    """When it was replaced: its manifest is written then."""
    manifest = held / MANIFEST
    return (manifest if manifest.exists() else held).stat().st_mtime
