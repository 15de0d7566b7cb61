"""What the service needs from the outside, and what pages, API and commands ask of it.

The stores and the adapters of promotions and notices implement the first part, `autotune.bootstrap`
the second, the desks: the one place where a page, an API route and a command meet, so that all
three do the same. Raises only errors of `autotune.core.errors`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from autotune.core.access import Identity, Role, Token
from autotune.core.comparison import Comparison
from autotune.core.intervals import Interval
from autotune.core.jobs import SOMEWHERE, Beat, Job, JobKind, JobState, Place
from autotune.core.notices import Event, Notice, NoticeState
from autotune.core.promotions import AuditEntry, Promotion, PromotionState, Step, Target
from autotune.core.records import DecisionRecord, StudyRecord
from autotune.core.schedules import NightRun, Outcome, RunState, Schedule, ScheduleState
from autotune.core.standing import Standing
from autotune.core.study import Study
from autotune.core.trial import Trial
from autotune.core.variants import VariantRecord
from search_spaces.candidate import Candidate


# ------------------------------------------------------------------------------------- stores
class JobStore(Protocol):
    """The queue. Every call is one transaction; several workers may share it."""

    def submit(
        self,
        kind: JobKind,
        title: str,
        payload: Mapping[str, Any],
        *,
        devices: Sequence[str] = (),
        by: str,
    ) -> int: ...

    def job(self, job_id: int) -> Job:
        """InputRefused if there is none."""

    def jobs(self, *, states: Sequence[JobState] = (), limit: int = 100) -> Sequence[Job]:
        """Newest first; all states where none is named."""

    def ended(self, states: Sequence[JobState], *, since: float) -> Sequence[Job]:
        """Those that have ended like that since, in the order in which they did."""

    def claim(  # noqa: PLR0913 - who, where, and what not
        self,
        owner: str,
        *,
        ttl_s: float,
        measuring: bool,
        place: Place = SOMEWHERE,
        but_not: Collection[int] = (),
        alive: Collection[str] = (),
    ) -> Job | None:
        """Lease the oldest queued job that can begin at ``place``, and is none of ``but_not``, to
        ``owner`` for ``ttl_s`` seconds. No lease of those that are known to be ``alive`` has run
        out, whatever the clock says.

        ``measuring``: jobs that need devices, or those that need none. Jobs whose worker has let
        its lease run out are first put back into the queue, or failed after `ATTEMPTS`. A job
        begins only when nobody else holds any of its devices."""

    def beat(self, owner: str, job_id: int, *, ttl_s: float) -> Beat:
        """Renew the lease."""

    def set_progress(self, job_id: int, progress: Mapping[str, Any]) -> None: ...

    def set_study(self, job_id: int, study_id: int) -> None: ...

    def end(
        self,
        job_id: int,
        owner: str,
        state: JobState,
        *,
        reason: str = "",
        exit_code: int | None = None,
    ) -> bool:
        """End it and give its devices back; False if it is no longer ``owner``'s. With
        `JobState.QUEUED` it is put back, for someone else or for later, and the attempt not
        counted."""

    def cancel(self, job_id: int) -> Job:
        """A queued one ends at once; a running one is asked to."""

    def leases(self) -> Mapping[str, str]:
        """By device: who holds it now."""


class ScheduleStore(Protocol):
    def add(self, schedule: Schedule) -> int:
        """``schedule.id`` is ignored. InputRefused if there is one of that name."""

    def schedule(self, name: str) -> Schedule:
        """InputRefused, with near names, if there is none."""

    def by_id(self, schedule_id: int) -> Schedule:
        """NotFound if it was removed, though there be another of its name."""

    def schedules(self) -> Sequence[Schedule]:
        """By name."""

    def set_state(self, name: str, state: ScheduleState) -> None: ...

    def remove(self, name: str) -> None:
        """Its runs stay, for the history."""

    def due(self, schedule_id: int, scheduled_for: float) -> int | None:
        """Record a run that is due, as queued; None if one due at that moment is there already."""

    def run(self, run_id: int) -> NightRun: ...

    def runs(self, *, schedule: str | None = None, limit: int = 100) -> Sequence[NightRun]:
        """Newest first."""

    def latest(self) -> Mapping[str, tuple[NightRun, int]]:
        """By schedule: its latest run, and how many it has had."""

    def runs_of(self, studies: Collection[int]) -> Sequence[NightRun]:
        """Those that ran these studies, newest first."""

    def update_run(  # noqa: PLR0913 - what there is to be known of a run; None leaves it as it is
        self,
        run_id: int,
        *,
        state: RunState | None = None,
        outcome: Outcome | None = None,
        job_id: int | None = None,
        study_id: int | None = None,
        promotion_id: int | None = None,
        reason: str | None = None,
        summary: Mapping[str, Any] | None = None,
    ) -> None:
        """Sets ``started_at`` when it begins to run, ``ended_at`` when it has ended."""


class PromotionStore(Protocol):
    def propose(self, promotion: Promotion, *, step: Step | None = None) -> int:
        """Store it in its state; an older proposal for the same model and target is superseded.
        ``step`` is noted with it, both or neither."""

    def promotion(self, promotion_id: int) -> Promotion: ...

    def promotions(
        self,
        *,
        model: str | None = None,
        states: Sequence[PromotionState] = (),
        limit: int = 100,
    ) -> Sequence[Promotion]:
        """Newest first."""

    def advance(  # noqa: PLR0913 - None leaves it as it is
        self,
        promotion_id: int,
        *,
        expected: Sequence[PromotionState],
        state: PromotionState,
        by: str | None = None,
        reason: str | None = None,
        kept: str | None = None,
        detail: Mapping[str, Any] | None = None,
        step: Step | None = None,
    ) -> Promotion:
        """Change its state if it is one of the ``expected``, else InputRefused: two people cannot
        approve what one has rejected. One that is done supersedes the model's and target's last;
        where one is rolled back, the one that it had superseded is done again; the audit trail
        says so. ``step`` is noted with the change. All of it or nothing."""

    def champion(self, model: str, target: Target | None = None) -> Promotion | None:
        """The latest that is in service."""

    def models(self) -> Sequence[str]:
        """Those that were ever proposed, by name."""

    def alone(self, target: Target) -> AbstractContextManager[None]:
        """Busy while another process, on whatever machine that shares the database, has a target
        that meets it. It ends with its process."""

    def note(  # noqa: PLR0913 - who did what to what, and why
        self,
        who: str,
        action: str,
        subject: str,
        *,
        why: str = "",
        diff: str = "",
        detail: Mapping[str, Any] | None = None,
    ) -> None:
        """Add to the audit trail, which only grows."""

    def audit(
        self, *, subject: str | None = None, subjects: Collection[str] = (), limit: int = 200
    ) -> Sequence[AuditEntry]:
        """Newest first; of one subject, or of several, where they are named."""


class TokenStore(Protocol):
    def add(self, name: str, role: Role, digest: str) -> int:
        """InputRefused if a token of that name is valid."""

    def tokens(self) -> Sequence[Token]:
        """Those that are valid, and those that were revoked."""

    def valid(self) -> Sequence[Token]: ...

    def used(self, token_id: int) -> None: ...

    def revoke(self, name: str) -> None: ...


class NoticeStore(Protocol):
    def add(  # noqa: PLR0913 - what is told, and where to
        self,
        event: Event,
        title: str,
        text: str,
        payload: Mapping[str, Any],
        channel: str,
        *,
        unsent: str = "",
    ) -> int:
        """To be sent; as FAILED where ``unsent`` says why it never will be."""

    def waiting(self) -> Sequence[Notice]:
        """Oldest first."""

    def tried(self, notice_id: int, *, error: str | None, give_up: bool = False) -> None:
        """One more attempt; sent where there is no error."""

    def notices(self, *, limit: int = 100) -> Sequence[Notice]:
        """Newest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Counts over all that is stored, for monitoring. ``jobs`` by kind and state, ``job_seconds``
    the seconds that those took that have ended; ``runs`` by schedule and outcome, or state where
    they have none; ``notices`` by event and state; ``oldest_queued_at`` of the jobs that wait,
    ``last_success`` by schedule: when a run last ended well. Times are UTC seconds since the
    epoch."""

    jobs: Mapping[tuple[JobKind, JobState], int] = field(default_factory=dict)
    job_seconds: Mapping[tuple[JobKind, JobState], float] = field(default_factory=dict)
    runs: Mapping[tuple[str, str], int] = field(default_factory=dict)
    notices: Mapping[tuple[Event, NoticeState], int] = field(default_factory=dict)
    leases: Mapping[str, str] = field(default_factory=dict)
    oldest_queued_at: float | None = None
    last_success: Mapping[str, float] = field(default_factory=dict)


# ----------------------------------------------------------------------------------- promotion
@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """Files ready to be put into service: ``repository`` holds the models ``names`` as they are to
    stand in the target's repository (each with config.pbtxt and versions), from an export."""

    repository: Path
    names: tuple[str, ...]


