"""Promotions, wired: proposed, put into service, undone; and the desk of them."""

from __future__ import annotations

from autotune.core.promotions import Promotion, Target
from autotune.ports import Progress, ProgressListener
from storage.service import ServiceStore


def unheard(_: Progress) -> None:
    """Nobody listens."""


def propose_now(  # noqa: PLR0913 - what, where, why, for whom
    store: ServiceStore,
    study: str,
    *,
    trial: int | None,
    target: Target,
    why: str,
    by: str,
    schedule_id: int | None = None,
    native: bool | None = None,
    listen: ProgressListener = unheard,
) -> Promotion:
    """Propose a study's pick, or the trial, for a target: exported, and held against what is there.

    ``native``: as `autotune.bootstrap.stored.export_stored`; None goes by what serves the model at
    the target now. InputRefused where it could not be put into service there.
    """
    raise NotImplementedError


def promote_now(  # noqa: PLR0913 - which one, for whom, and how
    store: ServiceStore,
    promotion_id: int,
    *,
    by: str,
    listen: ProgressListener = unheard,
    anyway: bool = False,
    alone: bool = True,
) -> Promotion:
    """Put a proposed or approved promotion into service, or go on with one whose process died; it
    comes back DONE, or FAILED with the reason and what was in service before in service again.

    ``anyway``: also over a configuration that somebody else has put there since. ``alone``: take
    the machine's lock for the shadow check; False where the caller holds it. InputRefused, with
    nothing touched, for one that cannot be; it is then FAILED too. Interrupted passes, after what
    was in service before has been put back.
    """
    raise NotImplementedError


def roll_back_now(
    store: ServiceStore,
    promotion_id: int,
    *,
    by: str,
    why: str = "",
    listen: ProgressListener = unheard,
) -> Promotion:
    """Put back what a promotion that is in service replaced: it is then ROLLED_BACK, and the one
    that it had superseded is the champion again."""
    raise NotImplementedError
