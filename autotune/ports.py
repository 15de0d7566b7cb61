"""What the use cases need from the outside, as Protocols.

Adapters implement these; `autotune.bootstrap` chooses which. A port raises only errors of
`autotune.core.errors`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from autotune.core.comparison import Comparison
from autotune.core.measurement import (
    Ended,
    LoadResult,
    Measurement,
    ServerWindow,
    TelemetryWindow,
)
from autotune.core.model_interface import Endpoint, ModelInterface, Sample
from autotune.core.records import DecisionRecord, StudyRecord, StudyState
from autotune.core.trial import Trial, TrialState
from autotune.core.variants import VariantRecord
from autotune.core.workload import Arrival
from search_spaces.candidate import Candidate


# ------------------------------------------------------------------------------------- search
@dataclass(frozen=True, slots=True, kw_only=True)
class TrialOutcome:
    """What a search is told. ``values``: one per objective, in the study's order, None where the
    trial has none (it failed, or the metric is unknown). ``violations``: one per SLA limit plus
    one for the achieved rate, ≤ 0 where kept, > 0 by how much it is broken, relative to the
    limit; None for a trial that was not measured. ``infeasible``: it cannot be had on this machine,
    which has too little memory for it."""

    state: TrialState
    values: tuple[float | None, ...]
    violations: tuple[float, ...] | None
    infeasible: bool = False


class Search(Protocol):
    """Suggests candidates. The first one asked for is the configuration found in service."""

    def ask(self, pending: Sequence[Candidate] = ()) -> Candidate | None:
        """The next candidate that has not been told yet and is none of the ``pending``, which are
        being measured; None when there is no other."""

    def tell(self, candidate: Candidate, outcome: TrialOutcome) -> None:
        """Learn a trial's outcome; also called with the stored trials when a study is resumed."""

    def recall(
        self, known: Sequence[tuple[Candidate, TrialOutcome]], first: Sequence[Candidate]
    ) -> None:
        """Take what earlier studies measured for prior knowledge, before anything is asked: none of
        it is a trial of this study, and each may be suggested again. Those of the ``first`` that
        the space holds are asked for in their order, right after the configuration in service."""


# ------------------------------------------------------------------------------------- server
@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """What applying a candidate took. ``instances``: model instances now loaded, in all;
    ``by_step``: of each step of a pipeline; ``reloaded``: the models that were loaded anew;
    ``largest_batches``: how many samples one execution takes at most, as loaded, of each step (of a
    model that is tuned alone, under the empty name)."""

    seconds: float
    restarted: bool
    instances: int
    by_step: Mapping[str, int] = field(default_factory=dict)
    reloaded: tuple[str, ...] = ()
    largest_batches: Mapping[str, int] = field(default_factory=dict)


class StatisticsMark(Protocol):
    """An opaque reading of the server's cumulative statistics."""


class Server(Protocol):
    """A Triton Inference Server that serves one model under changing configurations."""

    def start(self) -> None:
        """Bring the server up, without the model. ServerFailed with the log's last lines, and
        ServerCrashed where a signal ended it; so do the other calls where it has died."""

    def apply(self, candidate: Candidate) -> Applied:
        """Serve the model as the candidate says; restarts only if server flags differ or the
        server is gone. CandidateFailed if this candidate does not load, ServerCrashed where a
        process of the server dies of it."""

    def alive(self) -> bool:
        """Whether the server answers its liveness probe within a second or two."""

    def interface(self) -> ModelInterface:
        """The loaded model's inputs and outputs."""

    @property
    def endpoint(self) -> Endpoint: ...

    def pids(self) -> Sequence[int]:
        """Process ids of the server and all its children; empty for a remote one."""

    def mark(self) -> StatisticsMark:
        """Read the cumulative statistics now."""

    def between(self, start: StatisticsMark, end: StatisticsMark) -> ServerWindow:
        """The statistics of what happened between two marks."""

    def identity(self) -> Mapping[str, Any]:
        """Version, launch kind and model hash, for the environment record."""

    def log_tail(self, lines: int = 20) -> str:
        """The server's own last log lines; empty where there is no log to be had."""

    def close(self) -> None:
        """End every process that was started, by its id; leave a remote server as it was found.
        Safe to call twice."""