class Deployment(Protocol):
    """Puts a release into service at one target."""

    def preflight(self, release: Release) -> str:
        """InputRefused if it cannot be done; else the unified diff of the configurations."""

    def before(self, release: Release) -> Mapping[str, Any]:
        """What `restore` has to be told besides where files are kept, as plain data: how a server
        was found, of which nothing is on disk."""

    def apply(self, release: Release, *, label: str) -> str:
        """Put it into service; returns where what it replaced is kept. Where it raises, `restore`
        by the label puts back what was there."""

    def verify(self, release: Release) -> None:
        """ServerFailed or ExportFailed unless what is in service is the release."""

    def undoing(self, kept: str, before: Mapping[str, Any]) -> str:
        """The unified diff that `restore` would make of the configurations; empty where it would
        change nothing, or has done so. ExportFailed or ServerFailed if that cannot be told."""

    def restore(self, kept: str, before: Mapping[str, Any]) -> None:
        """Put back what `apply` kept, by where it said or by the label: by the label also where
        nothing was applied. Safe to call twice. ServerFailed where files are put back, and a server
        does not take them."""

    def recover(self) -> None:
        """Finish or undo what a killed process left half done."""


# ------------------------------------------------------------------------------------- notices
class Channel(Protocol):
    """Takes notices to someone."""

    def deliver(self, notice: Notice) -> None:
        """Returns when the other side has taken it. DeliveryFailed, whose words hold no address
        and no secret, if it has not; DeliveryRefused if it never will."""


