"""Runs an engine's builder as a process of its own.

A builder of engines may crash, hang or take all memory, and its libraries want a GPU to themselves:
none of that may end the study. What goes wrong there is told as a refusal, with the log's end.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from autotune.adapters.triton.process import ChildProcess, Command, tail

ORDER, ANSWER, LOG = "order.json", "answer.json", "build.log"
_LOG_LINES = 8
_POLL_S = 0.05


def build_apart(
    module: str,
    order: Mapping[str, Any],
    folder: Path,
    *,
    deadline_s: float,
    variables: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Any]:
    """Run ``python -m MODULE ORDER.json ANSWER.json`` and return its answer.

    ``variables`` go on top of this process's environment, as those that say which GPU it may use.
    The order, the answer and the log stand in ``folder``. An answer with the key ``refused`` says
    why there is no artefact; so does the one that is made up here for a process that died, hung
    longer than ``deadline_s`` or answered nothing. It ends with this process, whatever ends that.
    OSError where it could not read or write (`exit_status`): that says nothing of the model.
    """
    for name in (ANSWER, LOG):
        (folder / name).unlink(missing_ok=True)
    (folder / ORDER).write_text(json.dumps(order, indent=1), encoding="utf-8")
    argv = [sys.executable, "-P", "-m", module, str(folder / ORDER), str(folder / ANSWER)]
    child = ChildProcess(Command(argv=argv, variables=variables), log=folder / LOG)
    until = time.monotonic() + deadline_s
    try:
        while child.running() and time.monotonic() < until:
            time.sleep(_POLL_S)
        if child.running():
            return _refused(f"the builder was not done within {deadline_s:.0f} s", folder)
    finally:
        child.kill()
    ending = child.ending()
    if ending.endswith(f"exit status {os.EX_IOERR}"):
        raise OSError(f"the builder cannot go on: {tail(folder / LOG, 1)}")
    return _answer(folder) or _refused(f"the builder {ending}", folder)


def exit_status(build: Callable[[], None]) -> int:
    """Of a builder's process. A disk that is full, a file that may not be read: `build_apart` tells
    them from a model that cannot be built."""
    try:
        build()
    except OSError:
        traceback.print_exc()
        return os.EX_IOERR
    return 0


def _answer(folder: Path) -> dict[str, Any] | None:
    try:
        answer = json.loads((folder / ANSWER).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return answer if isinstance(answer, dict) else None


def _refused(what: str, folder: Path) -> dict[str, Any]:
    last = tail(folder / LOG, _LOG_LINES)
    return {"refused": f"{what}; its last words:\n{last}" if last else f"{what} without a word"}
