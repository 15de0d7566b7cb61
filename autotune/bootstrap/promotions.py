"""Promotions, wired: proposed, decided on, put into service, undone."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import TypeAlias

from autotune.bootstrap.bench import alone as alone_here
from autotune.bootstrap.notices import notify
from autotune.bootstrap.releases import (
    BRINGS,
    FOUND,
    LOOKED_THROUGH,
    NATIVE,
    SENDS,
    WAITING,
    Contents,
    Exported,
    Place,
    export_release,
    folder_of,
    in_service,
    is_another_machines,
    known_configs,
    normalized,
    place,
    release_at,
    releases,
    served_natively,
    shadow_of,
    sweep,
)
from autotune.bootstrap.stored import StoredStudy
from autotune.core.errors import AutotuneError, Busy, Conflict, InputRefused
from autotune.core.promotions import Promotion, PromotionState, Step, Target
from autotune.core.study import Study
from autotune.ports import Progress, ProgressListener
from autotune.retune.promote import MACHINE, Promoter, ShadowCheck, Tell
from autotune.service_ports import Release
from autotune.settings import Settings
from autotune.studyfile import read_definition
from storage.service import ServiceStore

STAGE = "promote"

Say: TypeAlias = Callable[[str], None]


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
    anyway: bool = False,
    listen: ProgressListener = unheard,
) -> Promotion:
    """Propose a study's pick, or the trial, for a target: exported, and held against what is there.

    ``native``: as `autotune.bootstrap.stored.export_stored`; None goes by what serves the model at
    the target now. ``anyway``: see `promote_now`. InputRefused where it could not be put into
    service there, or is in service already.
    """
    settings = Settings.from_environment()
    target = normalized(target)
    say = _saying(listen)
    stored = StoredStudy.load(store.trials, study)
    model = stored.study.model.name
    with ExitStack() as stack:
        looked_at = place(target, stack, known=None)
        if native is None:
            native = served_natively(looked_at, target, model)
        folder = releases(settings) / f"new-{secrets.token_hex(8)}"
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        say(f"exporting the trial that is to be proposed for {target}")
        folder.parent.mkdir(parents=True, exist_ok=True)
        exported = export_release(
            store.trials, str(stored.record.id), trial=trial, native=native, out=folder
        )
        known = known_configs(
            exported.found,
            in_service(store.promotions, target),
            study=stored.study,
            lasting=target.repository is not None,
        )
        there = place(target, stack, known=None if anyway else known, sends=exported.sends)
        diff = there.preflight(exported.release)
        if not diff:
            raise InputRefused(
                f"trial {exported.trial} of study {stored.record.name} is what is in service there"
                " already",
                value=str(target),
            )
        made = replace(
            _promotion_of(exported, target),
            why=why,
            diff=diff,
            created_by=by,
            schedule_id=schedule_id,
        )
        step = Step(who=by, action="proposed", why=why, diff=diff)
        promotion = store.promotions.promotion(store.promotions.propose(made, step=step))
        folder.rename(folder_of(settings, promotion))
    sweep(store.promotions, settings)
    return promotion


def _promotion_of(exported: Exported, target: Target) -> Promotion:
    return Promotion(
        id=0,
        model=exported.study.model.name,
        target=target,
        study_id=exported.study_id,
        trial=exported.trial,
        candidate=exported.candidate.to_json(),
        state=PromotionState.PROPOSED,
        detail={
            BRINGS: exported.brings.to_json(),
            FOUND: exported.found.to_json(),
            NATIVE: exported.native,
            SENDS: sorted(exported.sends),
            "sla": exported.sla,
            "confirmed": exported.confirmed,
        },
    )


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
    nothing touched, for one that cannot be; it is then FAILED too. MachineBusy passes, and an
    AutotuneError where another promotion to the target is under way: it waits as before.
    Interrupted passes, after what was in service before has been put back.
    """
    settings = Settings.from_environment()
    promotion = store.promotions.promotion(promotion_id)
    study = _study_of(store, promotion)
    say = _saying(listen)
    with ExitStack() as stack:
        shadow = shadow_of(study, promotion.target, stack)
        if shadow is not None and alone:
            stack.enter_context(alone_here())
        there = _there(store, promotion, study, stack, by, anyway=anyway)
        _settle_others(store, promotion, by, say)
        stack.enter_context(store.promotions.alone(promotion.target))
        stack.enter_context(there.locked())
        promoter = _promoter(
            store,
            there,
            by=by,
            say=say,
            release=lambda: _release(store, promotion, settings),
            shadow=shadow,
        )
        try:
            return promoter.promote(promotion_id)
        finally:
            if store.promotions.promotion(promotion_id).state not in WAITING:
                shutil.rmtree(folder_of(settings, promotion), ignore_errors=True)


