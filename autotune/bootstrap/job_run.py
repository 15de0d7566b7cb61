"""What a job does, in a process of its own: ``autotune job ID``, begun by a worker."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from autotune.bootstrap.job_progress import told
from autotune.bootstrap.jobs import folder_name
from autotune.bootstrap.named_files import refuse_elsewhere
from autotune.bootstrap.nightly import run_night
from autotune.bootstrap.promotions import promote_now, roll_back_now
from autotune.bootstrap.recorded import machine_here
from autotune.bootstrap.session import StudySession
from autotune.bootstrap.stored import HARDWARE
from autotune.bootstrap.worker import LATER
from autotune.core.errors import AutotuneError, Busy, LoadFailed
from autotune.core.jobs import Job, JobKind
from autotune.core.promotions import Promotion, PromotionState
from autotune.core.records import StudyRecord, StudyState
from autotune.core.study import Study
from autotune.ports import ProgressListener, TrialStore
from autotune.settings import Settings
from autotune.studyfile import read_definition
from storage.service import ServiceStore

DONE, NO_CANDIDATE = 0, 3


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    job: Job
    store: ServiceStore
    db: str
    out: Path
    listen: ProgressListener

    def began(self, study_id: int) -> None:
        self.store.jobs.set_study(self.job.id, study_id)


def run_job(job_id: int, *, db: str, say: Callable[[str], None]) -> int:
    """Do it, and say by the exit status what it came to: `LATER` where someone else
    has what it needs. ``say`` is told why, in that case. Whether the job is the caller's is the
    caller's to know."""
    settings = Settings.from_environment()
    with closing(ServiceStore(db, create=False)) as store:
        job = store.jobs.job(job_id)
        with told(lambda progress: store.jobs.set_progress(job_id, progress)) as listen:
            work = _Work(
                job=job,
                store=store,
                db=db,
                out=settings.service_dir / "exports" / folder_name(job),
                listen=listen,
            )
            try:
                return _DOING[job.kind](work)
            except Busy as exc:
                say(str(exc))
                return LATER


# -------------------------------------------------------------------------------------- studies
def _study(work: _Work) -> int:
    study = read_definition(work.job.payload["definition"])
    begun = _begun(work.store.trials, work.job, study)
    if begun is not None and begun.state is StudyState.DONE:  # its process died just after
        decided = work.store.trials.decision(begun.id)
        return _status(
            exported=decided is not None and decided.exported_to is not None,
            verdict=decided is None or bool(decided.detail.get("judged", True)),
        )
    refuse_elsewhere(study, "the study")
    with StudySession.open(
        study, db=work.db, out=work.out, resume=begun is not None, listen=work.listen
    ) as session:
        work.began(session.runner.study_id)
        answer = session.run()
    exported = answer.exported_to is not None
    return _status(exported=exported, verdict=not answer.decision.without_verdict)


def _status(*, exported: bool, verdict: bool) -> int:
    if not verdict:
        raise LoadFailed(
            "no trial could be measured, so there is no verdict",
            next_step="free this machine of other work, and ask again",
        )
    return DONE if exported else NO_CANDIDATE


def _begun(store: TrialStore, job: Job, study: Study) -> StudyRecord | None:
    """The run that an earlier attempt at the job left, if it can be gone on with: nobody has run a
    study of that name since, and it was this machine that measured it."""
    if job.study_id is None:
        return None
    latest = next((run for run in store.studies() if run.name == study.name), None)
    if latest is None or latest.id != job.study_id or latest.digest != study.digest:
        return None
    there, here = latest.environment or {}, machine_here()
    same = all(there[key] == here.get(key) for key in HARDWARE if key in there)
    return latest if same else None


# ----------------------------------------------------------------------------- nights, promotions
def _night(work: _Work) -> int:
    run_night(
        work.job.payload["run"],
        db=work.db,
        out=work.out,
        by=work.job.created_by,
        listen=work.listen,
        started=work.began,
    )
    return DONE


def _promotion(work: _Work) -> int:
    return _until(
        work,
        PromotionState.DONE,
        lambda number, by: promote_now(work.store, number, by=by, listen=work.listen),
    )


def _rollback(work: _Work) -> int:
    why = work.job.payload.get("why", "")
    return _until(
        work,
        PromotionState.ROLLED_BACK,
        lambda number, by: roll_back_now(work.store, number, by=by, why=why, listen=work.listen),
    )


def _until(work: _Work, wanted: PromotionState, act: Callable[[int, str], Promotion]) -> int:
    """An earlier attempt may have done it, whose end was not stored any more."""
    number = work.job.payload["promotion"]
    promotion = work.store.promotions.promotion(number)
    if promotion.state is not wanted:
        refuse_elsewhere(promotion.target, "the promotion")
        promotion = act(number, work.job.created_by)
    if promotion.state is not wanted:
        raise AutotuneError(
            f"promotion {promotion.id} is {promotion.state}", value=promotion.reason or None
        )
    return DONE


_DOING: Mapping[JobKind, Callable[[_Work], int]] = {
    JobKind.STUDY: _study,
    JobKind.NIGHTLY: _night,
    JobKind.PROMOTE: _promotion,
    JobKind.ROLLBACK: _rollback,
}
