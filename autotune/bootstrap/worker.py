"""Takes jobs from the queue and has each done by a process of its own, whose crash is its own.

One lane takes the jobs that need devices, another those that need none. A job is this worker's as
long as its lease is renewed: when it is lost, to a database that does not answer or to another
worker, the job's process is ended.
"""

from __future__ import annotations

import errno
import os
import platform
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import structlog
from tenacity import (
    RetryCallState,
    Retrying,
    retry_if_exception_type,
    stop_after_delay,
    wait_fixed,
)

from autotune.adapters import machine
from autotune.adapters.triton.process import ChildProcess, Command, tail
from autotune.bootstrap.bench import lock_name
from autotune.bootstrap.jobs import folder_name
from autotune.bootstrap.last_words import LastWords
from autotune.bootstrap.logs import masked
from autotune.core.errors import AutotuneError, StoreFailed
from autotune.core.jobs import SOMEWHERE, Job, JobState, Place
from autotune.service_ports import JobStore

LATER = 75
"""The exit status of a job that cannot be done now and is to be tried again (EX_TEMPFAIL)."""
DONE = (0, 3)
"""A study that found no candidate which meets its SLA has done its work."""
GRACE_S = 60.0
_LOOK_S = 0.2
_AGAIN_S = 2.0
_LOG_LINES = 15
_LONGEST = 2000
_ROOM_BYTES = 1 << 20

_Left: TypeAlias = tuple[JobState, str]
"""The state that a job is left in, and why."""
_LOST: _Left = JobState.QUEUED, "its worker could not renew its lease"
_CANCELLED: _Left = JobState.CANCELLED, "cancelled while it ran"
_STOPPED: _Left = JobState.QUEUED, "the service was stopped; it goes on with the next one"
_KILLED = 128 + signal.SIGKILL

log = structlog.get_logger("autotune.worker")


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """In seconds: a lease's length, between its renewals, between looks into an empty queue, before
    a job that could not be done now is tried again, and between asking a job to end and ending
    it."""

    lease_s: float = 30.0
    beat_s: float = 5.0
    poll_s: float = 1.0
    later_s: float = 15.0
    grace_s: float = GRACE_S

    @classmethod
    def of_lease(cls, lease_s: float) -> Timing:
        """A lease may miss several renewals before it is lost."""
        return cls(lease_s=lease_s, beat_s=lease_s / 6)


def job_command(job: Job, db: str) -> Command:
    """The database goes by the environment: every user of the machine can read command lines. The
    key of the service's sessions does not go along to the models that a job loads."""
    argv = [sys.executable, "-m", "autotune", "job", str(job.id)]
    return Command(argv=argv, variables={"AUTOTUNE_DB": db, "AUTOTUNE_SECRET_KEY": ""})


def someone_measures() -> bool:
    """Whether a study holds this machine, whoever runs it. (Asking does not take the lock.)"""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(lock_name())
        except ConnectionRefusedError:
            return False
        return True


