"""A Triton model repository directory as a target."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

import psutil

from autotune.adapters.deploy.merging import (
    Change,
    build,
    change_of,
    link,
    put_back_diff,
    renew,
    room_needed,
    text_diff,
    versions,
)
from autotune.adapters.deploy.served import Known
from autotune.adapters.deploy.sidecar import (
    MANIFEST,
    STAGED,
    SUFFIX,
    Sidecar,
    models_of,
    resemble,
)
from autotune.adapters.durable import sync_tree, write_synced
from autotune.adapters.hashes import sha256_of
from autotune.adapters.triton.config import ModelConfig, read, render
from autotune.adapters.triton.repository import CONFIG_FILE
from autotune.core.errors import ExportFailed, InputRefused
from autotune.service_ports import Release

WHOLE = "repository"
"""The name, in a staged or kept folder, of a repository that changes as a whole."""
_FILE_SYSTEM_BYTES = 1_000_000
_TRIES = 3
"""How often a whole repository is put together again, where somebody changes it meanwhile."""

NOTHING: Mapping[str, Any] = MappingProxyType({})
Fingerprint: TypeAlias = Sequence[tuple[str, int, int, int]]


class DirectoryDeployment:
    """Implements `service_ports.Deployment`; whoever changes something holds `locked`.

    One model that changes is exchanged as a folder, several are with their whole repository. A
    configuration that is not ``known`` is not overwritten (None: whatever is there may be).
    """

    def __init__(
        self,
        repository: Path,
        *,
        known: Sequence[Known] | None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._repository = _real(repository)
        self._known = known
        self._now = now
        self._sidecar = Sidecar(self._repository)

    @property
    def repository(self) -> Path:
        """Its real path: a symbolic link leads to it still after a change."""
        return self._repository

    def locked(self) -> AbstractContextManager[None]:
        return self._sidecar.locked()

    def begun(self, label: str) -> bool:
        """Whether a change of that label has left a trace here."""
        return self._sidecar.knows(label)

    def present(self, name: str) -> ModelConfig | None:
        """A model's configuration as its file says; an empty one where it has none; None where the
        model is not there."""
        folder = self._repository / name
        if not folder.is_dir():
            return None
        file = folder / CONFIG_FILE
        config = read(file) if file.is_file() else ModelConfig()
        config.name = name
        return config

    # ---------------------------------------------------------------------------------- the port
    def preflight(self, release: Release) -> str:
        self._refuse_unswitchable()
        self._sidecar.probe()
        changes = self._changes(release)
        self._refuse_strangers(changes)
        self._refuse_without_room(changes)
        return "".join(change.diff for change in changes)

    def before(self, release: Release) -> Mapping[str, Any]:  # noqa: ARG002 - it keeps files
        return {}

    def apply(self, release: Release, *, label: str) -> str:
        kept = self._sidecar.kept(label)
        if kept.is_dir():
            return str(kept)
        shutil.rmtree(self._sidecar.undone(label), ignore_errors=True)
        seen = self._stamped(release.names)
        changes = [each for each in self._changes(release) if not each.nothing]
        self._refuse_strangers(changes)
        try:
            self._carry_out(changes, label, lambda: self._stamped(release.names) == seen)
        except BaseException:
            self.recover()
            if kept.is_dir():
                self.restore(str(kept))
            raise
        self._sidecar.prune()
        return str(kept)

    def _carry_out(
        self, changes: Sequence[Change], label: str, as_looked_at: Callable[[], bool]
    ) -> None:
        with self._preparing(label) as holder:
            before = self._fingerprint(changes)
            entry, fresh = self._staged(changes, holder)
            self._write_manifest(holder, {each.name: each.present.exists() for each in changes})
            sync_tree(holder)
        if self._fingerprint(changes) != before or not as_looked_at():
            raise self._changed_meanwhile()
        self._turn(entry, fresh, holder, self._sidecar.kept(label))

    def verify(self, release: Release) -> None:
        for change in self._changes(release):
            if not change.nothing:
                raise ExportFailed(
                    f"what is in service of {change.name} is not what was promoted:"
                    f"\n{change.diff.rstrip()}",
                    value=str(change.present),
                    next_step="Does something else write into the repository?",
                )

    def undoing(self, kept: str, before: Mapping[str, Any] = NOTHING) -> str:  # noqa: ARG002
        label = Path(kept).name
        held = self._sidecar.kept(label)
        if not held.is_dir():
            return ""
        models = self.replaced(kept)
        self._refuse_not_kept(models, held)
        return "".join(
            put_back_diff(name, self._repository / name, _within(held, models, name))
            for name in models
        )

    def restore(self, kept: str, before: Mapping[str, Any] = NOTHING) -> None:  # noqa: ARG002
        self.recover()
        label = Path(kept).name
        held, undone = self._sidecar.kept(label), self._sidecar.undone(label)
        if kept == label and not held.is_dir() and not undone.is_dir():
            return
        models = self.replaced(kept)
        if not undone.is_dir():
            self._refuse_not_kept(models, held)
            try:
                self._put_back(models, held, undone)
            except BaseException:
                self.recover()
                raise
        for name in (name for name, existed in models.items() if existed):
            renew(self._repository / name, _within(undone, models, name))
        shutil.rmtree(held, ignore_errors=True)
        self._sidecar.prune()

    def recover(self) -> None:
        self._sidecar.recover()

    def replaced(self, kept: str) -> Mapping[str, bool]:
        """The models that a change replaced, and whether each was there before; none by a label
        under which there was none. ExportFailed if what was is not kept any more."""
        label = Path(kept).name
        for folder in (self._sidecar.kept(label), self._sidecar.undone(label)):
            if (models := models_of(folder)) is not None:
                return models
        if kept == label:
            return {}
        raise self._not_kept(label)

    # ----------------------------------------------------------------------------------- parts
    def _changes(self, release: Release) -> list[Change]:
        try:
            return [
                change_of(name, self._repository / name, release.repository / name)
                for name in release.names
            ]
        except OSError as error:
            raise InputRefused(
                f"what is in service cannot be read: {error.strerror or error}",
                value=error.filename or str(self._repository),
                next_step="Give this user the right to, or promote as one who has it.",
            ) from error

    @contextmanager
    def _preparing(self, label: str) -> Iterator[Path]:
        """A fresh folder to prepare a change in."""
        holder = self._sidecar.path / STAGED / label
        try:
            shutil.rmtree(holder, ignore_errors=True)
            yield self._sidecar.folder(STAGED, label)
        except OSError as error:
            raise ExportFailed(
                f"the promotion could not be prepared: {error.strerror or error}",
                value=error.filename or str(holder),
                next_step="Nothing was changed. Is there space left? Can the files be read?",
            ) from error

    def _staged(self, changes: Sequence[Change], holder: Path) -> tuple[str, Path]:
        """What is to be exchanged, by its name in the repository, and what for."""
        if len(changes) == 1:
            fresh = holder / changes[0].name
            build(changes[0], fresh)
            return changes[0].name, fresh
        fresh = holder / WHOLE
        if changes:
            self._build_whole(fresh, without={each.name for each in changes})
            for change in changes:
                build(change, fresh / change.name)
        return "", fresh

    def _build_whole(self, fresh: Path, *, without: set[str]) -> None:
        fresh.mkdir()
        for entry in self._repository.iterdir():
            if entry.name not in without:
                link(entry, fresh / entry.name)
        resemble(fresh, self._repository)

    def _put_back(self, models: Mapping[str, bool], held: Path, undone: Path) -> None:
        if len(models) == 1:
            (name,) = models
            self._turn(name, held / name, held, undone)
        else:
            self._restore_several(models, held, undone)

    def _restore_several(self, models: Mapping[str, bool], held: Path, undone: Path) -> None:
        """In a new repository, since models may have been added to it meanwhile."""
        for _ in range(_TRIES):
            before = self._stamped([""])
            with self._preparing(undone.name) as holder:
                fresh = holder / WHOLE
                if models:
                    self._build_whole(fresh, without=set(models))
                    for name in (name for name, existed in models.items() if existed):
                        link(_within(held, models, name), fresh / name)
                shutil.copy2(held / MANIFEST, holder / MANIFEST)
                sync_tree(holder)
            if self._stamped([""]) == before:
                self._turn("", fresh, holder, undone)
                return
        raise self._changed_meanwhile()

    def _turn(self, entry: str, fresh: Path, holder: Path, ends: Path) -> None:
        if not entry and not fresh.exists():  # no model changes: there is nothing but the record
            self._sidecar.folder(ends.parent.name)
            holder.rename(ends)
            return
        self._sidecar.turn(entry, other=fresh, holder=holder, ends=ends)

    def _write_manifest(self, holder: Path, models: Mapping[str, bool]) -> None:
        manifest = {"models": dict(models), "at": self._now()}
        write_synced(holder / MANIFEST, json.dumps(manifest, indent=2) + "\n")

    def _fingerprint(self, changes: Sequence[Change]) -> Fingerprint:
        """Of all that is about to be exchanged: names, sizes, times and inodes."""
        return self._stamped([changes[0].name] if len(changes) == 1 else [""])

    def _stamped(self, names: Sequence[str]) -> Fingerprint:
        """Of models, or (by an empty name) of the whole repository."""
        return [found for name in names for found in _stamps(self._repository / name)]

    # --------------------------------------------------------------------------------- refusals
    def _refuse_not_kept(self, models: Mapping[str, bool], held: Path) -> None:
        """What is gone from where it was kept must not be taken for what was not there before."""
        for name, existed in models.items():
            if existed and not os.path.lexists(_within(held, models, name)):
                raise self._not_kept(held.name)

    def _not_kept(self, label: str) -> ExportFailed:
        return ExportFailed(
            "what the promotion replaced is not kept any more",
            value=str(self._sidecar.kept(label)),
            next_step="Promote the trial of an earlier study instead, or put the files back by"
            " hand.",
        )

    def _changed_meanwhile(self) -> ExportFailed:
        return ExportFailed(
            "somebody else changed the repository while the change of it was prepared",
            value=str(self._repository),
            next_step="Nothing was changed: ask again when that has ended.",
        )

    def _refuse_unswitchable(self) -> None:
        repository = self._repository
        if not os.access(repository, os.W_OK | os.X_OK):
            raise InputRefused(
                "the model repository cannot be written",
                value=str(repository),
                next_step="Give this user the right to, or promote as one who has it.",
            )
        if (mount := _mount_in(repository)) is not None:
            raise InputRefused(
                "the repository is a mount of its own, or holds one, and new files cannot be"
                " prepared beside it on the same file system",
                value=str(mount),
                next_step="Use a directory within the mount as the repository"
                f" ({repository.name}/models, say), or promote where what is mounted there lies.",
            )
        if any(each.suffix == SUFFIX for each in (repository, *repository.parents)):
            raise InputRefused(
                f"a folder whose name ends in {SUFFIX} holds what promotions have replaced, and is"
                " no repository",
                value=str(repository),
                next_step="Name the repository itself, which lies beside it.",
            )
        if versions(repository) or (repository / CONFIG_FILE).exists():
            raise InputRefused(
                "the path is a model's own directory, not a repository of models",
                value=str(repository),
                next_step=f"Give its parent directory, {repository.parent}.",
            )

    def _refuse_strangers(self, changes: Sequence[Change]) -> None:
        """What neither the study found nor a promotion left is somebody's, and stays."""
        if self._known is None:
            return
        for change in changes:
            self._refuse_strange_config(change, self._known)
            self._refuse_strange_files(change, self._known)

    def _refuse_strange_config(self, change: Change, known: Sequence[Known]) -> None:
        here = self.present(change.name)
        if here is None or here == ModelConfig(name=change.name):
            return
        release = read(change.release / CONFIG_FILE)
        release.name = change.name
        ours = Known(configs={change.name: release})
        if not any(each.is_file(change.name, here) for each in (ours, *known)):
            raise self._stranger(change, here)

    def _refuse_strange_files(self, change: Change, known: Sequence[Known]) -> None:
        held = [each.files.get(change.name, {}) for each in known]
        for file in (*change.replaced, *change.removed):
            path = change.present / file
            if path.is_file() and sha256_of(path) not in [each.get(file) for each in held]:
                raise InputRefused(
                    f"{change.name}/{file} in service is neither what the study found nor what the"
                    " last promotion brought",
                    value=str(path),
                    next_step="Somebody has changed it since. Tune it as it is now, or replace it"
                    " all the same with `autotune promote … --anyway`.",
                )

    def _stranger(self, change: Change, here: ModelConfig) -> InputRefused:
        held = [each.configs for each in self._known or () if change.name in each.configs]
        known = render(held[-1][change.name]) if held else ""
        diff = "".join(text_diff(change.name, known, render(here), ("known", "in service")))
        return InputRefused(
            f"the configuration of {change.name} in service is neither the one that the study found"
            f" nor that of the last promotion; it differs so:\n{diff.rstrip()}",
            value=str(change.present),
            next_step="Somebody has changed it since. Tune it as it is now, or replace it all the"
            " same with `autotune promote … --anyway`.",
        )

    def _refuse_without_room(self, changes: Sequence[Change]) -> None:
        needed = _FILE_SYSTEM_BYTES + sum(room_needed(each) for each in changes)
        free = shutil.disk_usage(self._repository).free
        if free < needed:
            raise InputRefused(
                f"the promotion takes about {needed / 1e6:.0f} MB beside the repository, and its"
                f" disk has {free / 1e6:.0f} MB free",
                value=str(self._repository),
                next_step="Make room there: what was in service stays until it is pruned.",
            )


