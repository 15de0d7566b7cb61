"""Promotions, wired: proposed, decided on, put into service, undone."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace

from autotune.bootstrap.bench import alone as alone_here
from autotune.bootstrap.notices import notify
from autotune.bootstrap.releases import (
    BRINGS,
    FOUND,
    NATIVE,
    SENDS,
    WAITING,
    Contents,
    Exported,
    Place,
    export_release,
    folder_of,
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
from autotune.core.errors import InputRefused
from autotune.core.promotions import Promotion, PromotionState, Target
from autotune.core.study import Study
from autotune.ports import Progress, ProgressListener
from autotune.retune.promote import Promoter, Tell, subject_of
from autotune.service_ports import Release
from autotune.settings import Settings
from autotune.studyfile import read_definition
from storage.service import ServiceStore

STAGE = "promote"
LOOKED_THROUGH = 1000


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
        champion = store.promotions.champion(model, target)
        known = known_configs(
            exported.found,
            champion,
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
        promotion = store.promotions.promotion(store.promotions.propose(made))
        _note(store, promotion, by, "proposed", why)
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
    with ExitStack() as stack:
        shadow = shadow_of(study, promotion.target, stack)
        if shadow is not None and alone:
            stack.enter_context(alone_here())
        there = _there(store, promotion, study, stack, by, anyway=anyway)
        stack.enter_context(there.locked())
        promoter = Promoter(
            store=store.promotions,
            deployment=there,
            release=lambda: _release(store, promotion, settings),
            shadow=shadow,
            tell=_telling(store),
            by=by,
            say=_saying(listen),
        )
        _give_up_killed(store, promoter, promotion)
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
    champion = store.promotions.champion(promotion.model, target)
    found = Contents.from_json(promotion.detail.get(FOUND))
    known = known_configs(found, champion, study=study, lasting=target.repository is not None)
    try:
        return place(
            target,
            stack,
            known=None if anyway else known,
            sends=frozenset(promotion.detail.get(SENDS) or ()),
            load_timeout_s=study.server.load_timeout_s,
        )
    except InputRefused as error:
        _note(store, promotion, by, "failed", error.rule)
        store.promotions.advance(
            promotion.id, expected=WAITING, state=PromotionState.FAILED, reason=error.rule
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


def _give_up_killed(store: ServiceStore, promoter: Promoter, promotion: Promotion) -> None:
    """Other promotions to the same target that are under way, though the lock is ours: their
    processes are gone."""
    under_way = store.promotions.promotions(states=(PromotionState.APPLYING,), limit=LOOKED_THROUGH)
    for each in under_way:
        if each.id != promotion.id and str(each.target) == str(promotion.target):
            promoter.give_up(each)


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
    target is under way."""
    promotion = store.promotions.promotion(promotion_id)
    with ExitStack() as stack:
        there = place(promotion.target, stack, known=None)
        stack.enter_context(there.locked())
        promoter = Promoter(
            store=store.promotions,
            deployment=there,
            release=_no_release,
            shadow=None,
            tell=_telling(store),
            by=by,
            say=_saying(listen),
        )
        _give_up_killed(store, promoter, promotion)
        return promoter.roll_back(promotion_id, why)


def _no_release() -> Release:
    raise AssertionError("a rollback has no release")


def approve_now(store: ServiceStore, promotion_id: int, *, by: str) -> Promotion:
    promotion = store.promotions.advance(
        promotion_id,
        expected=(PromotionState.PROPOSED,),
        state=PromotionState.APPROVED,
        by=by,
    )
    _note(store, promotion, by, "approved")
    return promotion


def reject_now(store: ServiceStore, promotion_id: int, *, why: str, by: str) -> Promotion:
    promotion = store.promotions.advance(
        promotion_id,
        expected=(PromotionState.PROPOSED,),
        state=PromotionState.REJECTED,
        by=by,
        reason=why,
    )
    _note(store, promotion, by, "rejected", why)
    sweep(store.promotions, Settings.from_environment())
    return promotion


# ---------------------------------------------------------------------------------------- parts
def _study_of(store: ServiceStore, promotion: Promotion) -> Study:
    return read_definition(store.trials.study(str(promotion.study_id)).definition)


def _saying(listen: ProgressListener) -> Callable[[str], None]:
    return lambda text: listen(Progress(stage=STAGE, text=text))


def _telling(store: ServiceStore) -> Tell:
    return lambda event, title, text, payload: notify(store.notices, event, title, text, payload)


def _note(store: ServiceStore, promotion: Promotion, by: str, action: str, why: str = "") -> None:
    about = {"model": promotion.model, "target": str(promotion.target)}
    diff = promotion.diff if promotion.state is PromotionState.PROPOSED else ""
    store.promotions.note(by, action, subject_of(promotion), why=why, diff=diff, detail=about)