class Worker:
    """``command`` says how a job is done; ``logs`` receives a file for each job; ``ended`` is told
    of each that has ended for good; ``place`` is where it measures; ``occupied`` says whether
    nothing can be measured now. `start` returns at once, `stop` when every job has ended or was put
    back into the queue."""

    def __init__(  # noqa: PLR0913 - a queue, how jobs are done, and who hears of it
        self,
        store: JobStore,
        *,
        command: Callable[[Job], Command],
        logs: Path,
        ended: Callable[[Job], None],
        timing: Timing | None = None,
        place: Place = SOMEWHERE,
        occupied: Callable[[], bool] = someone_measures,
    ) -> None:
        timing = timing or Timing()
        self._stopping = threading.Event()
        at_work: set[str] = set()
        here = f"{platform.node()}/{machine.process_identity()}"
        self._lanes = [
            _Lane(
                store=store,
                owner=f"{here}/{name}",
                measuring=measuring,
                command=command,
                logs=logs,
                ended=ended,
                timing=timing,
                place=place,
                occupied=occupied,
                stopping=self._stopping,
                at_work=at_work,
            )
            for name, measuring in (("measuring", True), ("plain", False))
        ]
        self._threads = [
            threading.Thread(target=lane.run, name=f"worker {lane.owner}", daemon=True)
            for lane in self._lanes
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def alive(self) -> bool:
        return all(thread.is_alive() for thread in self._threads)

    def stop(self) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()


@dataclass(slots=True, kw_only=True)
class _Lane:
    """One job at a time. ``put_off``: until when, by the monotonic clock, jobs are left alone that
    could not be done: others, that can, do not wait behind them. ``at_work``: the owners, of all
    lanes of this process, who have a job: they live, though a machine that slept, or whose clock
    was set, makes their leases look old."""

    store: JobStore
    owner: str
    measuring: bool
    command: Callable[[Job], Command]
    logs: Path
    ended: Callable[[Job], None]
    timing: Timing
    place: Place
    occupied: Callable[[], bool]
    stopping: threading.Event
    at_work: set[str]
    put_off: dict[int, float] = field(default_factory=dict)

    def run(self) -> None:
        while not self.stopping.is_set():
            try:
                wait_s = self._next()
            except (AutotuneError, OSError) as exc:
                log.warning("worker cannot work now", why=str(exc))
                wait_s = self.timing.later_s
            except Exception:  # what nobody foresaw costs this job, not all that wait
                log.exception("worker failed")
                wait_s = self.timing.later_s
            self.stopping.wait(wait_s)

    def _next(self) -> float:
        """Do a job, if there is one; says how many seconds to wait before the next."""
        if self.measuring and self.occupied():
            return self.timing.poll_s
        _refuse_full(self.logs)
        asked = time.monotonic()
        self.put_off = {each: until for each, until in self.put_off.items() if until > asked}
        job = self.store.claim(
            self.owner,
            ttl_s=self.timing.lease_s,
            measuring=self.measuring,
            place=self.place,
            but_not=self.put_off.keys(),
            alive=tuple(self.at_work),
        )
        if job is None:
            return self.timing.poll_s
        log.info("job begins", job=job.id, kind=str(job.kind), attempt=job.attempt)
        run = _Run(lane=self, job=job, claimed_at=asked)
        self.at_work.add(self.owner)
        try:
            state = run.carry_out()
        finally:
            self.at_work.discard(self.owner)
        if state is JobState.QUEUED and run.exit_code == LATER:
            self.put_off[job.id] = time.monotonic() + self.timing.later_s
            return 0.0
        return self.timing.later_s if state is JobState.QUEUED else 0.0


@dataclass(slots=True, kw_only=True)
class _Run:
    """A job under way. ``good_until`` is how long it is this worker's for sure, by the monotonic
    clock; ``over`` tells the heartbeat that it has ended."""

    lane: _Lane
    job: Job
    claimed_at: float
    good_until: float = 0.0
    cancel: bool = False
    exit_code: int | None = None
    over: threading.Event = field(default_factory=threading.Event)

    def carry_out(self) -> JobState | None:
        """The state that it was left in; None where it was lost to someone else."""
        self._renewed(self.claimed_at)
        if self._lost():  # to claim it took that long
            self._renew()
        heart = threading.Thread(target=self._beat, name=f"lease of job {self.job.id}", daemon=True)
        heart.start()
        try:
            state, reason = _LOST if self._lost() else self._done()
        finally:
            self.over.set()
            heart.join()
        return self._leave(state, reason)

    def _done(self) -> _Left:
        output = self.lane.logs / f"{folder_name(self.job)}.log"
        with ExitStack() as stack:
            try:
                before = output.stat().st_size if output.exists() else 0
                words = stack.enter_context(closing(LastWords()))
                child = self._begun(words, output)
            except OSError as exc:  # the system's fault: no other job could begin either
                return JobState.QUEUED, f"its process could not be begun: {exc}"
            stack.callback(child.close)
            asked_to = self._attend(child)
            self.exit_code = child.exit_status
            logged, said = _logged(output, before), words.heard()
        last = logged if said in logged else said
        return self._outcome(child, asked_to, masked(last)[-_LONGEST:])

    def _begun(self, words: LastWords, output: Path) -> ChildProcess:
        """Where this process is gone, it ends before the lease does."""
        timing = self.lane.timing
        return ChildProcess(
            words.asked_of(self.lane.command(self.job)),
            log=output,
            grace_s=timing.grace_s,
            orphaned_s=min(timing.grace_s, timing.lease_s * 2 / 3),
        )

    def _attend(self, child: ChildProcess) -> _Left | None:
        """Until it has ended. Where it was asked to: how the job is left then, if it is not done,
        whatever happens meanwhile."""
        while not child.wait(_LOOK_S):
            if self._lost():
                child.close(within_s=self.lane.timing.lease_s / 3)
                return _LOST
            if self.cancel or self.lane.stopping.is_set():
                child.close()
                return _CANCELLED if self.cancel else _STOPPED
        return None

    def _beat(self) -> None:
        """Until the job is over, or another worker's. (One beat may take as long as the database
        is waited for.)"""
        while not self.over.wait(self.lane.timing.beat_s):
            if not self._renew():
                return

    def _renew(self) -> bool:
        """False where it is not this worker's any more."""
        asked = time.monotonic()
        try:
            beat = self.lane.store.beat(
                self.lane.owner, self.job.id, ttl_s=self.lane.timing.lease_s
            )
        except AutotuneError as exc:
            log.warning("lease not renewed", job=self.job.id, why=str(exc))
            return True
        self.cancel = beat.cancel
        if beat.held:
            self._renewed(asked)
        else:
            self.good_until = 0.0
        return beat.held

    def _renewed(self, at: float) -> None:
        """Two thirds of the lease; the rest of it is for the job's process to end."""
        self.good_until = at + self.lane.timing.lease_s * 2 / 3

    def _lost(self) -> bool:
        return time.monotonic() >= self.good_until

    def _outcome(self, child: ChildProcess, asked_to: _Left | None, last_words: str) -> _Left:
        status = child.exit_status
        if status in DONE:
            return JobState.DONE, "" if status == 0 else "no candidate meets the SLA"
        if asked_to is not None:
            return asked_to
        if status == LATER:
            return JobState.QUEUED, last_words or "it cannot be done now"
        return JobState.FAILED, _why_failed(child, last_words)

    def _leave(self, state: JobState, reason: str) -> JobState | None:
        told = log.bind(job=self.job.id, exit_code=self.exit_code)
        if not self._end(state, reason):
            told.warning("job lost: another worker has it")
            return None
        told.info("job ends", state=str(state), reason=reason)
        if state is not JobState.QUEUED:
            self.lane.ended(self.lane.store.job(self.job.id))
        return state

    def _end(self, state: JobState, reason: str) -> bool:
        """Kept trying as long as nobody else can have the job: what it came to would else be done
        again."""
        owner, left_s = self.lane.owner, self.good_until - time.monotonic()
        for attempt in Retrying(
            retry=retry_if_exception_type(StoreFailed),
            stop=stop_after_delay(max(left_s, 0.0)),
            wait=wait_fixed(min(_AGAIN_S, self.lane.timing.beat_s)),
            before_sleep=lambda failed: log.warning(
                "the job's end is not stored yet", job=self.job.id, why=_why(failed)
            ),
            reraise=True,
        ):
            with attempt:
                return self.lane.store.end(
                    self.job.id, owner, state, reason=reason, exit_code=self.exit_code
                )
        raise AssertionError("it is tried at least once")


def _refuse_full(folder: Path) -> None:
    """OSError where nothing can be written: the jobs of the queue would fail one after another."""
    there = next(each for each in (folder, *folder.parents) if each.exists())
    if shutil.disk_usage(there).free < _ROOM_BYTES:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(there))


def _why(failed: RetryCallState) -> str:
    return "" if failed.outcome is None else str(failed.outcome.exception())


def _why_failed(child: ChildProcess, last_words: str) -> str:
    """A crash is told before what was written last: that need not be about it."""
    crashed = child.exit_status is not None and child.exit_status > 128
    if last_words and not crashed:
        return last_words
    ending = f"its process {child.ending()}"
    if child.exit_status == _KILLED:
        ending += ", as the system does where memory runs out"
    return f"{ending}; it wrote last:\n{last_words}" if last_words else ending


def _logged(output: Path, since: int) -> str:
    """The last lines that a job's process wrote after the first ``since`` bytes of its log."""
    return tail(output, _LOG_LINES, since=since).strip().removeprefix("autotune: ")
