"""Studies and their trials."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Response
from fastapi.responses import StreamingResponse

from autotune.core.as_json import (
    comparisons_json,
    study_json,
    trial_json,
    variants_json,
)
from autotune.core.errors import InputRefused, NotFound
from autotune.core.plain import finite
from autotune.service_ports import Desks
from dashboards.api.answers import told
from dashboards.api.asking import Operator
from dashboards.api.models import (
    Accepted,
    Configuration,
    Id,
    Limit,
    Number,
    StudyGiven,
    StudyLine,
    TrialLine,
    Trials,
)

DOWNLOAD = told(404)


def studies_router(desks: Desks) -> APIRouter:
    router = APIRouter(prefix="/studies", tags=["studies"])

    @router.get("")
    def list_studies(limit: Limit = 100) -> list[StudyLine]:
        """Studies, newest first."""
        return [StudyLine.of(each) for each in desks.studies.studies(limit=limit)]

    @router.post("", status_code=202, responses=told(400, 403, 413))
    def submit_study(given: StudyGiven, who: Operator) -> Accepted:
        """Queue a study."""
        definition = desks.checks.study(given.definition)
        return Accepted(job=desks.studies.submit(definition, by=who.name))

    @router.get("/{study_id}", responses=told(404))
    def get_study(study_id: Id) -> dict[str, Any]:
        """A study with its decision; its trials have routes of their own."""
        found = desks.studies.study(str(study_id))
        decision = found.decision
        return {
            "study": study_json(found.record),
            "decision": None if decision is None else finite(dict(decision.detail)),
            "exported_to": None if decision is None else decision.exported_to,
            "comparisons": comparisons_json(found.comparisons),
            "variants": variants_json(found.variants),
            "job": None if found.job is None else found.job.id,
            "version": found.version,
        }

    @router.get("/{study_id}/trials", responses=told(404))
    def list_trials(
        study_id: Id,
        offset: Annotated[int, Query(ge=0, le=10**9)] = 0,
        limit: Limit = 100,
    ) -> Trials:
        """Trials in order of their numbers."""
        found = desks.studies.study(str(study_id))
        shown = found.lines[offset : offset + limit]
        return Trials(total=len(found.lines), trials=[TrialLine.of(line) for line in shown])

    _trial_routes(router, desks)
    _downloads(router, desks)
    return router


def _trial_routes(router: APIRouter, desks: Desks) -> None:
    @router.get("/{study_id}/trials/{number}", responses=told(404))
    def get_trial(study_id: Id, number: Number) -> dict[str, Any]:
        """A trial with all of its measurements."""
        sla = desks.studies.study(str(study_id)).study.sla
        return trial_json(desks.studies.trial(study_id, number), sla)

    @router.get("/{study_id}/trials/{number}/config", responses=told(404))
    def get_configuration(study_id: Id, number: Number) -> Configuration:
        """A trial's configuration, the one in service, and what differs."""
        found = desks.studies.config(study_id, number)
        return Configuration(
            config=dict(found.config), in_service=dict(found.in_service), diff=found.diff
        )


def _downloads(router: APIRouter, desks: Desks) -> None:
    @router.get(
        "/{study_id}/trials/{number}/config.pbtxt",
        response_class=Response,
        responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}, **DOWNLOAD},
    )
    def get_config_pbtxt(
        study_id: Id, number: Number, model: Annotated[str, Query(max_length=300)] = ""
    ) -> Response:
        """A trial's config.pbtxt, for Triton; of a pipeline, that of the ``model`` named."""
        configs = desks.studies.config(study_id, number).config
        if model and model not in configs:
            raise NotFound("the trial configures no such model", value=model)
        if not model and len(configs) != 1:
            raise InputRefused(
                "a pipeline has several configurations",
                next_step=f"name a model: ?model={' or '.join(configs)}",
            )
        text = configs[model] if model else next(iter(configs.values()))
        return Response(text, media_type="text/plain", headers=_saved_as("config.pbtxt"))

    @router.get(
        "/{study_id}/trials/{number}/repository.zip",
        response_class=StreamingResponse,
        responses={200: {"content": {"application/zip": {}}}, **DOWNLOAD},
    )
    def get_repository(study_id: Id, number: Number) -> StreamingResponse:
        """A trial's deployable model repository."""
        pieces = desks.studies.repository_zip(study_id, number)
        name = f"study-{study_id}-trial-{number}.zip"
        return StreamingResponse(pieces, media_type="application/zip", headers=_saved_as(name))

    @router.get(
        "/{study_id}/report.html",
        response_class=Response,
        responses={200: {"content": {"text/html": {"schema": {"type": "string"}}}}, **DOWNLOAD},
    )
    def get_report(study_id: Id) -> Response:
        """The study's report, in one file that opens offline."""
        text = desks.studies.report(study_id)
        name = f"study-{study_id}.html"
        return Response(text, media_type="text/html", headers=_saved_as(name))


def _saved_as(name: str) -> dict[str, str]:
    return {"content-disposition": f'attachment; filename="{name}"'}
