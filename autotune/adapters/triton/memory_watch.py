"""Whether memory ran out while a server had a candidate: what its log and the kernel tell."""

from __future__ import annotations

from pathlib import Path

from autotune.core.memory import tells_out_of_memory

VMSTAT = Path("/proc/vmstat")
_MOST_BYTES = 1 << 20
_SHOWN = 200


class MemoryWatch:
    """Looks at what a server's log has gained since `begin`, and whether the kernel has ended
    processes for want of memory since (``oom_kill`` of ``/proc/vmstat``: the whole machine's, so it
    counts only where a process of the server is gone)."""

    def __init__(self, log: Path, *, vmstat: Path = VMSTAT) -> None:
        self._log = log
        self._vmstat = vmstat
        self.begin()

    def begin(self) -> None:
        """What came before is another candidate's."""
        self._seen = self._size()
        self._killed = self._kills()

    def found(self, *, lost: bool) -> str:
        """What tells that memory ran out, in words; empty where nothing does. ``lost``: a process
        of the server is gone, or does not answer, as one that the kernel ended."""
        if lost and self._kills() > self._killed:
            return "the kernel ended a process, being out of memory"
        line = next(filter(tells_out_of_memory, self._gained().splitlines()), "")
        return f"its log: {line.strip()[:_SHOWN]}" if line else ""

    def _size(self) -> int:
        try:
            return self._log.stat().st_size
        except OSError:
            return 0

    def _gained(self) -> str:
        try:
            with self._log.open("rb") as stream:
                stream.seek(max(self._seen, self._size() - _MOST_BYTES))
                return stream.read().decode(errors="replace")
        except OSError:
            return ""

    def _kills(self) -> int:
        try:
            lines = self._vmstat.read_text().splitlines()
        except OSError:
            return 0
        return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)
