"""Promotions that were left half done: seen to their end without anyone asking."""

from __future__ import annotations

import time
from collections.abc import Callable

import structlog

from autotune.bootstrap.promotions import give_up_now, under_way
from autotune.bootstrap.releases import LOOKED_THROUGH
from autotune.core.errors import AutotuneError, Busy
from autotune.core.jobs import Job, JobKind, JobState
from autotune.core.promotions import Promotion, PromotionState
from storage.service import ServiceStore

EVERY_S = 60.0
"""So often one is tried that could not be settled: a server that does not answer now may later."""
BY = "the service"
"""Who is named in the audit trail."""

log = structlog.get_logger("autotune.settling")


class Settling:
    """A promotion whose process was killed, and that no job takes up again, is undone; so is one
    that could not be, until it can. What has a process at it, or a job, is left alone."""

    def __init__(self, store: ServiceStore, now: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._now = now
        self._not_before: dict[int, float] = {}

    def see_to(self) -> None:
        left = [each for each in under_way(self._store) if self._is_due(each.id)]
        if not left:
            return
        jobs = self._store.jobs.jobs(
            states=(JobState.QUEUED, JobState.RUNNING), limit=LOOKED_THROUGH
        )
        for promotion in left:
            if not any(self._is_of(job, promotion) for job in jobs):
                self._not_before[promotion.id] = self._now() + EVERY_S
                self._settle(promotion)

    def _is_due(self, promotion_id: int) -> bool:
        return self._now() >= self._not_before.get(promotion_id, 0.0)

    def _is_of(self, job: Job, promotion: Promotion) -> bool:
        if job.kind is JobKind.NIGHTLY:
            run = self._store.schedules.run(job.payload["run"])
            return run.promotion_id == promotion.id
        return bool(job.payload.get("promotion") == promotion.id)

    def _settle(self, promotion: Promotion) -> None:
        about = {"promotion": promotion.id, "target": str(promotion.target)}
        try:
            settled = give_up_now(self._store, promotion.id, by=BY)
        except Busy:
            return  # its process is at it, or it is another machine's
        except (AutotuneError, OSError) as error:
            log.warning("promotion could not be settled", **about, why=str(error))
            return
        if settled.state is PromotionState.APPLYING:
            log.warning("promotion cannot be undone yet", **about, why=settled.reason)
        else:
            log.info("promotion settled", **about, state=str(settled.state), why=settled.reason)
