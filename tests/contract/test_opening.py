"""A database is made, and brought to the newest schema, by one of those that open it at once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from storage.service import ServiceStore

OPEN = """
import sys
from storage.service import ServiceStore
sys.stdin.readline()
ServiceStore(sys.argv[1]).close()
"""
AT_ONCE = 4


def test_of_processes_that_open_an_empty_database_at_once_all_find_it_ready(where: str) -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", OPEN, where],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=Path(__file__).parents[2],
            text=True,
        )
        for _ in range(AT_ONCE)
    ]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    told = [process.communicate(timeout=120)[1] for process in processes]
    assert [process.returncode for process in processes] == [0] * AT_ONCE, told
    store = ServiceStore(where, create=False)
    assert store.jobs.jobs() == []
    store.close()
