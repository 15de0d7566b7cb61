"""Programs and shared libraries: what they link, and what can be taken off them.

By the tools of the machine that packs, each missed without harm: without ``ldd`` every library is
packed, without ``strip`` each stays as large as it came.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

_TIMEOUT_S = 120


def linked(programs: Iterable[Path], folder: Path) -> set[str] | None:
    """Names of the libraries of ``folder`` that the loader would take for the programs, and for
    those in turn. None where there is no ``ldd``."""
    ldd = shutil.which("ldd")
    if ldd is None:
        return None
    lines = [line for program in programs for line in _output([ldd, str(program)]).splitlines()]
    paths = [Path(word) for line in lines for word in line.split() if word.startswith("/")]
    return {path.name for path in paths if path.parent.resolve() == folder.resolve()}


def strip(files: Sequence[Path]) -> bool:
    """Take off what no loader reads; whether there was a tool for it. One that ``strip`` refuses
    stays as it is."""
    tool = shutil.which("strip")
    if tool is None:
        return False
    with ThreadPoolExecutor() as workers:
        list(workers.map(lambda file: _strip(tool, file), files))
    return True


def _strip(tool: str, file: Path) -> None:
    smaller = file.with_name(f".{file.name}.stripped")
    try:
        _output([tool, "--strip-unneeded", "-o", str(smaller), str(file)])
        if smaller.is_file():
            smaller.replace(file)
    finally:
        smaller.unlink(missing_ok=True)


def _output(command: list[str]) -> str:
    """What it says, whether or not it is content: `ldd` is not, of a library that is nowhere."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout
