"""What the system refuses, wherever it was met, in autotune's words: a full disk, a directory that
may not be written."""

from __future__ import annotations

import errno
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from autotune.core.errors import AutotuneError
from autotune.settings import Settings

_FULL = (errno.ENOSPC, errno.EDQUOT)
_ROOM_BYTES = 1 << 20


@contextmanager
def in_words() -> Iterator[None]:
    """AutotuneError instead of OSError."""
    try:
        yield
    except OSError as exc:
        raise of_the_system(exc) from exc


def of_the_system(error: OSError) -> AutotuneError:
    if error.errno in _FULL:
        return AutotuneError(
            "the disk is full",
            value=error.filename or ", ".join(_full_folders()) or None,
            next_step="make room there and run again" + resumed(),
        )
    return AutotuneError(
        f"the system refused: {error.strerror or error}",
        value=error.filename,
        next_step="mend that and run again" + resumed(),
    )


def _full_folders() -> Iterator[str]:
    """Of those that autotune writes to: a write that fails does not say where."""
    settings = Settings.from_environment()
    for folder in (settings.work_dir, settings.cache_dir, Path(tempfile.gettempdir()), Path.cwd()):
        with suppress(OSError):
            if shutil.disk_usage(folder).free < _ROOM_BYTES:
                yield str(folder)


def resumed() -> str:
    """What to add for a command that measures."""
    measures = sys.argv[1:2] in (["tune"], ["demo"])
    return "; a study goes on with --resume" if measures else ""
