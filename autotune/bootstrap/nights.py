"""Nights that a command runs in its own process: for cron, systemd timers and Kubernetes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from autotune.bootstrap.nightly import deliver_now, run_night
from autotune.bootstrap.schedules import tell_missed, unended, window_over
from autotune.bootstrap.service import open_service
from autotune.bootstrap.upkeep import remove_old
from autotune.bootstrap.worker import someone_measures
from autotune.core.errors import Conflict, Interrupted, MachineBusy
from autotune.core.schedules import NightRun, RunState, Schedule, ScheduleState
from autotune.ports import ProgressListener
from autotune.settings import Settings
from storage.service import ServiceStore

_LOOK_S = 5.0
_STALE_S = 86_400.0


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
    """Runs a schedule's night now, in this process. While another study measures on this machine,
    or a container that shares the work directory has a night, it waits, and tells ``say`` so."""

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
        settings = _settings()
        remove_old(settings, self.now())
        exports = settings.service_dir / "exports"
        lock = FileLock(exports / "nights.lock", timeout=0)
        try:
            with open_service(self.db, create=False) as store:
                left = self._left(store, schedule, exports) if self._free(lock) else None
                run = left or store.schedules.run(self._due(store, schedule))
                _mark(exports, run).touch()
                while True:
                    if not self._wait(store, schedule, run, lock):
                        return _given_up(store, run)
                    try:
                        return self.night(
                            run.id, db=self.db, out=exports / _name(run), by=self.by, listen=listen
                        )
                    except MachineBusy:  # another study was faster
                        self.sleep(_LOOK_S)
        finally:
            lock.release()

    def _free(self, lock: FileLock) -> bool:
        """Whether nobody measures here. (Containers do not see each other's studies.)"""
        if self.busy():
            return False
        if not lock.is_locked:
            with suppress(Timeout):
                lock.acquire()
        return lock.is_locked

    def _due(self, store: ServiceStore, schedule: Schedule) -> int:
        run_id = store.schedules.due(schedule.id, self.now())
        if run_id is None:
            raise Conflict("a run of this schedule is due at this very moment", value=schedule.name)
        return run_id

    def _left(self, store: ServiceStore, schedule: Schedule, exports: Path) -> NightRun | None:
        """The latest run that was begun here like this and never ended, if it can be gone on with.
        (Nothing measures here, so nobody is at it.) Those that nobody can be at are failed."""
        left = [run for run in unended(store, schedule.name) if run.job_id is None]
        fresh = [
            run
            for run in left
            if run.schedule_id == schedule.id and not self._over(schedule, run.scheduled_for)
        ]
        here = [run for run in fresh if _mark(exports, run).exists()]
        for run in left:
            if run not in fresh or run in here[1:]:
                store.schedules.update_run(
                    run.id, state=RunState.FAILED, reason="its process was lost"
                )
        return here[0] if here else None

    def _over(self, schedule: Schedule, scheduled_for: float) -> bool:
        """What was measured a day ago says nothing of tonight."""
        now = self.now()
        return now >= scheduled_for + _STALE_S or window_over(schedule, scheduled_for, now)

    def _wait(self, store: ServiceStore, schedule: Schedule, run: NightRun, lock: FileLock) -> bool:
        """Until nothing else measures here, or the window is over, which the night itself sees to.
        False where there is no window, and something has measured here for a day: nights of a job
        that hangs would else pile up."""
        told = False
        try:
            while not self._free(lock):
                if self._over(schedule, run.scheduled_for):
                    return schedule.window_minutes is not None
                if not told:
                    self.say(f"{schedule.name}: another study measures on this machine: waiting")
                    told = True
                self.sleep(_LOOK_S)
        except Interrupted as exc:
            reason = f"{exc.rule}, before it could begin"
            store.schedules.update_run(run.id, state=RunState.STOPPED, reason=reason)
            raise
        return True


def _given_up(store: ServiceStore, run: NightRun) -> NightRun:
    begun = run.started_at is not None
    store.schedules.update_run(
        run.id,
        state=RunState.STOPPED if begun else RunState.MISSED,
        reason="another study measured on this machine for a day",
    )
    ended = store.schedules.run(run.id)
    if not begun:
        tell_missed(store, ended)
        deliver_now(store)
    return ended


def _settings() -> Settings:
    settings = Settings.from_environment()
    settings.refuse_unusable()
    (settings.service_dir / "exports").mkdir(parents=True, exist_ok=True)
    return settings


def _name(run: NightRun) -> str:
    """The number alone would meet that of another database's run."""
    return f"run-{run.id}-{run.scheduled_for:.0f}"


def _mark(exports: Path, run: NightRun) -> Path:
    """Says that it was begun on this machine: another's may be under way there."""
    return exports / f"{_name(run)}.begun"
