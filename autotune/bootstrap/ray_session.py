"""A study whose trials run on a Ray cluster, wired: this process is the driver, and measures
nothing itself. Imported only where Ray is asked for."""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from autotune.adapters import machine
from autotune.adapters.ray import cluster, errand, trials
from autotune.adapters.ray.cluster import Devices
from autotune.adapters.ray.relay import Offered
from autotune.adapters.triton.export import put_in_place, refuse_no_room, refuse_unwritable
from autotune.bootstrap.bench import exclusive, fresh_folder
from autotune.bootstrap.executors import OnRay
from autotune.bootstrap.ray_node import (
    DESK,
    OVERSEER,
    PLACE,
    STORE,
    Ended,
    Order,
    Surveyed,
    settled,
    surveyed,
)
from autotune.bootstrap.session import (
    OPTUNA,
    StudySession,
    held,
    id_of,
    refuse_inside,
    search_of,
    to_try,
)
from autotune.bootstrap.shipping import shipped
from autotune.bootstrap.stored import open_store, refuse_changed_model, unfinished
from autotune.core.errors import AutotuneError, Busy, InputRefused
from autotune.core.measurement import Purpose
from autotune.core.records import EXECUTOR, StudyRecord
from autotune.core.study import Launch, Study
from autotune.core.trial import Trial
from autotune.core.variants import VariantRecord
from autotune.ports import Progress, ProgressListener, TrialSource, TrialStore
from autotune.settings import Settings
from autotune.tuner.conclude import Settled
from autotune.tuner.recorder import Say
from autotune.tuner.run import StudyRunner
from autotune.tuner.venue import Overseer, Readied
from storage.opening import sqlite_file

_DRIVER = "\0triton-autotune.driver"


@dataclass(slots=True, kw_only=True)
class RayVenue:
    """Implements `Venue`: trials on all of the ``devices`` at once, the end of the study on one of
    them. ``readied`` is what the survey found."""

    order: Order
    devices: Devices
    store: TrialStore
    readied: Readied | AutotuneError
    work: Path
    _bridge: trials.Bridge | None = field(default=None, init=False)

    @property
    def side_by_side(self) -> int:
        return self.devices.many

    def prepare(self, say: Say) -> Readied:
        if isinstance(self.readied, AutotuneError):
            raise self.readied
        many, kind = self.devices.many, self.devices.kind
        how = "one trial at a time" if many == 1 else f"{many} trials side by side, each"
        say("prepare", f"{how} on {kind}")
        return self.readied

    def run(self, source: TrialSource) -> None:
        folder = self.work / "tune"
        folder.mkdir(parents=True, exist_ok=True)
        self._bridge = trials.Bridge(
            source, self._keep_variants, many=self.devices.many, there=self.devices.there
        )
        trials.run(self._bridge, self._placed(), self.devices, folder)

    def settle(self, overseer: Overseer) -> Settled:
        """On a device that measures as the others do, where one is to be had."""
        objects = {
            STORE: Offered(self.store, TrialStore),
            OVERSEER: Offered(overseer, Overseer),
            DESK: Offered(Desk(self.order.out), Desk),
        }
        bridge = self._bridge
        for warning in () if bridge is None else bridge.warnings:
            overseer.warn(warning)
        on = measured_on(self.store.trials(self.order.study_id))
        alike = set() if bridge is None else {host_of(place) for place in bridge.alike}
        if len(on) > 1 and not alike.issuperset(on):
            overseer.warn(_different_machines(on))
        if self.order.study.finals.candidates:
            overseer.say("finals", "making one device ready to compare the best")
        else:
            overseer.say("confirm", "making one device ready to confirm the pick")
        work = partial(settled, self._placed(), overseer.planned)
        unlike = () if bridge is None else tuple(bridge.idle.values())
        ended: Ended = errand.run(work, objects, self.devices, unlike=unlike)
        if ended.report is None:
            return ended.settled
        name, text = ended.report
        report = self.work / name
        report.write_text(text, encoding="utf-8")
        return replace(ended.settled, report=report)

    def close(self) -> None: ...

    def _placed(self) -> Order:
        """With what is stored now."""
        known = self.store.variants(self.order.study_id)
        return replace(self.order, variants=tuple(known))

    def _keep_variants(self, found: Sequence[VariantRecord]) -> None:
        """What a device's answers told of a variant is stored once."""
        told = {(each.target, each.digest): each.served_drop for each in found}
        stored = self.store.variants(self.order.study_id)
        merged = [
            each
            if each.served_drop is not None
            else replace(each, served_drop=told.get((each.target, each.digest)))
            for each in stored
        ]
        if merged != list(stored):
            self.store.set_variants(self.order.study_id, merged)