def _real(repository: Path) -> Path:
    if not repository.is_dir():
        rule = "is a file, not a directory" if repository.exists() else "does not exist"
        raise InputRefused(f"the target repository {rule}", value=str(repository))
    real = repository.resolve()
    if real == real.parent:
        raise InputRefused("nothing can be prepared beside the root directory", value=str(real))
    return real


def _within(holder: Path, models: Mapping[str, bool], name: str) -> Path:
    """Where a model's folder lies in what was kept of a change of ``models``."""
    return holder / name if len(models) == 1 else holder / WHOLE / name


def _mount_in(folder: Path) -> Path | None:
    """The mount point that a directory is, or holds; bind mounts as well, which its device number
    does not tell."""
    mounts = (Path(each.mountpoint) for each in psutil.disk_partitions(all=True))
    return next((each for each in mounts if each.is_relative_to(folder)), None)


def _stamps(root: Path) -> Iterator[tuple[str, int, int, int]]:
    """Of the files below it, and of links."""
    for directory, names, files in os.walk(root):
        names[:] = sorted(set(names) - {"__pycache__"})
        links = [name for name in names if (Path(directory) / name).is_symlink()]
        for file in sorted((*files, *links)):
            path = Path(directory) / file
            status = path.lstat()
            yield str(path), status.st_size, status.st_mtime_ns, status.st_ino
