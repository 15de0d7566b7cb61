"""A study, wired to real servers, load and storage, for the time of one run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from autotune.adapters import machine
from autotune.adapters.search import GridSearch, OptunaSearch, RandomSearch
from autotune.adapters.triton.export import refuse_unwritable, refuse_without_room
from autotune.adapters.triton.pipeline import present_model
from autotune.adapters.triton.repository import ServedModel
from autotune.adapters.triton.traps import model_traps
from autotune.bootstrap.bench import (
    Bench,
    Surroundings,
    alone,
    fresh_folder,
    prepare_model,
    set_up,
    with_variants,
)
from autotune.bootstrap.documents import documents
from autotune.bootstrap.early import refuse_anyway
from autotune.bootstrap.exports import exporter
from autotune.bootstrap.models import gpus_of
from autotune.bootstrap.recorded import environment_of, machine_here
from autotune.bootstrap.stored import (
    open_store,
    refuse_other_machine,
    unfinished,
)
from autotune.bootstrap.variants import Prepared
from autotune.core.errors import AutotuneError, InputRefused
from autotune.core.records import CUT, StudyRecord
from autotune.core.study import SearchKind, Study
from autotune.core.trial import Trial
from autotune.core.wording import by_kind
from autotune.ports import (
    ProgressListener,
    Search,
    TrialStore,
)
from autotune.settings import Settings
from autotune.tuner.answer import Answer
from autotune.tuner.conclude import Documents
from autotune.tuner.here import Here
from autotune.tuner.run import StudyRunner
from search_spaces.candidate import SERVER_PREFIX, Candidate
from storage.opening import sqlite_file

SHOWN_TRAPS = 2000
"""Candidates of a space that are looked through for traps."""
OPTUNA = "optuna.db"
COUNTED = 100_000
"""A larger space is not counted for the progress display."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Present:
    """What there is as a study begins: the configuration ``found``, and the ``environment`` (see
    `StudyRecord`), without what only a running server tells."""

    found: Candidate
    environment: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What earlier studies tell one: the ``champion``, to be trial 0 (None: the configuration
    found); and ``known``, ``first`` and ``stop_after``, as in `StudyRunner`. ``minutes`` are all
    that there are, should the budget have more."""

    champion: Candidate | None = None
    known: Sequence[Trial] = ()
    first: Sequence[Candidate] = ()
    stop_after: Callable[[Trial], str | None] = lambda _: None
    minutes: float | None = None


def _as_found(_: Present) -> Plan:
    return Plan()


@dataclass(frozen=True, slots=True)
class StudySession:
    """A study ready to run; what it started is ended when `open`'s context is left."""

    runner: StudyRunner
    warnings: tuple[str, ...]

    def run(self) -> Answer:
        return self.runner.run()

    @staticmethod
    @contextmanager
    def open(  # noqa: PLR0913 - what, where to and from, and who listens
        study: Study,
        *,
        db: str,
        out: Path,
        resume: bool,
        listen: ProgressListener,
        plan: Callable[[Present], Plan] = _as_found,
    ) -> Iterator[StudySession]:
        """Refuse first what can be refused, then prepare: output directory, database, model,
        space, server. ``plan`` is asked for what earlier studies tell, once it is known what there
        is."""
        settings = Settings.from_environment()
        settings.refuse_unusable()
        refuse_unwritable(out, study.name)
        refuse_inside(out, database=sqlite_file(db), work=settings.work_dir)
        with ExitStack() as stack:
            store = stack.enter_context(open_store(db, create=True))
            _alone_on_the_machine(stack, study)
            before = unfinished(store, study) if resume else None
            if before is not None:
                refuse_other_machine(before, machine_here())
            work = fresh_folder(settings.work_dir / study.name)
            at = Surroundings(settings=settings, stack=stack, store=store, work=work, listen=listen)
            yield _assemble(study, at, out, before, plan)