@dataclass(frozen=True, slots=True)
class Desk:
    """Where exports that a device sends are put."""

    out: Path

    def preflight(self, study: str) -> None:
        refuse_unwritable(self.out, study)

    def put(self, archive: bytes, study: str) -> None:
        def unpack(folder: Path) -> None:
            with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
                opened.extractall(folder, filter="data")

        put_in_place(unpack, self.out, study)


@contextmanager
def open_on_ray(  # noqa: PLR0913 - as `open_study`
    study: Study, on: OnRay, *, db: str, out: Path, resume: bool, listen: ProgressListener
) -> Iterator[StudySession]:
    """As `StudySession.open`, for a study on the cluster."""
    settings = Settings.from_environment()
    settings.refuse_unusable()
    _refuse_what_ray_decides(study)
    out = out.absolute()
    refuse_unwritable(out, study.name)
    database = sqlite_file(db)
    _refuse_inside_model(study, out)
    refuse_inside(out, database=database, work=settings.work_dir)
    shipment = shipped(study, kept=(out, settings.work_dir, *([database] if database else [])))
    with ExitStack() as stack:
        stack.enter_context(_alone(study.name, settings.work_dir))
        store = stack.enter_context(open_store(db, create=True))
        before = unfinished(store, study) if resume else None

        def say(stage: str, text: str) -> None:
            listen(Progress(stage=stage, text=text))

        say("prepare", f"connecting to the Ray cluster ({on.address})")
        found_at = stack.enter_context(cluster.connected(on.address))
        say("prepare", f"connected to the Ray cluster ({found_at})")
        work = fresh_folder(settings.work_dir / study.name)
        devices = cluster.devices(
            cpus=on.cpus,
            gpus=on.gpus,
            slots=on.slots,
            before=dict(before.environment or {}) if before is not None else None,
            say=partial(say, "prepare"),
        )
        order = Order(
            shipment=shipment,
            slot=devices.slot,
            kind=devices.kind,
            out=out,
            before=before,
            variants=() if before is None else tuple(store.variants(before.id)),
            alone=devices.there == 1,
        )
        say("prepare", f"a device of the cluster looks at {study.model.name}")
        objects = {OVERSEER: Offered(_Listening(say), _Listening)}
        found: Surveyed = errand.run(partial(surveyed, order), objects, devices)
        refuse_no_room(study.model.name, found.export_bytes, out)
        if before is not None:
            refuse_changed_model(before, found.digest)
        yield _session(
            replace(study, space=found.space), order, devices, found, store, work, listen
        )


@contextmanager
def _alone(study: str, work_dir: Path) -> Iterator[None]:
    """A second driver of a study would take the folder of the first away."""
    place = str((work_dir / study).absolute())
    busy = Busy(
        "a run of a study of this name is under way on this machine",
        value=study,
        next_step="wait until it has ended; another study needs another name, or an AUTOTUNE_WORK"
        " of its own",
    )
    with exclusive(f"{_DRIVER}.{hashlib.sha256(place.encode()).hexdigest()[:32]}", busy):
        yield


def measured_on(trials: Iterable[Trial]) -> Counter[str]:
    """How many trials of the search were measured on which host."""
    told = (
        {
            host_of(str(each.telemetry.notes[PLACE]))
            for each in trial.measurements
            if each.purpose is Purpose.TRIAL and PLACE in each.telemetry.notes
        }
        for trial in trials
    )
    return Counter(host for hosts in told for host in hosts)


