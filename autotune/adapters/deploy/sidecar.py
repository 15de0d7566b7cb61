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
killed: `Sidecar.recover` finishes what has happened, and clears away what has not. Devices are not
compared: their numbers need not outlast a restart of the machine, and a rename has but one.
"""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
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
"""How many replaced versions of a model are kept, and how many that were taken out again."""

SUFFIX = ".autotune"
STAGED, KEPT_IN, UNDONE = "staged", "kept", "undone"
MANIFEST = "manifest.json"
_JOURNAL = "journal.json"

Inode: TypeAlias = int | None
"""The number of what stands at a path; None: nothing does."""


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
        """Busy if somebody else is changing the repository; InputRefused where it cannot be."""
        file = self.path / "lock"
        with self._writable():
            self._make(self.path)
            fresh = not file.exists()
            lock = FileLock(file, timeout=0, mode=self.repository.stat().st_mode & 0o666)
            try:
                lock.acquire()
            except Timeout as error:
                raise Busy(
                    f"another promotion is under way in {self.repository}",
                    next_step="wait until it has ended; `autotune history MODEL` tells of it",
                ) from error
            if fresh:
                resemble(file, self.repository)
        try:
            yield
        finally:
            lock.release()

    def folder(self, *parts: str) -> Path:
        """A folder of the sidecar, made if need be."""
        path = self.path.joinpath(*parts)
        self._make(path)
        return path

    def kept(self, label: str) -> Path:
        return self.path / KEPT_IN / label

    def undone(self, label: str) -> Path:
        return self.path / UNDONE / label

    def knows(self, label: str) -> bool:
        """Whether a change of that label was prepared, made or undone here, and is still kept."""
        folders = (self.path / STAGED / label, self.kept(label), self.undone(label))
        return any(each.exists() for each in folders)

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
        self._write_down(turn, ends)
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

    def _write_down(self, turn: Turn, ends: Path) -> None:
        try:
            self._make(ends.parent)
            replace_synced(self.path / _JOURNAL, json.dumps(asdict(turn)))
        except OSError as error:
            raise ExportFailed(
                f"the change could not be written down beside the repository: {error.strerror}",
                value=str(self.path),
                next_step="Nothing was changed. Is there space left? May this user write there?",
            ) from error

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
        """Of each model, keep the last `KEPT` of what was replaced, and of what was taken out
        again: what changes often takes no place from what seldom does."""
        for folder in (self.path / KEPT_IN, self.path / UNDONE):
            held = sorted(folder.iterdir(), key=_age, reverse=True) if folder.is_dir() else []
            seen: Counter[str] = Counter()
            for each in held:
                models = models_of(each) or ("",)
                if all(seen[name] >= KEPT for name in models):
                    shutil.rmtree(each, ignore_errors=True)
                seen.update(models)

    def probe(self) -> None:
        """InputRefused unless directories can be exchanged here."""
        with (
            self._writable(),
            TemporaryDirectory(dir=self.folder(), prefix="probe-") as scratch,
        ):
            pair = [Path(scratch) / name for name in ("one", "other")]
            for each in pair:
                each.mkdir()
            able = exchange(*pair)
        if self.path.stat().st_dev != self.repository.stat().st_dev:
            raise InputRefused(
                "the folder beside the repository lies on another file system than the repository,"
                " so that nothing can be exchanged between the two",
                value=str(self.path),
                next_step="Move it to the repository's file system; a repository that is a btrfs"
                " subvolume: use a directory within it.",
            )
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
        """With what leads to it; as open as the repository is, and no more, whoever made it."""
        below = path.relative_to(self.path).parts
        for i in range(len(below) + 1):
            each = self.path.joinpath(*below[:i])
            fresh = not each.exists()
            each.mkdir(exist_ok=True)
            if fresh:
                resemble(each, self.repository)

    @contextmanager
    def _writable(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise InputRefused(
                f"the folder beside the repository cannot be written: {error.strerror}",
                value=str(self.path),
                next_step="Let this user write there: new files are prepared in it, so that the"
                " repository changes in one step.",
            ) from error


def inode(path: Path) -> Inode:
    try:
        return path.lstat().st_ino
    except FileNotFoundError:
        return None


def models_of(held: Path) -> Mapping[str, bool] | None:
    """The models of which something is held in a folder of the sidecar, and whether each was there
    before it was replaced; None where that is not told."""
    try:
        plain: Any = json.loads((held / MANIFEST).read_text(encoding="utf-8"))
        return {str(name): bool(existed) for name, existed in plain["models"].items()}
    except (OSError, ValueError, KeyError, AttributeError):
        return None


_LISTS = ("system.posix_acl_access", "system.posix_acl_default", "security.selinux")
"""Extended attributes that say who may do what."""


def resemble(path: Path, like: Path) -> None:
    """The owner and the rights of another file or directory, access lists and labels with them, as
    far as this user may. A file is as open as a directory that it resembles; whether it can be run
    stays."""
    status = like.stat()
    mode = status.st_mode & 0o7777
    if like.is_dir() and not path.is_dir():
        mode &= 0o666 | (path.stat().st_mode & 0o111)
    _give(path, status)
    path.chmod(mode)  # after: a file that changes hands loses the bits that lend its owner's rights
    if like.is_dir() == path.is_dir():
        for name in set(os.listxattr(like)) & set(_LISTS):
            with suppress(OSError):
                os.setxattr(path, name, os.getxattr(like, name))


def _give(path: Path, status: os.stat_result) -> None:
    """To its owner and group, or at least to its group: that a member may do."""
    for owner in (status.st_uid, -1):
        with suppress(PermissionError):
            os.chown(path, owner, status.st_gid)
            return


def _turn(plain: dict[str, Any]) -> Turn:
    for side in ("was", "becomes"):
        if isinstance(plain[side], list):  # by an earlier autotune, with the device before it
            plain[side] = plain[side][-1]
    return Turn(**plain)


def _age(held: Path) -> float:
    """When it was replaced: its manifest is written then."""
    manifest = held / MANIFEST
    return (manifest if manifest.exists() else held).stat().st_mtime
