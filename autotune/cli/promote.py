"""``autotune promote``: a stored study's trial, put into service."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from autotune.bootstrap.promotions import approve_now, promote_now, propose_now, reject_now
from autotune.bootstrap.releases import WAITING
from autotune.bootstrap.service import local_user, open_service
from autotune.cli.console import Console
from autotune.cli.options import db_option, json_option
from autotune.core.errors import AutotuneError, Busy, InputRefused
from autotune.core.promotions import Promotion, PromotionState, Target
from autotune.core.sla import Outcome
from autotune.ports import Progress
from storage.service import ServiceStore

SHADOW_S = 20.0


def target_options(function: Any) -> Any:
    """Where to: shared with ``rollback``."""
    for option in (
        click.option("--target-grpc", metavar="HOST:PORT", help="A live Triton in explicit mode."),
        click.option(
            "--target",
            type=click.Path(path_type=Path),
            help="The model repository to change.",
        ),
    ):
        function = option(function)
    return function


@click.command(
    name="promote",
    epilog="""\b
Examples:
  autotune promote ocr --target /srv/models
  autotune promote ocr --trial 4 --target /srv/models --yes
  autotune promote ocr --target /srv/models --target-grpc localhost:8001 \\
      --target-http localhost:8000
  autotune promote ocr --target /srv/models --propose --why "half the latency"
  autotune promote --approve 3
  autotune promote --reject 3 --why "not before Monday"
""",
)
@click.argument("study", required=False)
@click.option("--trial", type=click.IntRange(min=0), help="Another trial than the pick.")
@target_options
@click.option("--target-http", metavar="HOST:PORT", help="Its HTTP address, for the shadow check.")
@click.option(
    "--shadow-s",
    type=click.FloatRange(0, 3600),
    default=SHADOW_S,
    show_default=True,
    help="How long a live server's SLA is checked after the load (0: not).",
)
@click.option(
    "--native/--as-served",
    default=None,
    help="For the ONNX Runtime backend, or for autotune's runner.  [default: as the target has it]",
)
@click.option("--why", default="", help="The reason, for the audit trail.")
@click.option("--propose", is_flag=True, help="Leave it to someone's approval.")
@click.option("--approve", type=int, metavar="ID", help="Put a proposed one into service.")
@click.option("--reject", type=int, metavar="ID", help="Turn a proposed one down.")
@click.option(
    "--anyway", is_flag=True, help="Also over a configuration that somebody else put there."
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@db_option
@json_option
def command(
    study: str | None, approve: int | None, reject: int | None, db: str, as_json: bool, **how: Any
) -> None:
    """Put a study's pick, or a trial, into service: show what changes, ask, and do it.

    The target is a model repository directory (--target), a live Triton in explicit mode
    (--target-grpc), or both: then that is where the server loads from. A directory changes in one
    step; what it replaced is kept beside it. A live server is told to load, its SLA is checked
    beside its traffic, and on a miss what was there before is put back.
    """
    _refuse_unclear(study, approve, reject)
    asked = _Asked(as_json=as_json, how=how)
    with open_service(db, create=False) as store:
        if reject is not None:
            promotion = reject_now(store, reject, why=how["why"], by=local_user())
        elif approve is not None:
            promotion = asked.approved(store, approve)
        else:
            assert study is not None
            promotion = asked.proposed(store, study)
    _told(promotion, as_json=as_json)


class _Asked:
    """A request for a promotion, with the command's options."""

    def __init__(self, *, as_json: bool, how: dict[str, Any]) -> None:
        self._as_json = as_json
        self._how = how

    def proposed(self, store: ServiceStore, study: str) -> Promotion:
        """Proposed; and, unless that is all that was asked for, put into service."""
        how, by = self._how, local_user()
        ask = not (how["propose"] or how["yes"])
        store.trials.study(study)  # one that is not there is told before anything is asked
        if ask and (self._as_json or not someone_there()):
            raise InputRefused(
                "nobody is there to be asked whether it shall be put into service",
                next_step="give --yes to do it, or --propose to leave it to someone's approval",
            )
        proposal = propose_now(
            store,
            study,
            trial=how["trial"],
            target=_target(how),
            why=how["why"],
            by=by,
            native=how["native"],
            anyway=how["anyway"],
            listen=self._listen,
        )
        self._show(proposal)
        if how["propose"]:
            return proposal
        if ask and not click.confirm(f"Put it into service at {proposal.target}?", err=True):
            return reject_now(store, proposal.id, why="declined when asked", by=by)
        return self._carried_out(store, approve_now(store, proposal.id, by=by))

    def approved(self, store: ServiceStore, promotion_id: int) -> Promotion:
        """Also one that was approved, or begun, and whose process has ended."""
        promotion = store.promotions.promotion(promotion_id)
        if promotion.state in WAITING:
            self._show(promotion)
        if promotion.state not in (PromotionState.APPROVED, PromotionState.APPLYING):
            promotion = approve_now(store, promotion_id, by=local_user())
        return self._carried_out(store, promotion)

    def _carried_out(self, store: ServiceStore, promotion: Promotion) -> Promotion:
        try:
            return promote_now(
                store,
                promotion.id,
                by=local_user(),
                anyway=self._how["anyway"],
                listen=self._listen,
            )
        except Busy as error:
            error.add_note(f"it is approved, and waits: autotune promote --approve {promotion.id}")
            raise

    @property
    def _listen(self) -> Callable[[Progress], None]:
        if self._as_json:
            return lambda _: None
        return lambda step: Console.note(f"{step.stage:<8} {step.text}")

    def _show(self, proposal: Promotion) -> None:
        if self._as_json:
            return
        Console.note(
            f"promotion {proposal.id}: trial {proposal.trial} of study {proposal.study_id} for"
            f" {proposal.model} at {proposal.target}"
        )
        Console.plain(proposal.diff.rstrip())
        for note in _doubts(proposal):
            Console.note(f"note: trial {proposal.trial} {note}", style="yellow")