def _alone_on_the_machine(stack: ExitStack, study: Study) -> None:
    try:
        stack.enter_context(alone())
    except AutotuneError:
        refuse_anyway(study)  # rather than have it waited for
        raise


def refuse_inside(out: Path, **ours: Path | None) -> None:
    """An export replaces all of its directory: nothing that the run needs may lie in it."""
    for what, path in ours.items():
        if path is not None and path.resolve().is_relative_to(out.resolve()):
            raise InputRefused(
                f"the output directory {out} would hold autotune's own {what}, and an export"
                " replaces all of it",
                value=str(path),
                next_step="give another --out, or another --db or AUTOTUNE_WORK",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembly:
    """What a study is carried out with on this machine, nothing of it started: the ``study`` with
    the variants that may be measured, its ``model``, who measures, where; the configuration
    ``found``, what the space may be bounded by (``cores``), and what to be wary of."""

    study: Study
    model: ServedModel
    prepared: Prepared
    bench: Bench
    at: Surroundings
    found: Candidate
    cores: int
    warnings: tuple[str, ...]
    environment: Callable[[], Mapping[str, Any]]

    @classmethod
    def of(cls, study: Study, at: Surroundings, out: Path, before: StudyRecord | None) -> Assembly:
        given = prepare_model(study, at, before)
        refuse_without_room(given, out)
        prepared = with_variants(study, given, at, before)
        study, model = prepared.study, prepared.model
        cores = machine.cores()
        found = configuration_in_service(study, model)
        warnings = _warnings(study, model, cores)
        bench = set_up(study, model, at)
        return cls(
            study=study,
            model=model,
            prepared=prepared,
            bench=bench,
            at=at,
            found=found,
            cores=cores,
            warnings=warnings,
            environment=environment_of(study, model, bench.servers),
        )

    def here(self, study_id: int, out: Path, *, baseline: Candidate) -> Here:
        """``baseline`` becomes trial 0."""
        study, model, store = self.study, self.model, self.at.store
        return Here(
            study=study,
            study_id=study_id,
            store=store,
            server=self.bench.server,
            load=self.bench.load,
            telemetry=self.bench.telemetry,
            check=self.bench.check,
            exporter=exporter(study, model, self.bench.servers, self.at.work),
            documents=Documents(
                write=lambda record, trials, decided: documents(
                    study, model, record, trials, decided, variants=store.variants(record.id)
                )
            ),
            samples_for=self.bench.samples_for,
            clock=machine.SystemClock(),
            baseline=baseline,
            found=other_than(baseline, self.found),
            out=out,
            work=self.at.work,
            gate=self.prepared.gate,
        )


def other_than(baseline: Candidate, found: Candidate) -> Candidate | None:
    return None if baseline == found else found


def _assemble(
    study: Study,
    at: Surroundings,
    out: Path,
    before: StudyRecord | None,
    plan: Callable[[Present], Plan],
) -> StudySession:
    made = Assembly.of(study, at, out, before)
    planned = plan(
        Present(
            found=made.found,
            environment={**made.environment(), "model_digest": made.model.digest},
        )
    )
    study, environment = _within(made.study, planned.minutes, made.environment)
    made = replace(made, study=study)
    baseline = planned.champion or made.found
    search = search_of(study, baseline, made.cores, at.work / OPTUNA)
    holds = held(study, baseline, made.cores)
    study_id = id_of(study, at.store, before)
    runner = StudyRunner(
        study=study,
        study_id=study_id,
        store=at.store,
        search=search,
        venue=made.here(study_id, out, baseline=baseline),
        environment=environment,
        clock=machine.SystemClock(),
        listen=at.listen,
        search_log=at.work / OPTUNA,
        planned=to_try(study, holds),
        holds=holds,
        variants=made.prepared.variants,
        warnings=made.warnings,
        found=other_than(baseline, made.found),
        known=planned.known,
        first=planned.first,
        stop_after=planned.stop_after,
    )
    return StudySession(runner=runner, warnings=made.warnings)


def _within(
    study: Study, minutes: float | None, environment: Callable[[], Mapping[str, Any]]
) -> tuple[Study, Callable[[], Mapping[str, Any]]]:
    """The study with no more than so many minutes, which is recorded where it has more."""
    if minutes is None or minutes >= study.budget.minutes:
        return study, environment
    cut = replace(study, budget=replace(study.budget, minutes=minutes))
    return cut, lambda: {**environment(), CUT: round(minutes, 1)}


def id_of(study: Study, store: TrialStore, before: StudyRecord | None) -> int:
    """Asked for last, so that what is refused leaves no study behind that never ran."""
    if before is not None:
        return before.id
    return store.create_study(study.name, study.definition, study.digest)


def _warnings(study: Study, model: ServedModel, cores: int) -> tuple[str, ...]:
    """Traps of the candidates, what the space's rules take out, and who else is at work here."""
    reasons: Counter[str] = Counter()
    allowed: list[Candidate] = []
    for candidate in islice(study.space.candidates(), SHOWN_TRAPS):
        reason = study.space.pruned(candidate, cores)
        if reason is None:
            allowed.append(candidate)
        else:
            reasons[reason] += 1
    if not allowed:
        raise InputRefused(
            f"the space {study.space.name} holds no candidate that may be measured",
            value="; ".join(f"{count} ruled out: {why}" for why, count in reasons.items()),
            next_step="mend its values or its prune rules",
        )
    ruled_out = [
        f"{count} of {len(allowed) + reasons.total()} candidates are ruled out unmeasured: {why}"
        for why, count in by_kind(reasons).items()
    ]
    traps = model_traps(model, allowed, cores=cores)
    return (*_others_at_work(), *ruled_out, *traps)


def _others_at_work() -> tuple[str, ...]:
    busy = machine.busy_percent()
    if busy <= machine.BUSY_PERCENT:
        return ()
    return (
        f"{busy:.0f}% of this machine's processor was taken by other work when the study began, and"
        " is in every number if that went on: stop it before a study, or do not trust small"
        " differences",
    )


def configuration_in_service(study: Study, model: ServedModel) -> Candidate:
    """The present configuration in the space's words: a candidate of the space where it amounts
    to one, else as it is found."""
    found = present_model(model, study.space.targets, gpus=gpus_of(study.server))
    flags = {
        SERVER_PREFIX + name: value
        for name, value in study.server.flags.items()
        if SERVER_PREFIX + name in study.space.targets
    }
    found = found.replacing(**flags)
    return study.space.project(found) or found


def search_of(study: Study, baseline: Candidate, cores: int, mirror: Path) -> Search:
    if study.search is SearchKind.OPTUNA:
        return OptunaSearch(
            study.space,
            baseline=baseline,
            objectives=study.objectives,
            seed=study.seed,
            cores=cores,
            storage_path=mirror,
            study_name=study.name,
            constraints=[*(limit.metric for limit in study.sla.limits), "achieved"],
        )
    plain = GridSearch if study.search is SearchKind.GRID else RandomSearch
    return plain(study.space, baseline=baseline, seed=study.seed, cores=cores)


def held(study: Study, baseline: Candidate, cores: int) -> int | None:
    """How many candidates the search can come to, the configuration in service among them; None
    where they are too many to count. A range holds more than the points that its grid walks."""
    space = study.space
    walked = list(islice(space.candidates(), COUNTED + 1))
    if len(walked) > COUNTED:
        return None
    if study.search is not SearchKind.GRID and space.size() != len(walked):
        return None
    allowed = sum(space.pruned(candidate, cores) is None for candidate in walked)
    return allowed + (0 if space.contains(baseline) else 1)


def to_try(study: Study, holds: int | None) -> int:
    """How many candidates there are to try: the budget, or all that there are."""
    return study.budget.trials if holds is None else min(study.budget.trials, holds)
