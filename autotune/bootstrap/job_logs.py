"""The end of what a job's process has written, for those who may read it over the network."""

from __future__ import annotations

import os
import re
from pathlib import Path

from autotune.bootstrap.logs import masked

TAIL_BYTES = 64 * 1024
_MORE = 4096
"""Read before the tail, so that what is masked is masked whole."""
_UNSEEN = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f]")
"""Colours and other signs to a terminal: a page shows them as boxes."""


def tail(path: Path) -> str | None:
    """Whole lines of the last `TAIL_BYTES` of it, without secrets; None where there is no such
    file: on another machine, or removed by the upkeep."""
    try:
        with path.open("rb") as stream:
            size = stream.seek(0, os.SEEK_END)
            begin = stream.seek(max(size - TAIL_BYTES - _MORE, 0))
            read = stream.read(TAIL_BYTES + _MORE)
    except OSError:
        return None
    text = masked(_UNSEEN.sub("", read.decode(errors="replace").replace("\r\n", "\n")))
    if begin > 0:  # perhaps within a secret
        text = _whole_lines(text, otherwise=text[_MORE:])
    if len(text) <= TAIL_BYTES:
        return text
    end = text[-TAIL_BYTES:]
    return _whole_lines(end, otherwise=end)


def _whole_lines(text: str, *, otherwise: str) -> str:
    """Without the first, which is cut; ``otherwise`` where there is no other."""
    _, _, rest = text.partition("\n")
    return rest or otherwise