# --------------------------------------------------------------------------------------- load
@dataclass(frozen=True, slots=True, kw_only=True)
class OpenLoop:
    """Requests are sent at the times of a seeded arrival schedule, come what may."""

    qps: float
    arrival: Arrival
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Saturate:
    """``in_flight`` requests are kept open all the time: more than the server can take."""

    in_flight: int


LOOK_GROWTH = 1.5
"""Each look at a window comes when it is this many times as long as at the one before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPlan:
    """One load phase: a warm-up whose requests are not counted, then a window.

    The warm-up takes ``warmup_s``; with ``until_steady`` that is the longest it may take, and it
    ends as soon as a steady state is seen. The window takes ``measure_s``; with ``first_look_s``
    that is the longest it may take: after ``first_look_s``, and then each time it has grown by
    `LOOK_GROWTH`, the observer is asked whether it is enough. An open loop's arrivals within the
    window are the same, request by request, for the same mode, ``measure_s`` and ``first_look_s``,
    however long the warm-up was and whenever the window closed; it goes on sending for up to
    ``tail_s`` after the window, until the window's last request is answered, so that it does not
    end on an emptying server."""

    mode: OpenLoop | Saturate
    warmup_s: float
    measure_s: float
    timeout_s: float
    max_in_flight: int
    tail_s: float = 1.0
    until_steady: bool = False
    first_look_s: float | None = None


class WindowObserver(Protocol):
    """Told when the measured window opens and closes, within a few milliseconds."""

    def opened(self) -> None: ...

    def enough(self, so_far: LoadResult) -> Ended | None:
        """Why the window may close now; None to go on. ``so_far`` covers the window up to a moment
        before which every request has been answered, or has been open for longer than the largest
        limit of the SLA can matter (then it counts with its time-out)."""

    def closed(self) -> None: ...


class LoadDriver(Protocol):
    """Sends load from a process of its own."""

    def prepare(self, model: ModelInterface, samples: Sequence[Sample]) -> None:
        """Build the request bodies, once for all phases."""

    def run(self, endpoint: Endpoint, plan: LoadPlan, window: WindowObserver) -> LoadResult:
        """Run one phase. LoadFailed if the generator dies or overruns its deadline; a server that
        does not answer is a result, not an error."""

    def close(self) -> None:
        """End the load process. Safe to call twice."""


# ---------------------------------------------------------------------------------- telemetry
class Telemetry(Protocol):
    """Samples utilization and memory between `start` and `stop`."""

    def start(self, pids: Sequence[int], endpoint: Endpoint) -> None: ...

    def stop(self) -> TelemetryWindow: ...


# ----------------------------------------------------------------------------- outputs, export
class OutputCheck(Protocol):
    """Compares served outputs with the model run directly."""

    def check(
        self,
        endpoint: Endpoint,
        model: ModelInterface,
        samples: Sequence[Sample],
        candidate: Candidate,
    ) -> str:
        """Say in a line what was compared: of a candidate that names a variant, with that variant's
        own file. OutputsDiffer with both values if they differ."""


class AccuracyGate(Protocol):
    """Holds what is served against the source model, on the study's evaluation data."""

    def drop(self, endpoint: Endpoint, model: ModelInterface) -> float:
        """How much worse it answers (0: as well); see `autotune.core.accuracy`. CandidateFailed if
        it answers with errors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportFile:
    """A file to stand beside the model in an export, by its name."""

    name: str
    text: str


class Exporter(Protocol):
    """Writes a deployable model repository and serves it again, strictly."""

    def preflight(self, out: Path, study: str) -> None:
        """InputRefused if ``out`` cannot be written or holds another study's export."""

    def write(
        self, candidate: Candidate, out: Path, study: str, files: Sequence[ExportFile]
    ) -> Path:
        """Write the repository with the candidate's configuration, all or nothing, replacing an
        older export of the same study; returns the config.pbtxt's path."""

    def strict_server(self, out: Path) -> Server:
        """A server, not started, over the exported files alone, with auto-completion off; its
        `apply` takes only the exported candidate and loads it as it stands in the file."""


