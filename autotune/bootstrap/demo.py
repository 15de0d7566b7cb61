"""The bundled study, at a rate that makes it a question on this machine."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from autotune.adapters.triton.export import refuse_unwritable
from autotune.bootstrap.bench import Surroundings, alone, fresh_folder, prepare_model, set_up
from autotune.bootstrap.session import configuration_in_service
from autotune.bootstrap.stored import open_store
from autotune.core.records import StudyState
from autotune.core.study import Study
from autotune.ports import ProgressListener, TrialStore
from autotune.settings import Settings
from autotune.studyfile import read_definition
from autotune.tuner.in_service import saturation_of

BEYOND = 1.15
"""The rate offered, over what the configuration in service was seen to take: it cannot hold that,
and another that uses two cores can."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoRate:
    """``taken_qps``: what the configuration in service was seen to take, in requests per second."""

    taken_qps: float
    target_qps: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Demo:
    """``rate``: None where it is the one that an interrupted run began with."""

    study: Study
    rate: DemoRate | None


def demo(study: Study, *, db: str, out: Path, resume: bool, listen: ProgressListener) -> Demo:
    """The bundled study with its rate set for this machine, by a burst of some seconds on the
    configuration in service. A run that is resumed goes on at its own rate."""
    refuse_unwritable(out, study.name)
    with open_store(db, create=True) as store:
        before = _interrupted(study, store) if resume else None
        if before is not None:
            return Demo(study=before, rate=None)
        taken_qps = _taken_qps(study, store, listen)
    target_qps = float(f"{BEYOND * taken_qps / study.workload.headroom:.2g}")
    return Demo(
        study=at_rate(study, target_qps),
        rate=DemoRate(taken_qps=taken_qps, target_qps=target_qps),
    )


def at_rate(study: Study, target_qps: float) -> Study:
    workload = {**study.definition["workload"], "target_qps": target_qps}
    return read_definition({**study.definition, "workload": workload})


def _interrupted(study: Study, store: TrialStore) -> Study | None:
    """As its latest run asked it, if that has not come to an answer."""
    runs = [record for record in store.studies() if record.name == study.name]
    if not runs or runs[0].state is StudyState.DONE:
        return None
    return at_rate(study, runs[0].definition["workload"]["target_qps"])


def _taken_qps(study: Study, store: TrialStore, listen: ProgressListener) -> float:
    settings = Settings.from_environment()
    settings.refuse_unusable()
    with ExitStack() as stack:
        stack.enter_context(alone())
        work = fresh_folder(settings.work_dir / f"{study.name}-rate")
        at = Surroundings(settings=settings, stack=stack, store=store, work=work, listen=listen)
        model = prepare_model(study, at, None)
        bench = set_up(study, model, at)
        at.say("looking how much this machine takes")
        return saturation_of(
            bench.server,
            bench.load,
            configuration_in_service(study, model),
            study.workload,
            bench.samples_for,
            tell=at.say,
        )
