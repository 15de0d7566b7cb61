"""A command group that imports a command only when it is used: what a command stands on (Optuna,
SQLAlchemy, ONNX Runtime, …) takes seconds to import, and ``--help`` needs none of it.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

import click


class LazyGroup(click.Group):
    """``commands_in`` maps each command's name to its one-line help; the command itself is the
    attribute ``command`` of the module ``autotune.cli.<name>``. Those that are ``unlisted`` are for
    autotune itself."""

    def __init__(
        self,
        *args: Any,
        commands_in: Mapping[str, str],
        unlisted: Sequence[str] = (),
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.commands_in = commands_in
        self.unlisted = unlisted

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(self.commands_in)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in self.commands_in and cmd_name not in self.unlisted:
            return None
        module = importlib.import_module(f"autotune.cli.{cmd_name}")
        command: click.Command = module.command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl(list(self.commands_in.items()))