# -------------------------------------------------------------------------------------- store
class TrialStore(Protocol):
    """Remembers studies. Every call is one transaction: when it returns, it is on disk."""

    def create_study(self, name: str, definition: Mapping[str, Any], digest: str) -> int: ...

    def study(self, reference: str) -> StudyRecord:
        """By id ("12") or by name (its latest run that has trials, or its latest). InputRefused,
        with near names, if there is none."""

    def studies(self) -> Sequence[StudyRecord]:
        """Newest first."""

    def set_study_state(self, study_id: int, state: StudyState, reason: str = "") -> None: ...

    def set_environment(self, study_id: int, environment: Mapping[str, Any]) -> None: ...

    def begin_trial(self, study_id: int, number: int, candidate: Candidate) -> None:
        """Store a running trial; one of that number that is still running is replaced."""

    def add_measurement(self, study_id: int, number: int, measurement: Measurement) -> None: ...

    def end_trial(
        self, study_id: int, number: int, state: TrialState, reason: str = ""
    ) -> None: ...

    def trials(self, study_id: int, *, samples: bool = False) -> Sequence[Trial]:
        """In order of their numbers; raw request samples only where ``samples`` asks for them."""

    def doubt_measurements(self, study_id: int, reason: str) -> None:
        """Make every measurement that the study has so far invalid, for a reason that concerns
        them all; those that are invalid already keep their own."""

    def add_comparisons(self, study_id: int, comparisons: Sequence[Comparison]) -> None: ...

    def comparisons(self, study_id: int) -> Sequence[Comparison]:
        """In the order they were taken."""

    def set_variants(self, study_id: int, variants: Sequence[VariantRecord]) -> None:
        """What came of the variants that the study asked for, in place of what it had before."""

    def variants(self, study_id: int) -> Sequence[VariantRecord]:
        """In the order they were stored; empty for a study that asks for none."""

    def add_decision(self, decision: DecisionRecord) -> None: ...

    def decision(self, study_id: int) -> DecisionRecord | None:
        """The latest one."""

    def close(self) -> None: ...


# ---------------------------------------------------------------------------------- execution
class TrialSource(Protocol):
    """A study's search, as whoever measures its trials sees it. Called from one thread."""

    def next(self) -> Trial | None:
        """The next trial to measure, begun in the store; None where there is none now. Where
        nothing is being measured, there is none for good."""

    def so_far(self) -> Sequence[Trial]:
        """The trials that have ended, without raw samples."""

    def again(self, number: int, reason: str) -> None:
        """The trial is measured once more, and why."""

    def measured(self, number: int, measurement: Measurement) -> None:
        """Store what was measured."""

    def ended(
        self, number: int, state: TrialState, reason: str = "", took_s: float | None = None
    ) -> None:
        """Store how the trial ended, and tell the search. ``took_s``: the seconds that it took,
        where that is not all the time since it was begun."""


class Executor(Protocol):
    """Measures a study's trials: one after another, or several at once."""

    @property
    def side_by_side(self) -> int:
        """How many trials it measures at once, at most."""

    def run(self, source: TrialSource) -> None:
        """Measure until the source has no more and all that it gave has ended. AutotuneError where
        no more can be measured."""


# ----------------------------------------------------------------------------------- progress
@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """One step of a study, for showing.

    ``stage`` is a short word (prepare, check, trial, confirm, export, done). ``trial`` counts from
    1 of ``of``; ``candidate`` is the one being measured, ``finished`` the trial that has just
    ended. ``best`` is the trial that would be picked now; None while there is none.
    """

    stage: str
    text: str
    trial: int | None = None
    of: int | None = None
    best: Trial | None = None
    seconds_left: float | None = None
    candidate: Candidate | None = None
    finished: Trial | None = None


ProgressListener: TypeAlias = Callable[[Progress], None]


class Clock(Protocol):
    """Time, as an argument. ``monotonic`` in seconds; ``now`` in UTC seconds since the epoch."""

    def monotonic(self) -> float: ...

    def now(self) -> float: ...

    def sleep(self, seconds: float) -> None: ...
