"""Command lines of examples and pages, held against the commands that there are."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click

from autotune.cli import cli

_FENCED = re.compile(r"^```\w*\n(.*?)^```", re.MULTILINE | re.DOTALL)
_ENDS = re.compile(r"[|<>;&#]+|\d?>.*")
_NAMES = {"-u", "-n", "-g", "-o", "--namespace", "--username"}
"""Options whose value may be a user, a group or a namespace that is called autotune too."""


def understood(argv: list[str]) -> click.Context | None:
    """Parsed as the command line is, and not run. UsageError for what there is not. None where it
    names a file that is not here."""
    command: click.Command = cli
    context = cli.make_context(argv[0], argv[1:])
    while isinstance(command, click.Group):
        name, inner, rest = command.resolve_command(
            context, [*context._protected_args, *context.args]
        )
        assert inner is not None
        command = inner
        try:
            context = inner.make_context(name, list(rest), parent=context)
        except click.BadParameter as error:
            if error.param is None or not isinstance(error.param.type, click.Path):
                raise
            return None
    return context


def command_lines(page: Path) -> Iterator[list[str]]:
    """Of autotune, in a page's fenced blocks, whatever stands before them."""
    for block in _FENCED.findall(page.read_text(encoding="utf-8")):
        for line in block.replace("\\\n", " ").splitlines():
            if re.search(r"\bautotune\b", line):
                yield from _called(line.removeprefix("$ "))


def _called(line: str) -> Iterator[list[str]]:
    words = shlex.split(line, comments=True)
    for at, word in enumerate(words):
        command = word == "autotune" or word.endswith("/bin/autotune")
        if not command or at == len(words) - 1 or (at and words[at - 1] in _NAMES):
            continue
        rest = words[at + 1 :]
        end = next((i for i, each in enumerate(rest) if _ENDS.fullmatch(each)), len(rest))
        if end:  # else a database of that name, say
            yield ["autotune", *rest[:end]]
            return
