"""Jobs, schedules and their runs."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response

from autotune.core.errors import NotFound
from autotune.core.jobs import Job, JobState
from autotune.core.schedules import NightRun, ScheduleState
from autotune.service_ports import Desks, ScheduleView
from dashboards.api.answers import told
from dashboards.api.asking import Operator
from dashboards.api.models import Accepted, Id, Limit, Name, ScheduleGiven


def jobs_router(desks: Desks) -> APIRouter:
    router = APIRouter(tags=["jobs"])

    @router.get("/jobs")
    def list_jobs(
        state: Annotated[list[JobState] | None, Query()] = None, limit: Limit = 100
    ) -> list[Job]:
        """Jobs, newest first."""
        return list(desks.jobs.jobs(states=state or (), limit=limit))

    @router.get("/jobs/{job_id}", responses=told(404))
    def get_job(job_id: Id) -> Job:
        return desks.jobs.job(job_id)

    @router.post("/jobs/{job_id}/cancel", responses=told(403, 404))
    def cancel_job(job_id: Id, who: Operator) -> Job:
        """End a queued job; ask a running one to end."""
        return desks.jobs.cancel(job_id, by=who.name)

    @router.get(
        "/jobs/{job_id}/log",
        response_class=Response,
        responses={
            200: {"content": {"text/plain": {"schema": {"type": "string"}}}},
            **told(403, 404),
        },
    )
    def get_log(job_id: Id, _who: Operator) -> Response:
        """The last lines that its process wrote on the service's machine, at most 64 KiB."""
        text = desks.jobs.log(job_id)
        if text is None:
            raise NotFound("there is no log of the job on this machine", value=job_id)
        return Response(text, media_type="text/plain")

    @router.get("/leases")
    def list_leases() -> dict[str, str]:
        """Who holds each device that is in use."""
        return dict(desks.jobs.leases())

    return router


def schedules_router(desks: Desks) -> APIRouter:
    router = APIRouter(tags=["schedules"])

    @router.get("/schedules")
    def list_schedules() -> list[ScheduleView]:
        """Schedules by name, with when each is due and its latest run."""
        return list(desks.schedules.schedules())

    @router.post("/schedules", status_code=201, responses=told(400, 403, 409, 413))
    def add_schedule(given: ScheduleGiven, who: Operator) -> ScheduleView:
        definition = dict(desks.checks.study(given.definition))
        target = None if given.target is None else desks.checks.target(given.target.target())
        return desks.schedules.add(given.schedule(definition, target), by=who.name)

    @router.get("/schedules/{name}", responses=told(404))
    def get_schedule(name: Name) -> ScheduleView:
        return desks.schedules.schedule(name)

    @router.delete("/schedules/{name}", status_code=204, responses=told(403, 404))
    def remove_schedule(name: Name, who: Operator) -> None:
        """Its runs stay, for the history."""
        desks.schedules.remove(name, by=who.name)

    _steps(router, desks)
    return router


def _steps(router: APIRouter, desks: Desks) -> None:
    @router.post("/schedules/{name}/pause", responses=told(403, 404))
    def pause_schedule(name: Name, who: Operator) -> ScheduleView:
        return desks.schedules.set_state(name, ScheduleState.PAUSED, by=who.name)

    @router.post("/schedules/{name}/resume", responses=told(403, 404))
    def resume_schedule(name: Name, who: Operator) -> ScheduleView:
        return desks.schedules.set_state(name, ScheduleState.ACTIVE, by=who.name)

    @router.post("/schedules/{name}/run", status_code=202, responses=told(403, 404, 409))
    def run_schedule(name: Name, who: Operator) -> Accepted:
        """Queue a run that is due now."""
        return Accepted(job=desks.schedules.run_now(name, by=who.name))

    @router.get("/schedules/{name}/runs", responses=told(404))
    def list_runs(name: Name, limit: Limit = 100) -> list[NightRun]:
        """A schedule's runs, newest first."""
        return list(desks.schedules.runs(name, limit=limit))

    @router.get("/runs/{run_id}", responses=told(404))
    def get_run(run_id: Id) -> NightRun:
        return desks.schedules.run(run_id)
