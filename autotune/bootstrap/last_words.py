"""Why a job's process failed, in its own words, told also where no file can be written.

The worker keeps a file in memory, and the process finds it in the worker's open files.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from autotune.adapters.triton.process import Command

_VARIABLE = "AUTOTUNE_LAST_WORDS"
_LONGEST = 10_000


class LastWords:
    """The worker's side."""

    def __init__(self) -> None:
        self._file = os.memfd_create("last words")

    def asked_of(self, command: Command) -> Command:
        place = f"/proc/{os.getpid()}/fd/{self._file}"
        return replace(command, variables={**command.variables, _VARIABLE: place})

    def heard(self) -> str:
        """Empty where nothing was said."""
        return os.pread(self._file, _LONGEST, 0).decode(errors="replace").strip()

    def close(self) -> None:
        os.close(self._file)


@contextmanager
def telling_last_words() -> Iterator[None]:
    """The process's side: what it ends by is told, and goes on its way."""
    place = os.environ.pop(_VARIABLE, None)
    try:
        yield
    except Exception as exc:
        if place is not None:
            with suppress(OSError):
                Path(place).write_text(str(exc) or type(exc).__name__)
        raise
