"""Whether the service can work: its parts live, and what it writes to takes what is written."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

import structlog

from autotune.core.errors import StoreFailed
from storage.service import ServiceStore

EVERY_S = 5.0
SILENT_S = 10.0
"""So long a try to write may take; a database that is locked, or hangs, takes longer."""
_PROBE = bytes(64 * 1024)

log = structlog.get_logger("autotune.ready")


class Alive(Protocol):
    def alive(self) -> bool: ...


class Readiness:
    """What keeps the service from working, by names that anyone may read; why, in the log.

    Writing is tried at most every few seconds, however often it is asked, and by one at a time:
    who asks meanwhile hears what was found last, or that the database takes too long."""

    def __init__(
        self,
        store: ServiceStore,
        *,
        parts: Mapping[str, Alive],
        folder: Path,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._parts = parts
        self._folder = folder
        self._now = now
        self._lock = threading.Lock()
        self._begun_at = 0.0
        self._tried_at: float | None = None
        self._unwritable: Mapping[str, str] = {}

    def problems(self) -> list[str]:
        found = [name for name, part in self._parts.items() if not part.alive()]
        try:
            if not self._store.is_current():
                return ["schema", *found]
        except StoreFailed:
            return ["database", *found]
        return [*self._not_written(), *found]

    def _not_written(self) -> list[str]:
        if not self._lock.acquire(blocking=False):  # somebody else is trying
            silent = self._now() - self._begun_at >= SILENT_S
            return ["database"] if silent else list(self._unwritable)
        try:
            self._begun_at = self._now()
            if self._tried_at is None or self._begun_at - self._tried_at >= EVERY_S:
                unwritable = self._tried()
                self._tell(unwritable)
                self._unwritable, self._tried_at = unwritable, self._now()
        finally:
            self._lock.release()
        return list(self._unwritable)

    def _tried(self) -> Mapping[str, str]:
        found: dict[str, str] = {}
        try:
            self._store.refuse_unwritable()
        except StoreFailed as exc:
            found["database"] = str(exc)
        try:
            with tempfile.TemporaryFile(dir=self._folder) as probe:
                probe.write(_PROBE)
        except OSError as exc:
            found["files"] = f"{self._folder}: {exc.strerror or exc}"
        return found

    def _tell(self, unwritable: Mapping[str, str]) -> None:
        """Once, when it begins and when it is over."""
        for name, why in unwritable.items():
            if name not in self._unwritable:
                log.error("cannot be written", what=name, why=why)
        for name in self._unwritable:
            if name not in unwritable:
                log.info("can be written again", what=name)
