"""The stream file of a phase: what has happened so far, for the driver to read meanwhile.

Rows of `WIDTH` float64. A request has one when it is sent and another when it is settled: number,
scheduled, sent, done, `Code`, 0. A mark, number −1, follows whenever rows were written: the time,
the time up to which every request that was due has a row, the processor time used, the most
requests in flight within the window, and whether the cap was hit there. Times are seconds since the
phase began.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from autotune.core.intervals import Interval
from autotune.core.steady import growth_qps
from loadgen.results import Code, RawRun, merged

if TYPE_CHECKING:
    from numpy.typing import NDArray

WIDTH = 6
_ROW_BYTES = 8 * WIDTH
_MARK = -1.0
_LEAST_WINDOW_S = 0.001
_NEVER = float("nan")


class StreamWriter:
    """Collects rows and appends them to a file in one small write at a time."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND)
        self._rows = array("d")

    def sent(self, number: int, scheduled_s: float, sent_s: float) -> None:
        self._rows.extend((number, scheduled_s, sent_s, _NEVER, Code.PENDING, 0.0))

    def settled(
        self, number: int, scheduled_s: float, sent_s: float, done_s: float, code: int
    ) -> None:
        self._rows.extend((number, scheduled_s, sent_s, done_s, code, 0.0))

    def mark(
        self, now_s: float, complete_s: float, cpu_s: float, max_in_flight: int, cap_hit: bool
    ) -> None:
        """Append what was collected, and a mark. OSError where the file cannot take it."""
        self._rows.extend((_MARK, now_s, complete_s, cpu_s, max_in_flight, cap_hit))
        rest = memoryview(self._rows.tobytes())
        self._rows = array("d")
        while rest:
            rest = rest[os.write(self._fd, rest) :]

    def close(self) -> None:
        os.close(self._fd)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """See the top of this file."""

    now_s: float
    complete_s: float
    cpu_s: float
    max_in_flight: int
    cap_hit: bool


class StreamReader:
    """Follows a stream file that is being written."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = 0
        self._rows: NDArray[np.float64] = np.empty((0, WIDTH))
        self._count = 0
        self._mark: Mark | None = None

    def read(self) -> None:
        """Take in what was written since the last call; a row that is not complete waits."""
        with self._path.open("rb") as stream:
            stream.seek(self._at)
            content = stream.read()
        content = content[: len(content) // _ROW_BYTES * _ROW_BYTES]
        self._at += len(content)
        rows = np.frombuffer(content, dtype=np.float64).reshape(-1, WIDTH)
        marks = rows[rows[:, 0] == _MARK]
        if len(marks):
            _, now_s, complete_s, cpu_s, most, hit = marks[-1].tolist()
            self._mark = Mark(
                now_s=now_s,
                complete_s=complete_s,
                cpu_s=cpu_s,
                max_in_flight=int(most),
                cap_hit=bool(hit),
            )
        pending = rows[:, 4] == Code.PENDING
        request = rows[:, 0] != _MARK
        self._keep(rows[request & pending])
        self._keep(rows[request & ~pending])

    def _keep(self, rows: NDArray[np.float64]) -> None:
        if not len(rows):
            return
        numbers = rows[:, 0].astype(np.int64)
        needed = int(numbers.max()) + 1
        if needed > len(self._rows):
            grown = np.full((max(2 * len(self._rows), needed), WIDTH), _NEVER)
            grown[: self._count] = self._rows[: self._count]
            self._rows = grown
        self._rows[numbers] = rows
        self._count = max(self._count, needed)

    @property
    def rows(self) -> NDArray[np.float64]:
        """Of the requests so far, in the order of their numbers, shape (n, `WIDTH`). A refused one
        may be in the file before an older one: that is left out."""
        rows = self._rows[: self._count]
        return rows[~np.isnan(rows[:, 1])]

    @property
    def complete_s(self) -> float | None:
        """See the top of this file; None before the first mark."""
        return None if self._mark is None else self._mark.complete_s

    def window(self, *, opened_s: float, cpu_opened_s: float, tail_s: float) -> RawRun | None:
        """The window up to the latest time before which every request is settled, or has been open
        for longer than ``tail_s``; None while there is no such time after ``opened_s``."""
        mark = self._mark
        if mark is None:
            return None
        rows = self.rows
        scheduled, code = rows[:, 1], rows[:, 4]
        young = (code == Code.PENDING) & (scheduled >= mark.now_s - tail_s)
        closed_s = min(mark.complete_s, float(np.min(scheduled[young], initial=np.inf)))
        if closed_s <= opened_s + _LEAST_WINDOW_S:
            return None
        return RawRun(
            scheduled_s=scheduled.copy(),
            sent_s=rows[:, 2].copy(),
            done_s=rows[:, 3].copy(),
            code=code.astype(np.int16),
            opened_s=opened_s,
            closed_s=closed_s,
            generator_cpu=(mark.cpu_s - cpu_opened_s) / (mark.now_s - opened_s),
            max_in_flight=mark.max_in_flight,
            cap_hit=mark.cap_hit,
        )


class StreamsReader:
    """The stream files of all processes that have a share of a phase, as one."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._readers = [StreamReader(path) for path in paths]

    def read(self) -> None:
        for reader in self._readers:
            reader.read()

    def _rows(self) -> NDArray[np.float64]:
        """In the order in which they were due."""
        rows = np.concatenate([reader.rows for reader in self._readers])
        return rows[np.argsort(rows[:, 1], kind="stable")]

    def latencies_ms(self) -> NDArray[np.float64]:
        """Of all answered requests so far, in the order in which they were due, shape (n,)."""
        rows = self._rows()
        latency = (rows[:, 3] - rows[:, 1]) * 1e3
        return latency[~np.isnan(latency)]

    def growth_qps(self) -> Interval | None:
        """By how much the requests in flight have grown, per second, since the phase began: see
        `autotune.core.steady.growth_qps`."""
        complete = [reader.complete_s for reader in self._readers]
        known = [each for each in complete if each is not None]
        if len(known) < len(complete):
            return None
        rows = self._rows()
        return growth_qps(rows[:, 1], rows[:, 3], min(known))

    def window(
        self, *, opened_s: float, cpu_opened_s: Sequence[float], tail_s: float
    ) -> RawRun | None:
        """The window so far, up to the time up to which it is known of each process: see
        `StreamReader.window`."""
        runs = [
            reader.window(opened_s=opened_s, cpu_opened_s=cpu_s, tail_s=tail_s)
            for reader, cpu_s in zip(self._readers, cpu_opened_s, strict=True)
        ]
        known = [run for run in runs if run is not None]
        return merged(known) if len(known) == len(runs) else None
