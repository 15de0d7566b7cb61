"""Where the command line prints: people's words on a terminal, one JSON document on request."""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from typing import Any

import rich.console
from rich.text import Text

from autotune.core.errors import AutotuneError, Interrupted


class Console:
    """The standard streams. Progress and errors go to standard error, answers to standard out."""

    answered = False
    """Whether the one document of ``--json`` has been written."""
    out = rich.console.Console(highlight=False, soft_wrap=False)
    err = rich.console.Console(stderr=True, highlight=False)

    @classmethod
    def plain(cls, text: str) -> None:
        """Print without markup: names and messages may hold brackets."""
        cls.out.print(Text(text), soft_wrap=True)

    @classmethod
    def hanging(cls, text: Text, first: str) -> None:
        """Print after ``first``; lines that wrap are indented as far."""
        lines = text.wrap(cls.out, max(cls.out.width - len(first), 20))
        for i, line in enumerate(lines):
            line.rstrip()
            begin = " " * len(first) if i else first
            cls.out.print(Text.assemble(begin, line), soft_wrap=True)

    @classmethod
    def note(cls, text: str, style: str = "") -> None:
        """A line for people beside the answer."""
        cls.err.print(Text(text, style=style), soft_wrap=not cls.err.is_terminal)

    @classmethod
    def document(cls, data: Any) -> None:
        """The one JSON document of ``--json``. Unknown numbers are null."""
        cls.answered = True
        sys.stdout.write(json.dumps(data, indent=2, default=str, allow_nan=False) + "\n")


def report_error(error: AutotuneError | Interrupted, *, as_json: bool) -> None:
    if as_json and not Console.answered:
        Console.document(
            {
                "error": {
                    "kind": type(error).__name__,
                    "rule": error.rule,
                    "value": error.value,
                    "next_step": error.next_step,
                }
            }
        )
    notes = filter(None, getattr(error, "__notes__", []))
    with suppress(OSError):  # nor can standard error be written: its file is on a full disk
        Console.note("\n  ".join([f"autotune: {error}", *notes]), style="red")
