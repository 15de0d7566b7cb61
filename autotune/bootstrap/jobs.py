"""The queue as pages, API and commands see it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from autotune.bootstrap.job_logs import tail
from autotune.core.jobs import CPU, HERE, Job, JobKind, JobState
from autotune.core.study import Study
from autotune.service_ports import JobStore, PromotionStore
from autotune.studyfile import read_definition


def devices_of(study: Study) -> tuple[str, ...]:
    """What a study needs for itself: the cores of the machine that does it, which send its load and
    serve its model, the GPUs of it that it names, and the remote server that it tunes."""
    remote = (study.server.grpc,) if study.server.grpc is not None else ()
    return (CPU, *(f"{HERE}{device}" for device in study.server.devices), *remote)


def submit_study(store: JobStore, definition: Mapping[str, Any], *, by: str) -> Job:
    """Queue a study by its whole definition, as studies are stored."""
    study = read_definition(definition)
    payload = {"definition": dict(study.definition)}
    job_id = store.submit(JobKind.STUDY, study.name, payload, devices=devices_of(study), by=by)
    return store.job(job_id)


def folder_name(job: Job) -> str:
    """Of what a job leaves below the service's folder. The number alone would meet that of another
    database's job."""
    return f"job-{job.id}-{job.created_at:.0f}"


class Jobs:
    """Implements `autotune.service_ports.JobDesk`. ``audit`` is told who cancelled what; ``logs``
    is where workers write what their jobs say."""

    def __init__(self, store: JobStore, audit: PromotionStore, *, logs: Path) -> None:
        self._store = store
        self._audit = audit
        self._logs = logs

    def jobs(self, *, states: Sequence[JobState] = (), limit: int = 100) -> Sequence[Job]:
        return self._store.jobs(states=states, limit=limit)

    def job(self, job_id: int) -> Job:
        return self._store.job(job_id)

    def cancel(self, job_id: int, *, by: str) -> Job:
        """One that has ended, or was asked to end already, is left as it is."""
        before = self._store.job(job_id)
        if before.state.ended or before.cancel:
            return before
        job = self._store.cancel(job_id)
        if job.cancel or job.state is JobState.CANCELLED:  # it may have ended meanwhile
            self._audit.note(by, "cancel", f"job {job.id}", detail={"title": job.title})
        return job

    def leases(self) -> Mapping[str, str]:
        return self._store.leases()

    def log(self, job_id: int) -> str | None:
        return tail(self._logs / f"{folder_name(self._store.job(job_id))}.log")