def _there(  # noqa: PLR0913 - what for, and how
    store: ServiceStore,
    promotion: Promotion,
    study: Study,
    stack: ExitStack,
    by: str,
    *,
    anyway: bool,
) -> Place:
    """A target that is not there any more fails the promotion."""
    target = promotion.target
    found = Contents.from_json(promotion.detail.get(FOUND))
    promoted = in_service(store.promotions, target)
    known = known_configs(found, promoted, study=study, lasting=target.repository is not None)
    try:
        return place(
            target,
            stack,
            known=None if anyway else known,
            sends=frozenset(promotion.detail.get(SENDS) or ()),
            load_timeout_s=study.server.load_timeout_s,
        )
    except InputRefused as error:
        if promotion.state in WAITING:
            store.promotions.advance(
                promotion.id,
                expected=WAITING,
                state=PromotionState.FAILED,
                reason=error.rule,
                step=Step(who=by, action="failed", why=error.rule),
            )
        raise


def _release(store: ServiceStore, promotion: Promotion, settings: Settings) -> Release:
    """As it was proposed; exported again where that is gone."""
    folder = folder_of(settings, promotion)
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        export_release(
            store.trials,
            str(promotion.study_id),
            trial=promotion.trial,
            native=bool(promotion.detail.get(NATIVE)),
            out=folder,
        )
    return release_at(folder)


def _settle_others(store: ServiceStore, promotion: Promotion, by: str, say: Say) -> None:
    """Other promotions that are under way at what this one's target changes too: Busy where one is,
    and what a killed process left is undone first. The caller holds no lock of the target yet."""
    for each in under_way(store):
        if each.id == promotion.id or not each.target.meets(promotion.target):
            continue
        try:
            settled = give_up_now(store, each.id, by=by, say=say)
        except _Elsewhere:
            if each.target.grpc == promotion.target.grpc is not None:
                raise
            continue  # a directory of the same name, on another machine
        if settled.state is PromotionState.APPLYING:
            raise AutotuneError(
                f"promotion {each.id} of {each.model} was left half done there, and cannot be"
                " undone yet",
                value=settled.reason,
                next_step=f"When that is mended, `autotune promote --approve {each.id}` undoes it,"
                " and so does the service.",
            )


def under_way(store: ServiceStore) -> Sequence[Promotion]:
    """By their state: whether a process is still at one, its locks tell."""
    return store.promotions.promotions(states=(PromotionState.APPLYING,), limit=LOOKED_THROUGH)


def give_up_now(
    store: ServiceStore, promotion_id: int, *, by: str, say: Say = lambda _: None
) -> Promotion:
    """What was in service before one that is under way, though its process is gone, is put back;
    it is then FAILED, or still APPLYING where a server does not answer. Busy where its process is
    not gone, or where another machine has what it replaced."""
    promotion = store.promotions.promotion(promotion_id)
    with ExitStack() as stack:
        _refuse_elsewhere(store, promotion)
        stack.enter_context(store.promotions.alone(promotion.target))
        there = _there(store, promotion, _study_of(store, promotion), stack, by, anyway=True)
        stack.enter_context(there.locked())
        promotion = store.promotions.promotion(promotion_id)
        if promotion.state is not PromotionState.APPLYING:
            return promotion
        say(f"promotion {promotion.id} was left half done at {promotion.target}")
        return _promoter(store, there, by=by, say=say).give_up(promotion)


class _Elsewhere(Busy):
    """What a promotion replaced is on another machine."""


