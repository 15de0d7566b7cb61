"""The cache of what was built: a folder for each digest, whole or not there."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from filelock import FileLock, Timeout

from autotune.adapters.hashes import sha256_of
from autotune.core.errors import InputRefused
from autotune.core.model_interface import Sample
from autotune.core.variants import Attempt, Variant, VariantRecord

_RECORD = "record.json"

Fill: TypeAlias = Callable[[Path], VariantRecord]
"""Builds into an empty folder; an artefact that it leaves there is named by the record's file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantCache:
    """Entries under ``root``, built once each. ``waiting`` is called before waiting for another
    process that builds the same one."""

    root: Path
    waiting: Callable[[], None] = lambda: None

    def get(self, digest: str, fill: Fill) -> VariantRecord:
        """The entry of that digest, or what ``fill`` builds.

        An entry whose files are not what was stored is built again. An entry appears by one rename,
        so that a build that is killed leaves nothing that is taken for whole. A record without a
        file is not kept: what failed is tried again.
        """
        self.root.mkdir(parents=True, exist_ok=True)
        with self._locked(digest):
            return self._found(digest) or self._filled(digest, fill)

    @contextlib.contextmanager
    def _locked(self, digest: str) -> Iterator[None]:
        lock = FileLock(self.root / f"{digest}.lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            self.waiting()
            lock.acquire()
        with contextlib.ExitStack() as stack:
            stack.callback(lock.release)
            yield

    def _found(self, digest: str) -> VariantRecord | None:
        folder = self.root / digest
        try:
            entry = json.loads((folder / _RECORD).read_text("utf-8"))
            files: dict[str, str] = entry["files"]
            whole = all(sha256_of(folder / name) == wanted for name, wanted in files.items())
            record = _record(entry["record"], folder)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, InputRefused):
            return None  # another version's record, or what is no record at all
        file = Path(record.file)
        return record if whole and (file.parent != folder or file.name in files) else None

    def _filled(self, digest: str, fill: Fill) -> VariantRecord:
        self._sweep(digest)
        folder = Path(tempfile.mkdtemp(prefix=f".{digest}.", dir=self.root))
        try:
            record = fill(folder)
            if not record.file:
                return record
            own = Path(record.file).parent == folder
            stored = {**_plain(record), "file": Path(record.file).name if own else record.file}
            files = {p.name: sha256_of(p) for p in sorted(folder.iterdir()) if p.is_file()}
            text = json.dumps({"record": stored, "files": files}, indent=1)
            (folder / _RECORD).write_text(text, "utf-8")
            target = self.root / digest
            shutil.rmtree(target, ignore_errors=True)
            folder.replace(target)
            return _record(stored, target, cached=False)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _sweep(self, held: str) -> None:
        """Delete what builds that were killed have left, of any digest: a build that goes on holds
        its lock. We hold that of ``held``."""
        for left in self.root.glob(".*.*"):
            digest = left.name.split(".")[1]
            with contextlib.ExitStack() as stack, contextlib.suppress(Timeout, OSError):
                if digest != held:
                    stack.enter_context(FileLock(self.root / f"{digest}.lock").acquire(timeout=0))
                shutil.rmtree(left, ignore_errors=True)


# ---------------------------------------------------------------------------------------- digests
def digest_of(parts: Mapping[str, Any]) -> str:
    """SHA-256 of plain data, whatever its order."""
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def digest_of_samples(samples: Sequence[Sample]) -> str:
    """SHA-256 of requests, in order: names, datatypes, shapes and values."""
    found = hashlib.sha256()
    for sample in samples:
        for name, array in sorted(sample.items()):
            found.update(f"{name}|{array.dtype.str}|{array.shape}|".encode())
            if array.dtype == object:
                found.update(repr(array.tolist()).encode())
            else:
                found.update(np.ascontiguousarray(array).tobytes())
        found.update(b"\n")
    return found.hexdigest()


# ---------------------------------------------------------------------------------------- records
def _plain(record: VariantRecord) -> dict[str, Any]:
    plain = asdict(record) | {"variant": str(record.variant), "tools": dict(record.tools)}
    return plain | {"attempts": [asdict(attempt) for attempt in record.attempts]}


def _record(plain: Mapping[str, Any], folder: Path, *, cached: bool = True) -> VariantRecord:
    values = dict(plain)
    return VariantRecord(
        **values
        | {
            "variant": Variant.parse(values["variant"]),
            "file": str(folder / values["file"]),
            "attempts": tuple(Attempt(**attempt) for attempt in values["attempts"]),
            "notes": tuple(values["notes"]),
            "cached": cached,
        }
    )
