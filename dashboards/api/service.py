"""Promotions, models and their history, the audit, notices."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from autotune.core.notices import Notice
from autotune.core.promotions import AuditEntry, Promotion, PromotionState
from autotune.service_ports import Desks, ModelHistory
from dashboards.api.answers import told
from dashboards.api.asking import Operator, Viewer
from dashboards.api.models import Accepted, Asking, Id, Limit, Name, PromotionGiven, Why


def promotions_router(desks: Desks) -> APIRouter:
    router = APIRouter(tags=["promotions"])

    @router.get("/promotions")
    def list_promotions(
        state: Annotated[list[PromotionState] | None, Query()] = None, limit: Limit = 100
    ) -> list[Promotion]:
        """Promotions, newest first."""
        return list(desks.promotions.promotions(states=state or (), limit=limit))

    @router.post("/promotions", status_code=201, responses=told(400, 403, 404, 409, 413, 502))
    def propose_promotion(given: PromotionGiven, who: Operator) -> Promotion:
        """Propose a study's pick, or a trial of it, for a target; it waits for approval."""
        return desks.promotions.propose(
            str(given.study),
            trial=given.trial,
            target=desks.checks.target(given.target.target()),
            why=given.why,
            by=who.name,
        )

    @router.get("/promotions/{promotion_id}", responses=told(404))
    def get_promotion(promotion_id: Id) -> Promotion:
        return desks.promotions.promotion(promotion_id)

    @router.post(
        "/promotions/{promotion_id}/approve", status_code=202, responses=told(403, 404, 409)
    )
    def approve_promotion(promotion_id: Id, who: Operator) -> Accepted:
        """Have it put into service."""
        return Accepted(job=desks.promotions.approve(promotion_id, by=who.name))

    @router.post("/promotions/{promotion_id}/reject", responses=told(400, 403, 404, 409, 413))
    def reject_promotion(promotion_id: Id, given: Why, who: Operator) -> Promotion:
        return desks.promotions.reject(promotion_id, why=given.why, by=who.name)

    return router


def models_router(desks: Desks) -> APIRouter:
    router = APIRouter(tags=["models"])

    @router.get("/models")
    def list_models() -> list[str]:
        """Models that have schedules or promotions."""
        return list(desks.promotions.models())

    @router.get("/models/{model}/history", responses=told(404))
    def get_history(model: Name) -> ModelHistory:
        """Its champions, its nights, and what was done about it."""
        return desks.promotions.history(model)

    @router.post(
        "/models/{model}/rollback", status_code=202, responses=told(400, 403, 404, 409, 413)
    )
    def roll_back(model: Name, given: Why, who: Operator) -> Accepted:
        """Have the champion before put back into service."""
        return Accepted(job=desks.promotions.roll_back(model, why=given.why, by=who.name))

    return router


def told_router(desks: Desks) -> APIRouter:
    router = APIRouter(tags=["service"])

    @router.get("/audit")
    def list_audit(limit: Limit = 200) -> list[AuditEntry]:
        """Who did what to what, when and why; newest first."""
        return list(desks.promotions.audit(limit=limit))

    @router.get("/notices")
    def list_notices() -> list[Notice]:
        """What was told to whom; newest first."""
        return list(desks.notices())

    @router.get("/me")
    def who_am_i(who: Viewer) -> Asking:
        """Who the service takes the asker for."""
        return Asking(name=who.name, role=str(who.role))

    return router