def _doubts(proposal: Promotion) -> Iterator[str]:
    sla = proposal.detail.get("sla", Outcome.MEETS)
    if sla != Outcome.MEETS:
        yield "misses the study's SLA" if sla == Outcome.MISSES else "may miss the study's SLA"
    if not proposal.detail.get("confirmed", True):
        yield "was not measured again from its exported files"


def someone_there() -> bool:
    return sys.stdin.isatty()


def _refuse_unclear(study: str | None, approve: int | None, reject: int | None) -> None:
    if sum(each is not None for each in (study, approve, reject)) != 1:
        raise InputRefused(
            "give a study, or --approve ID, or --reject ID",
            next_step="`autotune history MODEL` shows what was proposed",
        )


def _target(how: dict[str, Any]) -> Target:
    if how["target"] is None and how["target_grpc"] is None:
        raise InputRefused(
            "a promotion needs a target",
            next_step="name a model repository (--target DIR), a live server (--target-grpc"
            " HOST:PORT), or both",
        )
    return Target(
        repository=how["target"],
        grpc=how["target_grpc"],
        http=how["target_http"],
        shadow_s=how["shadow_s"] if how["target_grpc"] else 0.0,
    )


def _told(promotion: Promotion, *, as_json: bool) -> None:
    if promotion.state is PromotionState.APPLYING:
        raise AutotuneError(
            f"promotion {promotion.id} of {promotion.model} is left half done: {promotion.reason}",
            next_step=f"autotune promote --approve {promotion.id} tries again to undo it, and so"
            " does the service",
        )
    if promotion.state is PromotionState.FAILED:
        raise AutotuneError(
            f"promotion {promotion.id} of {promotion.model} failed: {promotion.reason}",
            next_step=f"autotune history {promotion.model} tells the steps",
        )
    if as_json:
        Console.document(asdict(promotion))
    else:
        Console.plain(_words(promotion))


def _words(promotion: Promotion) -> str:
    name = f"promotion {promotion.id} of {promotion.model}"
    if promotion.state is PromotionState.PROPOSED:
        return f"{name} is proposed: autotune promote --approve {promotion.id}"
    if promotion.state is PromotionState.REJECTED:
        return f"{name} is rejected; nothing was changed"
    checked = f": {promotion.reason}" if promotion.reason else ""
    return (
        f"{name} is in service at {promotion.target}{checked}\n"
        f"to undo it: autotune rollback {promotion.model}"
    )
