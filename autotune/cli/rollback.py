"""``autotune rollback``: what a promotion replaced, in service again."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from autotune.bootstrap.desk_promotions import champion_of
from autotune.bootstrap.promotions import roll_back_now
from autotune.bootstrap.service import local_user, open_service
from autotune.cli.console import Console
from autotune.cli.options import db_option, json_option
from autotune.cli.promote import target_options
from autotune.core.promotions import Target


@click.command(
    name="rollback",
    epilog="""\b
Examples:
  autotune rollback ocr --why "p99 doubled at noon"
  autotune rollback ocr --target /srv/models
""",
)
@click.argument("model")
@target_options
@click.option("--why", default="", help="The reason, for the audit trail.")
@db_option
@json_option
def command(  # noqa: PLR0913 - the options
    model: str,
    *,
    target: Path | None,
    target_grpc: str | None,
    why: str,
    db: str,
    as_json: bool,
) -> None:
    """Put back what a model's latest promotion replaced (that to a target, if one is named).

    Again, it puts back what the promotion before that one had replaced: the last five versions are
    kept beside a repository.
    """
    named = target is not None or target_grpc is not None
    where = Target(repository=target, grpc=target_grpc, shadow_s=0.0) if named else None
    with open_service(db, create=False) as store:
        champion = champion_of(store, model, where)
        done = roll_back_now(
            store,
            champion.id,
            by=local_user(),
            why=why,
            listen=lambda step: None if as_json else Console.note(f"{step.stage:<8} {step.text}"),
        )
        now = store.promotions.champion(model, done.target)
    if as_json:
        Console.document(asdict(done))
        return
    before = "what was there before it" if now is None else f"promotion {now.id}"
    Console.plain(
        f"promotion {done.id} of {model} is rolled back at {done.target}: {before} is in service"
    )
