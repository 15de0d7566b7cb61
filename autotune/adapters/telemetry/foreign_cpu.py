"""How much of this machine's processor went to others than the server, the load and ourselves."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from ipaddress import ip_address
from pathlib import Path

import psutil

from autotune.adapters.telemetry.cores import CGROUPS, affinity, available_cores
from autotune.adapters.telemetry.disturbance import Disturbance
from autotune.adapters.telemetry.processes import PROC, ProcessTimes, family, read_processes
from autotune.core.model_interface import Endpoint
from autotune.core.validity import MOST_FOREIGN

SHORTEST_S = 1.0
"""Processor time is told in ticks of 10 ms, for each core and process: in a shorter window they
would be percents."""
_NAMED = 0.01
"""A process that took less of the processor than this is not worth naming."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Moment:
    """``taken`` and ``stolen``: ticks since the machine was started, by core."""

    at: float
    taken: Mapping[int, int]
    stolen: Mapping[int, int]
    processes: Mapping[int, ProcessTimes]


class ForeignCpu:
    """The processor's busy time, the hypervisor's part (steal) included, less what the process
    trees of the server and of this process (the load generator is a child of it) used.

    Processes that began and ended in between are in it, since the total comes from the cores'
    own counters; what was spent waiting for disks or in interrupts is not: nobody's, and our own
    traffic's in part. A share of the cores that the server and this process may run on. Where a
    control group's quota allows fewer of them than there are, others only disturb by what they
    leave too little of: with 10 cores idle, nothing is taken from a quota of 2.

    Unknown (None) for a window under ``shortest_s``; where the server's processes are on this
    machine but hidden from us; and where processes of ours ended without leaving us their times.
    """

    def __init__(
        self,
        *,
        proc: Path = PROC,
        cgroups: Path = CGROUPS,
        clock: Callable[[], float] = time.monotonic,
        shortest_s: float = SHORTEST_S,
    ) -> None:
        self._proc = proc
        self._cgroups = cgroups
        self._clock = clock
        self._shortest_s = shortest_s
        self._unknown = "nothing was begun"

    def begin(self, pids: Sequence[int], endpoint: Endpoint | None) -> None:
        """``endpoint``: None where there is no server."""
        self._roots = (os.getpid(), *pids)
        leaders = self._roots[:2]
        self._cores = frozenset().union(*map(affinity, leaders))
        self._quota = max(
            available_cores(pid, proc=self._proc, cgroups=self._cgroups) for pid in leaders
        )
        self._unknown = ""
        if endpoint is not None and not pids and _is_here(endpoint.http):
            self._unknown = "the server runs on this machine, but its processes are not known"
        try:
            self._start = self._moment()
        except (OSError, ValueError, IndexError) as exc:
            self._unknown = f"the processor's times cannot be read: {exc}"
            return
        if pids and not set(pids) & self._start.processes.keys():
            self._unknown = "the server's processes cannot be seen"

    def end(self) -> Disturbance:
        try:
            return self._unknown_share() or self._between(self._start, self._moment())
        except (OSError, ValueError, IndexError) as exc:
            return Disturbance(notes={"foreign_cpu": f"the times cannot be read: {exc}"})

    def _unknown_share(self) -> Disturbance | None:
        if not self._unknown and self._clock() - self._start.at < self._shortest_s:
            self._unknown = f"unknown for windows under {self._shortest_s:g} s"
        return Disturbance(notes={"foreign_cpu": self._unknown}) if self._unknown else None

    def _moment(self) -> _Moment:
        at = self._clock()
        taken, stolen = _core_times((self._proc / "stat").read_text())
        return _Moment(at=at, taken=taken, stolen=stolen, processes=read_processes(self._proc))

    def _between(self, start: _Moment, end: _Moment) -> Disturbance:
        ours, used = _ours(start.processes, end.processes, self._roots)
        if used is None:
            gone = "processes of the server or the load ended without leaving their times"
            return Disturbance(notes={"foreign_cpu": gone})
        # A container may list other cores than its processes' affinity names: then all listed.
        cores = self._cores if self._cores <= end.taken.keys() else frozenset(end.taken)
        stolen = _rise(start.stolen, end.stolen, cores)
        taken = _rise(start.taken, end.taken, cores)
        core_ticks = os.sysconf("SC_CLK_TCK") * (end.at - start.at)
        foreign = min(max(0.0, (taken + stolen - used) / core_ticks), float(len(cores)))
        usable = min(self._quota, float(len(cores)))
        notes = _most(start, end, ours, stolen, core_ticks * len(cores))
        if usable < len(cores):
            notes["foreign_cpu_of"] = (
                f"a quota of {usable:g} of {len(cores)} cores; others used {foreign:.2f} cores"
            )
        share = max(0.0, foreign - (len(cores) - usable)) / usable
        return Disturbance(foreign_cpu=share, notes=notes)


