"""Stored studies as pages, API and commands see them."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Generic, TypeVar, overload

from autotune.bootstrap import study_files
from autotune.bootstrap.stored import as_it_stands
from autotune.bootstrap.study_lines import Lines, decided_lines, line_of, tells_all
from autotune.core.jobs import Job
from autotune.core.leading import leading
from autotune.core.records import PLANNED, StudyRecord, StudyState
from autotune.core.sla import ACCURACY, Limit
from autotune.core.standing import Standing
from autotune.core.study import Study
from autotune.core.trial import Trial
from autotune.core.wording import share_words
from autotune.ports import TrialStore
from autotune.service_ports import (
    ConfigTexts,
    JobStore,
    StudyDetail,
    StudyOutline,
    StudySummary,
    TrialLine,
)
from autotune.settings import Settings
from autotune.studyfile import read_definition
from storage.summaries import SqlStudyReader

T = TypeVar("T")

KEPT_STUDIES, KEPT_SUMMARIES, KEPT_CONFIGS = 8, 1000, 128
JOBS_LOOKED_AT = 500


class Studies:
    """Implements `autotune.service_ports.StudyDesk`. What was read of a study is kept until its
    version changes. ``submit`` is how a study from outside is queued (see `bootstrap.guard`)."""

    def __init__(
        self,
        *,
        store: TrialStore,
        reader: SqlStudyReader,
        jobs: JobStore,
        settings: Settings,
        submit: Callable[[Mapping[str, Any], str], Job],
    ) -> None:
        self._store = store
        self._reader = reader
        self._jobs = jobs
        self._settings = settings
        self._submit = submit
        self._details: Kept[StudyDetail] = Kept(KEPT_STUDIES)
        self._outlines: Kept[StudyOutline] = Kept(KEPT_SUMMARIES)
        self._lines: Kept[Lines] = Kept(KEPT_STUDIES)
        self._summaries: Kept[StudySummary] = Kept(KEPT_SUMMARIES)
        self._configs: Kept[ConfigTexts] = Kept(KEPT_CONFIGS)

    # ------------------------------------------------------------------------------------- lists
    def studies(self, *, limit: int = 200) -> Sequence[StudySummary]:
        jobs = self._jobs_by_study()
        found = (as_it_stands(record) for record in self._reader.records(limit))
        return [self._summary(record, jobs.get(record.id)) for record in found]

    def _summary(self, record: StudyRecord, job: Job | None) -> StudySummary:
        over = record.state is not StudyState.RUNNING
        key = (record.state, record.ended_at) if over else self._reader.version(record.id)
        made = self._summaries.get(record.id, key, lambda: self._summarized(record))
        return replace(made, record=record, job=job)

    def _summarized(self, record: StudyRecord) -> StudySummary:
        study = read_definition(record.definition)
        best = self._best(record, study)
        return StudySummary(
            record=record,
            model=study.model.name,
            sla=sla_words(study),
            planned=(record.environment or {}).get(PLANNED),
            best=None if best is None else best.number,
            best_metrics={} if best is None else dict(best.values),
            job=None,
            best_meets=best is not None and best.standing is Standing.MEETS,
        )

    def _best(self, record: StudyRecord, study: Study) -> TrialLine | None:
        """The pick of a study that is done, without reading the others; else the best so far."""
        if record.state is StudyState.DONE:
            pick = self._reader.picks([record.id]).get(record.id)
            if pick is not None:
                picked = self._reader.trials(record.id, [pick])
                return line_of(picked[0], study.sla) if picked else None
        known = self._lines_of(record, study)
        lines = known.current()
        number = leading(lines, study.pick, study.sla, known.noise())
        return next((line for line in lines if line.number == number), None)

    def _jobs_by_study(self) -> dict[int, Job]:
        """The latest of each study."""
        found = self._jobs.jobs(limit=JOBS_LOOKED_AT)
        return {job.study_id: job for job in reversed(found) if job.study_id is not None}

    # ----------------------------------------------------------------------------------- a study
    def study(self, reference: str) -> StudyDetail:
        record = as_it_stands(self._store.study(reference))
        version = self._version(record)
        made = self._details.get(record.id, version, lambda: self._read(record, version))
        return replace(made, record=record, job=self._jobs_by_study().get(record.id))

    def outline(self, reference: str) -> StudyOutline:
        record = as_it_stands(self._store.study(reference))
        version = self._version(record)
        made = self._outlines.get(record.id, version, lambda: self._outlined(record, version))
        return replace(made, record=record)

    def _outlined(self, record: StudyRecord, version: str) -> StudyOutline:
        decided = self._reader.decision(record.id)
        return StudyOutline(
            record=record,
            study=read_definition(record.definition),
            decision=None if decided is None else decided[0],
            comparisons=self._store.comparisons(record.id),
            version=version,
        )

    def version(self, study_id: int) -> str:
        return self._version(as_it_stands(self._store.study(str(study_id))))

    def _version(self, record: StudyRecord) -> str:
        """With its state: one whose process is gone is interrupted, and nothing was stored."""
        return f"{self._reader.version(record.id)}-{record.state}"

    def _read(self, record: StudyRecord, version: str) -> StudyDetail:
        study = read_definition(record.definition)
        decided = self._reader.decision(record.id)
        decision, judged = (None, None) if decided is None else decided
        return StudyDetail(
            record=record,
            study=study,
            lines=decided_lines(self._reader, record.id, study.sla, judged or ())
            if tells_all(record.state, judged)
            else self._lines_of(record, study).current(),
            trials=LazyTrials(lambda: self._reader.trials(record.id)),
            decision=decision,
            comparisons=self._store.comparisons(record.id),
            variants=self._store.variants(record.id),
            job=None,
            version=version,
        )

    def _lines_of(self, record: StudyRecord, study: Study) -> Lines:
        return self._lines.get(record.id, "", lambda: Lines(self._reader, record.id, study.sla))

    def trial(self, study_id: int, number: int, *, samples: bool = False) -> Trial:
        found = self._reader.whole_trial(study_id, number, samples=samples)
        if found is None:
            raise study_files.no_trial(study_id, number)
        return found

    # ------------------------------------------------------------------------------------- files
    def config(self, study_id: int, number: int) -> ConfigTexts:
        return self._configs.get((study_id, number), "", lambda: self._config(study_id, number))

    def _config(self, study_id: int, number: int) -> ConfigTexts:
        record = self._store.study(str(study_id))
        return study_files.config_texts(
            read_definition(record.definition),
            record,
            self.trial(study_id, number),
            variants=tuple(self._store.variants(study_id)),
            settings=self._settings,
        )

    def repository_zip(self, study_id: int, number: int) -> Iterator[bytes]:
        return study_files.repository_zip(self._store, study_id, number)

    def report(self, study_id: int) -> str:
        return study_files.report(self._store, study_id, self._settings)

    def submit(self, definition: Mapping[str, Any], *, by: str) -> Job:
        return self._submit(definition, by)


def sla_words(study: Study) -> str:
    """``p95 ≤ 80 ms, errors ≤ 0.1%``."""
    return ", ".join(_limit_words(limit) for limit in study.sla.limits)


def _limit_words(limit: Limit) -> str:
    if limit.metric.endswith("_ms"):
        return f"{limit.metric.removesuffix('_ms')} ≤ {limit.limit:g} ms"
    name = "accuracy drop" if limit.metric == ACCURACY else "errors"
    return f"{name} ≤ {share_words(limit.limit)}"


# ---------------------------------------------------------------------------------------- keeping
@dataclass(slots=True)
class _Slot(Generic[T]):
    version: object
    value: T


class Kept(Generic[T]):
    """The latest value of each of so many names, made again when its version is another. Threads
    that ask for the same one wait for the first to make it."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._slots: OrderedDict[Hashable, _Slot[T]] = OrderedDict()
        self._making: dict[Hashable, threading.Lock] = {}
        self._lock = threading.Lock()

    def get(self, name: Hashable, version: object, make: Callable[[], T]) -> T:
        with self._lock:
            making = self._making.setdefault(name, threading.Lock())
        with making:
            found = self._found(name, version)
            if found is None:
                found = _Slot(version, self._made(name, make))
                self._keep(name, found)
            return found.value

    def _made(self, name: Hashable, make: Callable[[], T]) -> T:
        """Nothing is left of a name that there is not: whoever asks may think of any number."""
        try:
            return make()
        except BaseException:
            with self._lock:
                if name not in self._slots:
                    self._making.pop(name, None)
            raise

    def _found(self, name: Hashable, version: object) -> _Slot[T] | None:
        with self._lock:
            slot = self._slots.get(name)
            if slot is None or slot.version != version:
                return None
            self._slots.move_to_end(name)
            return slot

    def _keep(self, name: Hashable, slot: _Slot[T]) -> None:
        with self._lock:
            self._slots[name] = slot
            self._slots.move_to_end(name)
            while len(self._slots) > self._most:
                gone, _ = self._slots.popitem(last=False)
                self._making.pop(gone, None)


class LazyTrials(Sequence[Trial]):
    """Trials that are read when they are first looked at."""

    def __init__(self, read: Callable[[], Sequence[Trial]]) -> None:
        self._read = read

    @cached_property
    def _trials(self) -> Sequence[Trial]:
        return self._read()

    def __len__(self) -> int:
        return len(self._trials)

    @overload
    def __getitem__(self, index: int) -> Trial: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Trial]: ...

    def __getitem__(self, index: int | slice) -> Trial | Sequence[Trial]:
        return self._trials[index]
