"""Nights that a command runs in its own process: for cron, systemd timers and Kubernetes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from autotune.bootstrap.nightly import run_night
from autotune.bootstrap.schedules import unended, window_over
from autotune.bootstrap.service import open_service
from autotune.bootstrap.worker import someone_measures
from autotune.core.errors import Conflict, MachineBusy
from autotune.core.schedules import NightRun, RunState, Schedule, ScheduleState
from autotune.ports import ProgressListener
from autotune.settings import Settings
from storage.service import ServiceStore

_LOOK_S = 5.0


def schedules_to_run(db: str, names: Sequence[str]) -> Sequence[Schedule]:
    """The schedules of these names, or all that are active. InputRefused for one that is not there
    or is paused."""
    with open_service(db, create=False) as store:
        if not names:
            every = store.schedules.schedules()
            return [schedule for schedule in every if schedule.state is ScheduleState.ACTIVE]
        named = [store.schedules.schedule(name) for name in dict.fromkeys(names)]
    for schedule in named:
        if schedule.state is ScheduleState.PAUSED:
            raise Conflict(
                "the schedule is paused",
                value=schedule.name,
                next_step=f"autotune schedule resume {schedule.name}",
            )
    return named


@dataclass(frozen=True, slots=True, kw_only=True)
class Nights:
    """Runs a schedule's night now, in this process. While another study measures on this machine it
    waits, and tells ``say`` so."""

    db: str
    by: str
    say: Callable[[str], None]
    night: Callable[..., NightRun] = run_night
    busy: Callable[[], bool] = someone_measures
    sleep: Callable[[float], None] = time.sleep
    now: Callable[[], float] = time.time

    def run(self, schedule: Schedule, listen: ProgressListener) -> NightRun:
        """The run as it has ended. One that a killed process left is taken up if its window is not
        over. Raises what `run_night` does."""
        with open_service(self.db, create=False) as store:
            left = None if self.busy() else self._left(store, schedule)
            run = left or store.schedules.run(self._due(store, schedule))
        out = _exports(run)
        while True:
            self._wait(schedule, run)
            try:
                return self.night(run.id, db=self.db, out=out, by=self.by, listen=listen)
            except MachineBusy:  # another study was faster
                self.sleep(_LOOK_S)

    def _due(self, store: ServiceStore, schedule: Schedule) -> int:
        run_id = store.schedules.due(schedule.id, self.now())
        if run_id is None:
            raise Conflict("a run of this schedule is due at this very moment", value=schedule.name)
        return run_id

    def _left(self, store: ServiceStore, schedule: Schedule) -> NightRun | None:
        """The latest run that was begun like this and never ended, if it can be gone on with.
        (Nothing measures here, so nobody is at it.)"""
        left = [run for run in unended(store, schedule.name) if run.job_id is None]
        latest = next(
            (
                run
                for run in left[:1]
                if run.schedule_id == schedule.id
                and not window_over(schedule, run.scheduled_for, self.now())
            ),
            None,
        )
        for run in left:
            if run != latest:
                store.schedules.update_run(
                    run.id, state=RunState.FAILED, reason="its process was lost"
                )
        return latest

    def _wait(self, schedule: Schedule, run: NightRun) -> None:
        """Until nothing else measures here, or the window is over."""
        told = False
        while self.busy() and not window_over(schedule, run.scheduled_for, self.now()):
            if not told:
                self.say(f"{schedule.name}: another study measures on this machine: waiting")
                told = True
            self.sleep(_LOOK_S)


def _exports(run: NightRun) -> Path:
    """The number alone would meet that of another database's run."""
    settings = Settings.from_environment()
    settings.refuse_unusable()
    folder = settings.service_dir / "exports" / f"run-{run.id}-{run.scheduled_for:.0f}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    return folder
