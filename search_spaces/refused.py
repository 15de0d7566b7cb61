"""The one error of this package, and the nearest valid name for a wrong one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class SpaceRefused(ValueError):
    """A space that cannot be searched.

    ``rule`` says what must hold, ``value`` what was found, ``next_step`` what to do; ``path`` leads
    to the place in the mapping (keys and list indices), so that whoever read it from a file can
    name the line.
    """

    def __init__(
        self,
        rule: str,
        *,
        value: object = None,
        next_step: str = "",
        path: tuple[str | int, ...] = (),
    ) -> None:
        self.rule = rule
        self.value = value
        self.next_step = next_step
        self.path = path
        where = ".".join(map(str, path))
        text = f"{where}: {rule}" if where else rule
        text += "" if value is None else f" (got {value!r})"
        super().__init__(f"{text}\n  {next_step}" if next_step else text)


def nearest(word: str, known: Iterable[str]) -> str:
    """A sentence that names the nearest known word, or all of them where none is near."""
    names = list(known)
    close = difflib.get_close_matches(word, names, n=1, cutoff=0.6)
    return f"did you mean {close[0]}?" if close else f"known: {', '.join(names)}"