# --------------------------------------------------------------------------------------- desks
@dataclass(frozen=True, slots=True, kw_only=True)
class TrialLine:
    """A trial as a list has it, judged: all that is needed of it where there are ten thousand.

    ``why`` gives the reasons of its standing. ``values`` holds what is known of `METRICS`, finite,
    ``intervals`` their 95% intervals where they have one; of a trial that was not judged they are
    the last measurement's. ``violation`` is its worst relative violation of the SLA (None: not
    judged), ``saturation_bound`` why its saturation is only a lower bound (empty where it is not),
    ``emulated`` whether its utilization is of an emulated accelerator. Times are UTC seconds.
    """

    number: int
    candidate: Candidate
    standing: Standing
    why: str = ""
    values: Mapping[str, float] = field(default_factory=dict)
    intervals: Mapping[str, Interval] = field(default_factory=dict)
    violation: float | None = None
    saturation_bound: str = ""
    emulated: bool = False
    started_at: float = 0.0
    ended_at: float | None = None

    def metric(self, name: str) -> float | None:
        return self.values.get(name)

    def interval(self, name: str) -> Interval | None:
        return self.intervals.get(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyDetail:
    """A stored study for showing. ``lines`` are its trials judged, in the order of their numbers.
    ``trials`` are read when they are first looked at, without their raw samples, histograms and
    series: ten thousand take seconds. ``version`` changes with everything that is stored of the
    study: what has the same version is the same."""

    record: StudyRecord
    study: Study
    lines: Sequence[TrialLine]
    trials: Sequence[Trial]
    decision: DecisionRecord | None
    comparisons: Sequence[Comparison]
    variants: Sequence[VariantRecord]
    job: Job | None
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyOutline:
    """What is known of a study apart from its trials; ``version`` as of `StudyDetail`."""

    record: StudyRecord
    study: Study
    decision: DecisionRecord | None
    comparisons: Sequence[Comparison]
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StudySummary:
    """A line of the list of studies. ``best`` is the best trial so far, or the pick, or where none
    meets the SLA the one that comes nearest (``best_meets`` False); ``best_metrics`` are its
    figures by the metrics' names."""

    record: StudyRecord
    model: str
    sla: str
    planned: int | None
    best: int | None
    best_metrics: Mapping[str, float | None]
    job: Job | None
    best_meets: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigTexts:
    """``config`` is a trial's config.pbtxt by model (a pipeline has several), ``in_service`` that
    which the study found, ``diff`` the unified diff from one to the other."""

    config: Mapping[str, str]
    in_service: Mapping[str, str]
    diff: str


class StudyDesk(Protocol):
    def studies(self, *, limit: int = 200) -> Sequence[StudySummary]:
        """Newest first."""

    def study(self, reference: str) -> StudyDetail:
        """By id or name; InputRefused if there is none."""

    def outline(self, reference: str) -> StudyOutline:
        """As `study`, without reading any trial: for a page of one or two of them."""

    def version(self, study_id: int) -> str:
        """What `StudyDetail.version` would be, without reading the study."""

    def trial(self, study_id: int, number: int, *, samples: bool = False) -> Trial: ...

    def config(self, study_id: int, number: int) -> ConfigTexts:
        """InputRefused if the model is not there any more, or has changed."""

    def repository_zip(self, study_id: int, number: int) -> Iterator[bytes]:
        """The exported repository of a trial as a ZIP archive, in pieces."""

    def report(self, study_id: int) -> str:
        """The study's HTML report."""

    def submit(self, definition: Mapping[str, Any], *, by: str) -> Job:
        """Queue a study by its whole definition (see `Checks.study`)."""


class JobDesk(Protocol):
    def jobs(self, *, states: Sequence[JobState] = (), limit: int = 100) -> Sequence[Job]: ...

    def job(self, job_id: int) -> Job: ...

    def cancel(self, job_id: int, *, by: str) -> Job: ...

    def leases(self) -> Mapping[str, str]: ...

    def log(self, job_id: int) -> str | None:
        """The last lines that its process wrote, secrets masked; None where there are none here: it
        was not begun, another machine has done it, or they were removed. For operators: what a
        model of the user's prints is nobody else's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleView:
    """``next_at`` is when it is due next (None: paused, or of a time zone that is not known here),
    ``last`` its latest run."""

    schedule: Schedule
    next_at: float | None
    last: NightRun | None


class ScheduleDesk(Protocol):
    def schedules(self) -> Sequence[ScheduleView]: ...

    def schedule(self, name: str) -> ScheduleView: ...

    def add(self, schedule: Schedule, *, by: str) -> ScheduleView:
        """InputRefused for a cron expression, a zone or a study that cannot be."""

    def set_state(self, name: str, state: ScheduleState, *, by: str) -> ScheduleView: ...

    def remove(self, name: str, *, by: str) -> None: ...

    def run_now(self, name: str, *, by: str) -> Job:
        """Queue a run that is due now."""

    def runs(self, name: str | None = None, *, limit: int = 100) -> Sequence[NightRun]: ...

    def run(self, run_id: int) -> NightRun: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelHistory:
    """``champions``: promotions that have been in service, newest first; ``nights``: runs of the
    model's schedules, newest first; ``audit``: what was done about it."""

    model: str
    champions: Sequence[Promotion]
    nights: Sequence[NightRun]
    audit: Sequence[AuditEntry]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelLine:
    """A line of the list of models. ``champion`` is what is in service of it, ``last`` the latest
    run of its schedules, of so many ``nights``."""

    model: str
    champion: Promotion | None
    last: NightRun | None
    nights: int


class PromotionDesk(Protocol):
    def promotions(
        self, *, states: Sequence[PromotionState] = (), limit: int = 100
    ) -> Sequence[Promotion]: ...

    def promotion(self, promotion_id: int) -> Promotion: ...

    def propose(
        self, study: str, *, trial: int | None, target: Target, why: str, by: str
    ) -> Promotion:
        """Propose a study's pick, or the trial, for a target."""

    def approve(self, promotion_id: int, *, by: str) -> Job:
        """Queue it to be put into service."""

    def reject(self, promotion_id: int, *, why: str, by: str) -> Promotion: ...

    def roll_back(self, model: str, *, why: str, by: str) -> Job:
        """Queue the model's champion to be undone. InputRefused if nothing was promoted."""

    def models(self) -> Sequence[str]:
        """Those that have schedules or promotions."""

    def lines(self) -> Sequence[ModelLine]:
        """All of them, by name, without reading their histories."""

    def history(self, model: str) -> ModelHistory: ...

    def audit(self, *, limit: int = 200) -> Sequence[AuditEntry]: ...


class AccessDesk(Protocol):
    def required(self) -> bool:
        """Whether a token is needed at all: it is not on the loopback interface while there is
        none."""

    def identify(self, secret: str) -> Identity | None:
        """Whose token this is, compared in constant time; None if nobody's."""

    def holder(self, token: str) -> Identity | None:
        """Who has shown the token that an `Identity.token` tells before; None if it was revoked
        since, or is another service's."""


class Checks(Protocol):
    """What a request may name; commands, whose users have an account here, may name more."""

    def study(self, definition: Mapping[str, Any]) -> Mapping[str, Any]:
        """The whole definition of a study that is given in a study file's words, its paths
        absolute. InputRefused for one that cannot be, that names launch binaries, or paths outside
        of the service's root."""

    def target(self, target: Target) -> Target:
        """InputRefused unless it lies below the root, and its server is one that may be named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Desks:
    """All that pages, API and commands may ask. ``problems`` names what keeps the service from
    working (empty: ready), without details: anyone may ask for it."""

    studies: StudyDesk
    jobs: JobDesk
    schedules: ScheduleDesk
    promotions: PromotionDesk
    access: AccessDesk
    checks: Checks
    notices: Callable[[], Sequence[Notice]]
    problems: Callable[[], Sequence[str]]
    figures: Callable[[], Figures] = Figures
