"""The desk of promotions, and a model's history: what pages, API and commands ask."""

from __future__ import annotations

from collections.abc import Sequence

from autotune.bootstrap.promotions import propose_now, reject_now
from autotune.bootstrap.releases import LOOKED_THROUGH, normalized
from autotune.core.errors import Conflict
from autotune.core.jobs import CPU, Job, JobKind
from autotune.core.promotions import AuditEntry, Promotion, PromotionState, Target
from autotune.core.schedules import NightRun, Schedule
from autotune.retune.promote import subject_of
from autotune.service_ports import ModelHistory, ModelLine
from autotune.studyfile import read_definition
from storage.service import ServiceStore
from storage.service.database import no_such


class Promotions:
    """Implements `autotune.service_ports.PromotionDesk`: what takes long is queued."""

    def __init__(self, store: ServiceStore) -> None:
        self._store = store

    def promotions(
        self, *, states: Sequence[PromotionState] = (), limit: int = 100
    ) -> Sequence[Promotion]:
        return self._store.promotions.promotions(states=states, limit=limit)

    def promotion(self, promotion_id: int) -> Promotion:
        return self._store.promotions.promotion(promotion_id)

    def propose(
        self, study: str, *, trial: int | None, target: Target, why: str, by: str
    ) -> Promotion:
        return propose_now(self._store, study, trial=trial, target=target, why=why, by=by)

    def approve(self, promotion_id: int, *, by: str) -> Job:
        promotion = self._store.promotions.promotion(promotion_id)
        return self._store.approve(
            promotion,
            title=f"promote {promotion.model} to {promotion.target}",
            devices=_devices(promotion.target),
            subject=subject_of(promotion),
            by=by,
        )

    def reject(self, promotion_id: int, *, why: str, by: str) -> Promotion:
        return reject_now(self._store, promotion_id, why=why, by=by)

    def roll_back(self, model: str, *, why: str, by: str) -> Job:
        """It waits for no study: what has to go back has to go back now."""
        champion = champion_of(self._store, model)
        jobs = self._store.jobs
        return jobs.job(
            jobs.submit(
                JobKind.ROLLBACK,
                f"roll back {model} at {champion.target}",
                {"promotion": champion.id, "why": why},
                by=by,
            )
        )

    def models(self) -> Sequence[str]:
        return models(self._store)

    def lines(self) -> Sequence[ModelLine]:
        return lines(self._store)

    def history(self, model: str) -> ModelHistory:
        return history(self._store, model)

    def audit(self, *, limit: int = 200) -> Sequence[AuditEntry]:
        return self._store.promotions.audit(limit=limit)


def _devices(target: Target) -> tuple[str, ...]:
    """A live server for itself; the cores of the machine that measures its SLA."""
    if target.grpc is None:
        return ()
    return (target.grpc, CPU) if target.shadow_s > 0 else (target.grpc,)


def champion_of(store: ServiceStore, model: str, target: Target | None = None) -> Promotion:
    """InputRefused if nothing of the model was promoted, or nothing there."""
    there = None if target is None else normalized(target)
    champion = store.promotions.champion(model, there)
    if champion is not None:
        return champion
    promoted = models(store)
    if model not in promoted:
        raise no_such("model", model, promoted)
    raise Conflict(
        f"nothing of {model} that was promoted is in service" + (f" at {there}" if there else ""),
        next_step=f"`autotune history {model}` shows what was.",
    )


def models(store: ServiceStore) -> list[str]:
    """Those that have schedules or promotions."""
    scheduled = {_model_of(each) for each in store.schedules.schedules()}
    return sorted(scheduled | {*store.promotions.models()})


def lines(store: ServiceStore) -> list[ModelLine]:
    latest = store.schedules.latest()
    nights: dict[str, list[tuple[NightRun, int]]] = {each: [] for each in store.promotions.models()}
    for schedule in store.schedules.schedules():
        known = [latest[schedule.name]] if schedule.name in latest else []
        nights.setdefault(_model_of(schedule), []).extend(known)
    return [
        ModelLine(
            model=model,
            champion=store.promotions.champion(model),
            last=max((run for run, _ in runs), key=lambda run: run.scheduled_for, default=None),
            nights=sum(count for _, count in runs),
        )
        for model, runs in sorted(nights.items())
    ]


def history(store: ServiceStore, model: str) -> ModelHistory:
    """InputRefused for a model that has neither schedules nor promotions."""
    known = models(store)
    if model not in known:
        raise no_such("model", model, known)
    promotions = store.promotions.promotions(model=model, limit=LOOKED_THROUGH)
    schedules = [each.name for each in store.schedules.schedules() if _model_of(each) == model]
    subjects = {
        f"model {model}",
        *map(subject_of, promotions),
        *(f"schedule {name}" for name in schedules),
    }
    return ModelHistory(
        model=model,
        champions=[each for each in promotions if each.applied_at is not None],
        nights=_nights(store, schedules),
        audit=store.promotions.audit(subjects=subjects, limit=LOOKED_THROUGH),
    )


def _nights(store: ServiceStore, schedules: Sequence[str]) -> list[NightRun]:
    runs = [run for name in schedules for run in store.schedules.runs(schedule=name)]
    return sorted(runs, key=lambda run: run.scheduled_for, reverse=True)


def _model_of(schedule: Schedule) -> str:
    return read_definition(schedule.definition).model.name