def host_of(place: str) -> str:
    return place.partition(",")[0]


def _different_machines(on: Counter[str]) -> str:
    each = ", ".join(f"{many} on {host}" for host, many in sorted(on.items()))
    return (
        f"the search's trials were measured on different machines ({each}), which were not all held"
        " against one another: these are of one kind, and may differ all the same in what they"
        " measure. Which trials missed the SLA, and which came to the finals, rests on that"
    )


@dataclass(frozen=True, slots=True)
class _Listening:
    say: Callable[[str, str], None]


def _session(  # noqa: PLR0913, PLR0917 - the parts of one session
    study: Study,
    order: Order,
    devices: Devices,
    found: Surveyed,
    store: TrialStore,
    work: Path,
    listen: ProgressListener,
) -> StudySession:
    search = search_of(study, found.found, found.cores, work / OPTUNA)
    holds = held(study, found.found, found.cores)
    study_id = id_of(study, store, order.before)
    warnings = (*devices.left_alone, *found.warnings)
    placed = replace(
        order,
        study_id=study_id,
        before=_as_looked_at(order.before or store.study(str(study_id)), found),
        baseline=found.found,
        software=found.software,
    )
    runner = StudyRunner(
        study=study,
        study_id=study_id,
        store=store,
        search=search,
        venue=RayVenue(
            order=placed, devices=devices, store=store, readied=found.readied, work=work
        ),
        environment=lambda: _environment(found, devices),
        clock=machine.SystemClock(),
        listen=listen,
        search_log=work / OPTUNA,
        planned=to_try(study, holds),
        holds=holds,
        variants=found.variants,
        warnings=warnings,
    )
    return StudySession(runner=runner, warnings=warnings)


def _as_looked_at(record: StudyRecord, found: Surveyed) -> StudyRecord:
    """For the devices, which refuse another model than was looked at."""
    return replace(record, environment={"model_digest": found.digest})


def _environment(found: Surveyed, devices: Devices) -> Mapping[str, Any]:
    """The device's, but for the process, which is this one, by which it is known here whether the
    study still runs."""
    here = machine.describe()
    return {
        **found.environment,
        "model_digest": found.digest,
        "host": here["host"],
        "process": here["process"],
        EXECUTOR: {
            "ray": str(devices.slot),
            "side_by_side": devices.many,
            "kind": str(devices.kind),
            "measured_on": found.environment.get("host"),
        },
    }


def _refuse_inside_model(study: Study, out: Path) -> None:
    """A device could not tell: it has a copy."""
    repository = study.model.repository
    source = None if repository is None else repository / study.model.name
    if source is not None and out.resolve().is_relative_to(source.resolve()):
        raise InputRefused("the output path lies inside the model", value=str(out))


def _refuse_what_ray_decides(study: Study) -> None:
    if study.server.launch is Launch.REMOTE:
        raise InputRefused(
            "a remote server cannot be tuned on a Ray cluster: every trial needs a server of its"
            " own",
            place=("server", "launch"),
            next_step="use launch: embedded or binary, or --executor local",
        )
    if study.server.launch is Launch.DOCKER:
        raise InputRefused(
            "a container of Docker's has not the GPU and the cores that Ray gives a trial, but all"
            " that Docker hands it: side by side two would share them",
            place=("server", "launch"),
            next_step="use launch: embedded or binary (a node may itself run in Triton's image), or"
            " --executor local",
        )
    if study.server.devices:
        raise InputRefused(
            "server.devices is decided by Ray on a cluster, which gives each trial its own GPU",
            value=", ".join(study.server.devices),
            place=("server", "devices"),
            next_step="take it out, or use --executor local",
        )
    if study.server.ports is not None:
        raise InputRefused(
            "server.ports cannot be fixed on a Ray cluster: two trials may share a machine",
            place=("server", "ports"),
            next_step="take it out, or use --executor local",
        )
