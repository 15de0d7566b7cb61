"""A night of a schedule, wired: the champion measured again, the search, the challenge."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from autotune.core.schedules import NightRun
from autotune.ports import ProgressListener


def _unheard(_: int) -> None: ...


def run_night(  # noqa: PLR0913 - which run, where, for whom, and who listens
    run_id: int,
    *,
    db: str,
    out: Path,
    by: str,
    listen: ProgressListener,
    started: Callable[[int], None] = _unheard,
) -> NightRun:
    """Carry out the run that `ScheduleStore.due` recorded, and return it as it has ended.

    ``out`` receives the export of the night's pick. ``by`` is who promotes under the policy
    ``auto``. ``started`` is told the id of the night's study as soon as there is one. Called again
    for a run whose process died, it takes up the study that it had begun. Must be called in the
    main thread: the end of the maintenance window comes as a signal.

    A window that is over ends the run as STOPPED or MISSED, without an exception. Interrupted
    (SIGTERM, Ctrl-C) and AutotuneError pass, after the run has been recorded as STOPPED or FAILED.
    """
    raise NotImplementedError
