"""``autotune token``: who may use the service over the network."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import click
from rich.table import Table

from autotune.bootstrap.access import add_token, revoke_token
from autotune.bootstrap.service import local_user, open_service
from autotune.cli.console import Console
from autotune.cli.options import db_option, json_option
from autotune.core.access import Role, Token


@click.group(
    name="token",
    epilog="""\b
Examples:
  autotune token add ops --role operate
  autotune token list
  autotune token revoke ops
""",
)
def command() -> None:
    """Make, list and revoke the tokens that the service asks for.

    A token is shown once, when it is made: the database keeps its SHA-256 alone. With role `view`
    it may read, with `operate` also submit, cancel, approve and roll back. It is given as
    `Authorization: Bearer TOKEN`, or at the dashboard's login.
    """


@command.command("add", epilog="Example:  autotune token add ops --role operate")
@click.argument("name")
@click.option(
    "--role",
    type=click.Choice([str(role) for role in Role]),
    default=str(Role.VIEW),
    show_default=True,
    help="What it may do.",
)
@db_option
@json_option
def add(name: str, role: str, db: str, as_json: bool) -> None:
    """Make a token and print it, once."""
    with open_service(db) as store:
        secret = add_token(store.tokens, store.promotions, name, Role(role), by=local_user())
    if as_json:
        Console.document({"name": name, "role": role, "token": secret})
        return
    Console.note(f"token {name} may {role}; it is not shown again:")
    Console.plain(secret)


@command.command("list", epilog="Example:  autotune token list --json")
@db_option
@json_option
def list_(db: str, as_json: bool) -> None:
    """List the tokens, those that were revoked too."""
    with open_service(db, create=False) as store:
        tokens = store.tokens.tokens()
    if as_json:
        Console.document([_as_json(token) for token in tokens])
    elif not tokens:
        Console.plain("no token yet: autotune token add NAME --role operate")
    else:
        Console.out.print(_table(tokens))


@command.command("revoke", epilog="Example:  autotune token revoke ops")
@click.argument("name")
@db_option
def revoke(name: str, db: str) -> None:
    """Revoke a token: it is refused from now on, in sessions too."""
    with open_service(db, create=False) as store:
        revoke_token(store.tokens, store.promotions, name, by=local_user())
    Console.note(f"token {name} is revoked")


def _table(tokens: Sequence[Token]) -> Table:
    table = Table("name", "role", "made", "last used", "", box=None, pad_edge=False)
    for token in tokens:
        revoked = "" if token.revoked_at is None else f"revoked {_time(token.revoked_at)}"
        used = "never" if token.last_used_at is None else _time(token.last_used_at)
        table.add_row(token.name, str(token.role), _time(token.created_at), used, revoked)
    return table


def _as_json(token: Token) -> dict[str, Any]:
    return {
        "name": token.name,
        "role": str(token.role),
        "created_at": token.created_at,
        "last_used_at": token.last_used_at,
        "revoked_at": token.revoked_at,
    }


def _time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M UTC")
