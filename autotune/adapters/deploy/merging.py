"""What a model's folder in service becomes under a release, and how that is told.

Each entry of the release's folder takes the place of the one of that name; what the folder in
service has beyond (labels, other versions) stays. A release without a version directory, as that of
a model which a remote server holds, changes the configuration alone.
"""

from __future__ import annotations

import difflib
import filecmp
import os
import shutil
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from autotune.adapters.deploy.sidecar import resemble
from autotune.adapters.triton.config import ModelConfig, read, render
from autotune.adapters.triton.repository import CONFIG_FILE
from autotune.core.errors import InputRefused

LARGE_BYTES = 1_000_000
CACHES = frozenset({"__pycache__", ".git", ".ipynb_checkpoints"})
"""Not part of a model: a server that loads Python code writes the first beside it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Of one model. ``present`` is its folder in service, be it there or not, ``release`` its new
    one. Files by their paths in the model's folder."""

    name: str
    present: Path
    release: Path
    added: tuple[str, ...] = ()
    replaced: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    configured: bool = False
    """Whether the configuration becomes another, be it only in its words."""

    @property
    def nothing(self) -> bool:
        return not (self.added or self.replaced or self.removed or self.configured)

    @property
    def diff(self) -> str:
        """The configurations' unified diff, and a line for each file that changes or is kept though
        the release does not have it."""
        lines = [*config_diff(self.name, self.present, self.release)]
        beyond = self.kept if versions(self.release) else ()
        for words, files in (
            ("new", self.added),
            ("replaced", self.replaced),
            ("taken out", self.removed),
            ("kept, though not of the release", beyond),
        ):
            lines += _files_told(self.name, files, words)
        return "".join(lines)


def _files_told(name: str, files: Iterable[str], words: str) -> list[str]:
    return [f"# {name}/{file}: {words}\n" for file in files]


def put_back_diff(name: str, present: Path, held: Path) -> str:
    """As `Change.diff`, where a model's whole folder is replaced by one that was kept (neither need
    be there). Large files are told by their size and time, and not read."""
    was = set(_files(present)) - {CONFIG_FILE}
    becomes = set(_files(held)) - {CONFIG_FILE}
    other = [file for file in was & becomes if not _alike(present / file, held / file)]
    return "".join(
        [
            *text_diff(
                name,
                _told(present / CONFIG_FILE),
                _told(held / CONFIG_FILE),
                ("in service", "before"),
            ),
            *_files_told(name, sorted(becomes - was), "back again"),
            *_files_told(name, sorted(other), "put back"),
            *_files_told(name, sorted(was - becomes), "taken out"),
        ]
    )


def _alike(one: Path, other: Path) -> bool:
    if not one.exists() or not other.exists() or one.is_dir() or other.is_dir():
        return one.is_dir() == other.is_dir()
    mine, theirs = one.stat(), other.stat()
    return (mine.st_size, mine.st_mtime_ns) == (theirs.st_size, theirs.st_mtime_ns)


def change_of(name: str, present: Path, release: Path) -> Change:
    """InputRefused where the release alone would not be what is served."""
    _refuse_other_versions(name, present, release)
    new = set(_files(release))
    old = set(_files(present)) if present.is_dir() else set()
    ours = {entry.name for entry in _entries(release)}
    in_both = (new & old) - {CONFIG_FILE}
    beyond = old - new
    return Change(
        name=name,
        present=present,
        release=release,
        added=tuple(sorted(new - old - {CONFIG_FILE})),
        replaced=tuple(sorted(f for f in in_both if not _same(present / f, release / f))),
        removed=tuple(sorted(f for f in beyond if _top(f) in ours)),
        kept=tuple(sorted(f for f in beyond if _top(f) not in ours)),
        configured=not _same_text(present / CONFIG_FILE, release / CONFIG_FILE),
    )


def config_diff(name: str, present: Path, release: Path) -> Iterator[str]:
    """In the order of the schema, so that only what is said differently shows."""
    return text_diff(name, _told(present / CONFIG_FILE), _told(release / CONFIG_FILE))


def text_diff(
    name: str, before: str, after: str, called: tuple[str, str] = ("in service", "release")
) -> Iterator[str]:
    path = f"{name}/{CONFIG_FILE}"
    return difflib.unified_diff(
        before.splitlines(keepends=True),
        after.splitlines(keepends=True),
        fromfile=f"{path} ({called[0]})" if before else "/dev/null",
        tofile=f"{path} ({called[1]})",
    )


def _told(file: Path) -> str:
    return render(read(file)) if file.is_file() else ""


def _same_text(one: Path, other: Path) -> bool:
    return one.is_file() and other.is_file() and filecmp.cmp(one, other, shallow=False)


# ------------------------------------------------------------------------------------ building
def build(change: Change, target: Path) -> None:
    """The model's new folder at ``target``: large files that stay as they are, as hard links; small
    ones are copied, so that what is kept of them outlasts an edit in place."""
    target.mkdir()
    taken = set()
    here = change.present if change.present.is_dir() else change.present.parent
    for entry in _entries(change.release):
        _put(entry, change.present / entry.name, target / entry.name, here)
        taken.add(entry.name)
    if change.present.is_dir():
        for entry in change.present.iterdir():
            if entry.name not in taken:
                link(entry, target / entry.name, from_bytes=LARGE_BYTES)
    resemble(target, here)
    renew(target, change.present)