def _refuse_elsewhere(store: ServiceStore, promotion: Promotion) -> None:
    if not is_another_machines(store, promotion):
        return
    raise _Elsewhere(
        f"promotion {promotion.id} was begun on {promotion.detail[MACHINE]}, which has what it"
        " replaced",
        next_step=f"`autotune promote --approve {promotion.id}` there goes on with it. A machine"
        " that has another name by now is called as before by AUTOTUNE_MACHINE.",
    )


def roll_back_now(
    store: ServiceStore,
    promotion_id: int,
    *,
    by: str,
    why: str = "",
    listen: ProgressListener = unheard,
) -> Promotion:
    """Put back what a promotion that is in service replaced: it is then ROLLED_BACK, and the one
    that it had superseded is the champion again. AutotuneError where another promotion to the
    target is under way; Conflict where a later one has changed the same models there."""
    promotion = store.promotions.promotion(promotion_id)
    say = _saying(listen)
    with ExitStack() as stack:
        there = place(promotion.target, stack, known=None)
        _settle_others(store, promotion, by, say)
        stack.enter_context(store.promotions.alone(promotion.target))
        stack.enter_context(there.locked())
        _refuse_below_another(store, promotion)
        return _promoter(store, there, by=by, say=say).roll_back(promotion_id, why)


def _refuse_below_another(store: ServiceStore, promotion: Promotion) -> None:
    """What a later promotion has put over it (of a pipeline that shares a step, or to the same
    repository under another target's name) would be taken out with it, and be called in service."""
    if promotion.state is not PromotionState.DONE:
        return
    for each in in_service(store.promotions, promotion.target):
        if each.id == promotion.id:
            return
        if shared := sorted(_models(each) & _models(promotion)):
            raise Conflict(
                f"promotion {each.id} of {each.model} at {each.target} came after promotion"
                f" {promotion.id}, and has changed {', '.join(shared)} too",
                next_step=f"Roll that back first: `autotune rollback {each.model}"
                f"{_named(each.target)}`.",
            )


def _models(promotion: Promotion) -> set[str]:
    return set(Contents.from_json(promotion.detail.get(BRINGS)).configs)


def _named(target: Target) -> str:
    """By the options of the command line."""
    named = (("--target", target.repository), ("--target-grpc", target.grpc))
    return "".join(f" {option} {value}" for option, value in named if value is not None)


def _promoter(  # noqa: PLR0913 - what it works with
    store: ServiceStore,
    there: Place,
    *,
    by: str,
    say: Say,
    release: Callable[[], Release] | None = None,
    shadow: ShadowCheck | None = None,
) -> Promoter:
    return Promoter(
        store=store.promotions,
        deployment=there,
        release=release or _no_release,
        shadow=shadow,
        tell=_telling(store),
        by=by,
        say=say,
        machine=Settings.from_environment().machine,
    )


def _no_release() -> Release:
    raise AssertionError("what is put back has no release")


def approve_now(store: ServiceStore, promotion_id: int, *, by: str) -> Promotion:
    return store.promotions.advance(
        promotion_id,
        expected=(PromotionState.PROPOSED,),
        state=PromotionState.APPROVED,
        by=by,
        step=Step(who=by, action="approved"),
    )


def reject_now(store: ServiceStore, promotion_id: int, *, why: str, by: str) -> Promotion:
    promotion = store.promotions.advance(
        promotion_id,
        expected=(PromotionState.PROPOSED,),
        state=PromotionState.REJECTED,
        by=by,
        reason=why,
        step=Step(who=by, action="rejected", why=why),
    )
    sweep(store.promotions, Settings.from_environment())
    return promotion


# ---------------------------------------------------------------------------------------- parts
def _study_of(store: ServiceStore, promotion: Promotion) -> Study:
    return read_definition(store.trials.study(str(promotion.study_id)).definition)


def _saying(listen: ProgressListener) -> Say:
    return lambda text: listen(Progress(stage=STAGE, text=text))


def _telling(store: ServiceStore) -> Tell:
    return lambda event, title, text, payload: notify(store.notices, event, title, text, payload)