def _core_times(text: str) -> tuple[dict[int, int], dict[int, int]]:
    """Ticks in processes and ticks stolen, by core, of proc(5)'s ``/proc/stat``; a guest's time
    is in ``user`` and ``nice`` already."""
    taken: dict[int, int] = {}
    stolen: dict[int, int] = {}
    for line in text.splitlines():
        name, *fields = line.split()
        if name.startswith("cpu") and name != "cpu":
            user, nice, system, _idle, _iowait, _irq, _softirq, steal = map(int, fields[:8])
            taken[int(name[3:])] = user + nice + system
            stolen[int(name[3:])] = steal
    return taken, stolen


def _rise(before: Mapping[int, int], after: Mapping[int, int], cores: Iterable[int]) -> int:
    return sum(after[core] - before.get(core, 0) for core in cores)


def _same(before: Mapping[int, ProcessTimes], after: Mapping[int, ProcessTimes], pid: int) -> bool:
    return pid in before and pid in after and before[pid].started == after[pid].started


def _ours(
    before: Mapping[int, ProcessTimes], after: Mapping[int, ProcessTimes], roots: Sequence[int]
) -> tuple[set[int], int | None]:
    """The processes at the end that are the roots', with those that were and have lost their
    parent since; and the ticks that all of them used.

    A process that ended left its times to the parent that waited for it, so that the sum goes on;
    where it did not, the ticks are unknown (None).
    """
    first = family(before, roots)
    left = {pid for pid in first if _same(before, after, pid)}
    now = family(after, {*left, *(root for root in roots if root not in before)})
    inherited = sum(after[pid].inherited for pid in now)
    inherited -= sum(before[pid].inherited for pid in left)
    if inherited < sum(before[pid].ticks + before[pid].inherited for pid in first - left):
        return now, None
    used = sum(after[pid].ticks + after[pid].inherited for pid in now)
    return now, used - sum(before[pid].ticks + before[pid].inherited for pid in first)


def _most(
    start: _Moment, end: _Moment, ours: set[int], stolen: int, ticks: float
) -> dict[str, str]:
    """Who took most, of ``ticks`` in all: a process that still lives, or the hypervisor."""
    takers = {"the hypervisor (steal)": stolen}
    for pid, process in end.processes.items():
        if pid not in ours:
            same = _same(start.processes, end.processes, pid)
            before = start.processes[pid].ticks if same else 0
            takers[f"{process.name} (process {pid})"] = process.ticks - before
    name = max(takers, key=takers.__getitem__)
    share = takers[name] / ticks
    return {MOST_FOREIGN: f"{name} took {share:.0%}"} if share >= _NAMED else {}


@cache
def _is_here(address: str) -> bool:
    """Whether ``host:port`` is this machine, as far as can be told without asking a name server."""
    host = address.rpartition(":")[0].strip("[]")
    if host in {"localhost", platform.node()}:
        return True
    try:
        if ip_address(host).is_loopback:
            return True
    except ValueError:
        return False
    own = {each.address for addresses in psutil.net_if_addrs().values() for each in addresses}
    return host in own
