"""A job's progress, on its way to whoever looks at it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from autotune.core.errors import AutotuneError
from autotune.core.plain import finite
from autotune.ports import Progress, ProgressListener

EVERY_S = 1.0


@contextmanager
def told(
    write: Callable[[Mapping[str, Any]], None], *, every_s: float = EVERY_S
) -> Iterator[ProgressListener]:
    """A listener that has ``write`` called with the latest step, at most once in ``every_s``
    seconds; the last step is always written. What cannot be written is no reason to end a study:
    the next step tells as much."""
    teller = _Teller(write, every_s)
    thread = threading.Thread(target=teller.run, name="progress", daemon=True)
    thread.start()
    try:
        yield teller.listen
    finally:
        teller.over.set()
        teller.fresh.set()
        thread.join()


class _Teller:
    def __init__(self, write: Callable[[Mapping[str, Any]], None], every_s: float) -> None:
        self._write = write
        self._every_s = every_s
        self._latest: Progress | None = None
        self.fresh = threading.Event()
        self.over = threading.Event()

    def listen(self, step: Progress) -> None:
        self._latest = step
        self.fresh.set()

    def run(self) -> None:
        while not self.over.is_set():
            self.fresh.wait()
            self.fresh.clear()
            self._tell()
            self.over.wait(self._every_s)
        if self.fresh.is_set():
            self._tell()

    def _tell(self) -> None:
        step, self._latest = self._latest, None
        if step is not None:
            try:
                self._write(plain(step))
            except AutotuneError:
                self._latest = self._latest or step


def plain(step: Progress) -> Mapping[str, Any]:
    """``best`` and ``finished`` are trials' numbers; ``at`` is when it was told, in UTC seconds
    since the epoch. What is not known is left out."""
    told = {
        "stage": step.stage,
        "text": step.text,
        "trial": step.trial,
        "of": step.of,
        "best": None if step.best is None else step.best.number,
        "finished": None if step.finished is None else step.finished.number,
        "candidate": None if step.candidate is None else step.candidate.to_json(),
        "seconds_left": step.seconds_left,
        "at": time.time(),
    }
    known: Mapping[str, Any] = finite({k: v for k, v in told.items() if v is not None})
    return known