def _put(new: Path, old: Path, target: Path, above: Path) -> None:
    """``above``: the directory in service that holds ``old``, or would; what is new there is as
    open as that is."""
    if old.is_symlink() and old.is_dir() and _same_below(new, old):
        link(old, target)
    elif new.is_dir():
        target.mkdir()
        here = old if old.is_dir() else above
        for entry in _entries(new):
            _put(entry, old / entry.name, target / entry.name, here)
        resemble(target, here)
    elif new.name != CONFIG_FILE and _same(old, new):
        link(old, target, from_bytes=LARGE_BYTES)
    else:
        shutil.copyfile(new, target)
        shutil.copymode(new, target)
        resemble(target, old if old.is_file() else above)


def renew(folder: Path, before: Path) -> None:
    """Give a model's folder, and its versions', a later time than all had that stood there before.

    A server loads a model anew only where the latest time below its folder is later than it was,
    and its versions only where the latest below them is (Triton core, ``ModelTimestamp``): of files
    that were put back, or whose clock ran ahead, it would say that they are loaded and go on with
    those that it has. Files keep their times.
    """
    at = max(time.time_ns(), _latest(before) + 1)
    for each in (folder, *(folder / str(number) for number in versions(folder))):
        with suppress(OSError):  # a link to what is somebody else's
            os.utime(each, ns=(at, at))


def _latest(folder: Path) -> int:
    """Of anything below it, in nanoseconds since the epoch; 0 if it is not there."""
    found = [folder] if folder.is_dir() else []
    for directory, names, files in os.walk(folder, followlinks=True):
        found += [Path(directory) / each for each in (*names, *files)]
    return max((each.stat().st_mtime_ns for each in found if each.exists()), default=0)


def link(source: Path, target: Path, *, from_bytes: int = 0) -> None:
    """A file as a hard link where the file system takes it, else, or below a size, as a copy; a
    directory with all that it holds; a symbolic link as it is, leading to where it does."""
    if source.is_symlink():
        target.symlink_to(_leads_to(source))
    elif source.is_dir():
        target.mkdir()
        for entry in source.iterdir():
            link(entry, target / entry.name, from_bytes=from_bytes)
        resemble(target, source)
        shutil.copystat(source, target)
    elif source.stat().st_size < from_bytes or not _linked(source, target):
        shutil.copy2(source, target)
        resemble(target, source)


def _leads_to(link: Path) -> Path:
    """A relative link that is itself reached through a linked folder leads elsewhere once that
    folder is none any more."""
    there, real = link.readlink(), link.parent.resolve()
    return there if real == link.parent else real / there


def _linked(source: Path, target: Path) -> bool:
    try:
        os.link(source, target)
    except OSError:
        return False
    return True


def room_needed(change: Change) -> int:
    """Bytes that `build` copies at most: what changes, what is small, and what lies on another file
    system, where hard links do not lead."""
    ours = {CONFIG_FILE, *change.added, *change.replaced}
    here = change.present.parent.stat().st_dev
    old = [(change.present / file).lstat() for file in _files(change.present) if file not in ours]
    copied = [each for each in old if each.st_dev != here or each.st_size < LARGE_BYTES]
    new = [(change.release / file).stat() for file in ours]
    return sum(each.st_size for each in (*new, *copied))


# -------------------------------------------------------------------------------------- refusals
def _refuse_other_versions(name: str, present: Path, release: Path) -> None:
    """A higher version in service would be loaded in place of the one that was measured."""
    ours = versions(release)
    config = read(release / CONFIG_FILE)
    if not ours:
        if not versions(present):
            raise InputRefused(
                f"the release of {name} has its configuration alone, and the target has no version"
                " of it",
                value=str(present),
                next_step="Name the repository that the model's server loads from.",
            )
        return
    other = sorted(_loaded(ours | versions(present), config) - _loaded(ours, config))
    if other:
        raise InputRefused(
            f"the target has another version of {name} than the study measured, and its server"
            " would load that one too, or in its place",
            value=", ".join(map(str, other)),
            next_step="Tune the model again from that repository, or move that version's directory"
            " out of it first.",
        )


def versions(folder: Path) -> set[int]:
    if not folder.is_dir():
        return set()
    return {int(each.name) for each in folder.iterdir() if each.is_dir() and each.name.isdecimal()}


def _loaded(found: set[int], config: ModelConfig) -> set[int]:
    policy = config.version_policy
    if policy.HasField("specific"):
        return found & set(policy.specific.versions)
    if policy.HasField("all"):
        return found
    newest = max(1, policy.latest.num_versions)
    return set(sorted(found - {0})[-newest:])


# ----------------------------------------------------------------------------------------- files
def _files(folder: Path) -> Iterator[str]:
    """Paths of the files below it, and of empty directories (an ensemble's version is one)."""
    for directory, names, files in os.walk(folder, followlinks=True):
        names[:] = sorted(set(names) - CACHES)
        here = Path(directory).relative_to(folder)
        if not names and not files and here.parts:
            yield f"{here.as_posix()}/"
        yield from ((here / file).as_posix() for file in files)


def _entries(folder: Path) -> list[Path]:
    return sorted(each for each in folder.iterdir() if each.name not in CACHES)


def _top(file: str) -> str:
    return file.split("/", 1)[0]


def _same_below(one: Path, other: Path) -> bool:
    files = set(_files(one))
    return files == set(_files(other)) and all(_same(one / each, other / each) for each in files)


def _same(one: Path, other: Path) -> bool:
    """What can be read of both is the same; two directories (empty ones, see `_files`) are."""
    if not one.exists() or not other.exists() or one.is_dir() != other.is_dir():
        return False
    return one.is_dir() or one.samefile(other) or filecmp.cmp(one, other, shallow=False)
