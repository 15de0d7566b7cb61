"""A study on one device of a Ray cluster: the very stack that measures on a single machine.

What is here runs on the node. It knows the study by what was shipped, and the database not at all.
"""

from __future__ import annotations

import io
import os
import tarfile
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

from autotune.adapters import machine
from autotune.adapters.ray.relay import Distant, Relay
from autotune.adapters.ray.slots import Slot, Taken, taken
from autotune.adapters.ray.trials import Asked, Canary, Outcome
from autotune.adapters.scratch import scratch
from autotune.adapters.triton.export import export_bytes
from autotune.bootstrap.bench import Surroundings, alone
from autotune.bootstrap.session import Assembly
from autotune.bootstrap.shipping import Shipment
from autotune.core.errors import AutotuneError, InputRefused, OutputsDiffer, ServerFailed
from autotune.core.kinds import Kind
from autotune.core.measurement import Measurement, Purpose
from autotune.core.records import StudyRecord
from autotune.core.study import Study
from autotune.core.trial import Trial, TrialState
from autotune.core.validity import saturated
from autotune.core.variants import VariantRecord
from autotune.ports import Exporter, ExportFile, Progress, Server, TrialStore
from autotune.settings import Settings
from autotune.tuner.conclude import Settled
from autotune.tuner.finals import SATURATION
from autotune.tuner.here import Here
from autotune.tuner.measure import Measurer
from autotune.tuner.phases import canary
from autotune.tuner.recorder import NotBelieved, Recorder
from autotune.tuner.venue import Overseer, Readied
from search_spaces.candidate import Candidate
from search_spaces.space import Space

PLACE = "place"
"""The note of a measurement that tells where it was taken."""
STORE, OVERSEER, DESK = "store", "overseer", "desk"
"""What a device may call of the driver's."""
_MEASURING = ("locust", "tritonclient", "numpy")
_SERVERS = " of the server"


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What a device needs to carry out a study; implements `autotune.adapters.ray.trials.Order`.

    ``before`` is the study as it is stored (None: it has not begun), ``variants`` what is known of
    them, ``baseline`` trial 0 (None: the configuration found). ``out`` is the driver's.
    ``software`` is what served and measured where the study was looked at (None: nobody has).
    ``alone``: there is no other device that it would have to measure as.
    """

    shipment: Shipment
    slot: Slot
    kind: Kind
    out: Path
    study_id: int = 0
    before: StudyRecord | None = None
    variants: tuple[VariantRecord, ...] = ()
    baseline: Candidate | None = None
    software: Mapping[str, str] | None = None
    alone: bool = False

    @property
    def study(self) -> Study:
        """With its paths as the driver has them."""
        return self.shipment.study

    def open(self) -> DeviceBench:
        return DeviceBench(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Surveyed:
    """What a device found before the study began; ``readied`` is an error where the model as it is
    configured now cannot be served; an export takes about ``export_bytes``."""

    space: Space
    found: Candidate
    cores: int
    environment: Mapping[str, Any]
    digest: str
    variants: tuple[VariantRecord, ...]
    warnings: tuple[str, ...]
    readied: Readied | AutotuneError
    software: Mapping[str, str] | None
    export_bytes: int


# ------------------------------------------------------------------------------------- one device
@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A study's stack on a slot of this node."""

    assembly: Assembly
    here: Here
    mine: Taken


@contextmanager
def device(order: Order, store: TrialStore, listen: Any = lambda _: None) -> Iterator[Device]:
    """What it starts, and its files, end with it. InputRefused where the node is not what was
    looked at, or lacks what the study needs."""
    with ExitStack() as stack:
        mine = stack.enter_context(taken(order.slot))
        if mine.kind != order.kind:
            raise ServerFailed(
                "this device is not of the kind that the study measures on", value=str(mine.kind)
            )
        os.environ["AUTOTUNE_SLOT"] = mine.name
        settings = Settings.from_environment()
        settings.refuse_unusable()
        stack.enter_context(alone())
        work = stack.enter_context(scratch("ray-", settings.work_dir))
        _temporary(stack, work / "tmp")
        study = order.shipment.unpacked(work / "shipped")
        at = Surroundings(settings=settings, stack=stack, store=store, work=work, listen=listen)
        made = Assembly.of(study, at, work / "out", order.before)
        here = made.here(order.study_id, work / "out", baseline=order.baseline or made.found)
        yield Device(assembly=made, here=here, mine=mine)


def _temporary(stack: ExitStack, folder: Path) -> None:
    """What is temporary of this process, and of all that it starts, is this slot's own. (An
    emulated accelerator is a file there: each slot has one.)"""
    before = os.environ.get("TMPDIR")

    def put(path: str | None) -> None:
        if path is None:
            os.environ.pop("TMPDIR", None)
        else:
            os.environ["TMPDIR"] = path
        tempfile.tempdir = None  # looked up once, and kept

    folder.mkdir()
    put(str(folder))
    stack.callback(put, before)


def _noted(measurement: Measurement, mine: Taken) -> Measurement:
    telemetry = measurement.telemetry
    notes = {**telemetry.notes, PLACE: mine.place}
    return replace(measurement, telemetry=replace(telemetry, notes=notes))


def _make_ready(on: Device, here: Here, order: Order) -> None:
    readied = here.prepare(lambda _stage, _text: None)
    if order.software is not None:
        refuse_other_software(_software(on, readied), order.software)


def _software(on: Device, readied: Readied) -> Mapping[str, str]:
    environment = on.assembly.environment()
    measuring = {name: environment["versions"][name] for name in _MEASURING}
    serving = {f"{name}{_SERVERS}": v for name, v in environment.get("packages", {}).items()}
    return {"Triton": str(readied.identity["triton"]), **measuring, **serving}


def refuse_other_software(here: Mapping[str, str], there: Mapping[str, str]) -> None:
    """ServerFailed where what serves and measures here is not what it is there: the two would
    measure a difference that no candidate makes. (A server's packages cannot always be asked.)"""
    asked = all(any(name.endswith(_SERVERS) for name in each) for each in (here, there))
    told = [
        f"{name}: {here.get(name, 'none')} instead of {there.get(name, 'none')}"
        for name in sorted({*here, *there})
        if here.get(name) != there.get(name) and (asked or not name.endswith(_SERVERS))
    ]
    if told:
        raise ServerFailed(
            "what serves or measures is of other versions than where the study was looked at",
            value="; ".join(told),
            next_step="install the same on each machine",
        )


# --------------------------------------------------------------------------------------- a survey
def surveyed(order: Order, relay: Relay) -> Surveyed:
    """Look at the model, build its variants, and serve it as it is configured now."""
    say = partial(relay.call, OVERSEER, "say")

    def listen(step: Progress) -> None:
        say(step.stage, step.text)

    kept = KeptVariants(list(order.variants))
    with device(order, cast("TrialStore", kept), listen) as on:
        made = on.assembly
        kept.records = list(made.prepared.variants)
        readied: Readied | AutotuneError
        software: Mapping[str, str] | None = None
        try:
            readied = on.here.prepare(say)
            software = _software(on, readied)
        except AutotuneError as exc:
            readied = exc
        return Surveyed(
            software=software,
            export_bytes=export_bytes(made.model),
            space=made.study.space,
            found=made.found,
            cores=made.cores,
            environment={**made.environment(), **on.mine.kind.recorded},
            digest=made.model.digest,
            variants=tuple(made.prepared.variants),
            warnings=made.warnings,
            readied=readied,
        )


# ----------------------------------------------------------------------------------------- trials
@dataclass(slots=True)
class KeptVariants:
    """The part of a `TrialStore` that the answers of a trial need, in memory."""

    records: list[VariantRecord]

    def variants(self, _study_id: int) -> Sequence[VariantRecord]:
        return tuple(self.records)

    def set_variants(self, _study_id: int, variants: Sequence[VariantRecord]) -> None:
        self.records = list(variants)


@dataclass(slots=True)
class Collected:
    """One trial's source on its node: keeps what comes of it for the driver."""

    asked: Asked
    mine: Taken
    measurements: list[Measurement] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    state: TrialState = TrialState.INVALID
    reason: str = ""
    took_s: float | None = None

    def next(self) -> Trial | None: ...

    def so_far(self) -> Sequence[Trial]:
        return self.asked.so_far

    def again(self, _number: int, reason: str) -> None:
        self.reasons.append(reason)

    def measured(self, _number: int, measurement: Measurement) -> None:
        self.measurements.append(_noted(measurement, self.mine))

    def ended(
        self, _number: int, state: TrialState, reason: str = "", took_s: float | None = None
    ) -> None:
        self.state, self.reason, self.took_s = state, reason, took_s


class DeviceBench:
    """Measures trial after trial on one device, which is made ready for the first of them. It lives
    in one process, and ends with it."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._stack = ExitStack()
        self._kept = KeptVariants(list(order.variants))
        self._on: Device | None = None

    def canary(self) -> Canary:
        try:
            on = self._on or self._ready()
        except Exception as exc:  # noqa: BLE001 - told to whoever can mend it
            return Canary(error=_of_here("cannot be made ready", exc))
        here = Canary(place=on.mine.place, device=on.mine.device)
        if self._order.alone:
            return here
        try:
            return replace(here, measured=looked_at(on.here))
        except ServerFailed:
            self.close()  # trial 0 tells of it, should it be so again
        except Exception as exc:  # noqa: BLE001 - told to whoever can mend it
            return Canary(error=_of_here("cannot go on", exc))
        return here

    def measure(self, asked: Asked) -> Outcome:
        """Whatever cannot be measured here ends the study, as it does on a single machine: else
        the one sick device, which is soon free again, would be given every candidate."""
        try:
            on = self._on or self._ready()
        except Exception as exc:  # noqa: BLE001 - told to whoever can mend it
            return Outcome(error=_of_here("cannot be made ready", exc))
        source = Collected(asked, on.mine)
        began = time.monotonic()
        try:
            on.here.carry_out(asked.trial, source)
        except OutputsDiffer as exc:
            return Outcome(measurements=source.measurements, error=exc)
        except ServerFailed:
            self.close()  # no server comes up any more after a trial that failed: begin anew
        except Exception as exc:  # noqa: BLE001 - told to whoever can mend it
            error = _of_here("cannot go on", exc)
            return Outcome(measurements=source.measurements, error=error)
        return Outcome(
            took_s=time.monotonic() - began,
            measurements=source.measurements,
            again=source.reasons,
            state=source.state,
            reason=source.reason,
            variants=tuple(self._kept.records),
        )

    def _ready(self) -> Device:
        try:
            on = self._stack.enter_context(device(self._order, cast("TrialStore", self._kept)))
            _make_ready(on, on.here, self._order)
        except BaseException:
            self.close()
            raise
        self._on = on
        return on

    def close(self) -> None:
        self._on = None
        self._stack.close()


def looked_at(here: Here) -> Measurement | None:
    """What the configuration in service measures on this device; None where no try is believed, or
    nothing but the latency of a queue that grows is known: it tells when the window closed."""
    trial = Trial(number=0, candidate=here.baseline, state=TrialState.RUNNING)
    measurer = Measurer(
        study=here.study, load=here.load, telemetry=here.telemetry, clock=here.clock
    )
    recorder = Recorder(
        keep=lambda _number, _measured: None,
        measurer=measurer,
        check_outputs=lambda _server, _candidate: None,
    )
    try:
        measured = recorder.take(here.server, trial, Purpose.CANARY, canary(here.study))
    except NotBelieved:
        return None
    return measured if SATURATION in measured.intervals or not saturated(measured.load) else None


def _of_here(what: str, exc: Exception) -> AutotuneError:
    """What went wrong, with the name of the machine where it did."""
    rule = f"{machine.describe()['host']}, a machine of the Ray cluster, {what}"
    told = exc if isinstance(exc, AutotuneError) else AutotuneError(f"{type(exc).__name__}: {exc}")
    kind = InputRefused if isinstance(told, InputRefused) else AutotuneError
    return kind(
        f"{rule}: {told.rule}",
        value=told.value,
        next_step=f"{told.next_step or 'mend it'}; or end Ray there (`ray stop`): the same command"
        " with --resume goes on without it",
    )


# ---------------------------------------------------------------------------------------- the end
@dataclass(frozen=True, slots=True)
class Ended:
    """How a study ended on its device; ``report`` is the text of what was left there."""

    settled: Settled
    report: tuple[str, str] | None


def settled(order: Order, planned: int, relay: Relay) -> Ended:
    """Carry out the end of a study with the driver's database."""
    store = Distant(relay, STORE)
    driver = Distant(relay, OVERSEER)
    overseer = Overseer(
        say=driver.say,
        warn=driver.warn,
        decision=driver.decision,
        seconds_left=driver.seconds_left,
        planned=planned,
    )
    with device(order, cast("TrialStore", store)) as on:
        noting = cast("TrialStore", _Noting(store, on.mine))
        here = replace(
            on.here,
            store=noting,
            exporter=SentExporter(on.here.exporter, relay, order.out),
            out=order.out,
        )
        try:
            _make_ready(on, here, order)
        except AutotuneError as exc:
            raise _of_here("cannot be made ready", exc) from exc
        came = here.settle(overseer)
        report = came.report and (came.report.name, came.report.read_text("utf-8"))
        return Ended(replace(came, report=None), report or None)


@dataclass(frozen=True, slots=True)
class _Noting:
    """The driver's store, which is told of each measurement where it was taken."""

    store: Distant
    mine: Taken

    def add_measurement(self, study_id: int, number: int, measurement: Measurement) -> None:
        self.store.add_measurement(study_id, number, _noted(measurement, self.mine))

    def __getattr__(self, method: str) -> Any:
        return getattr(self.store, method)


@dataclass(frozen=True, slots=True)
class SentExporter:
    """Implements `Exporter`: what is meant for the driver's ``out`` is sent there as an archive."""

    inner: Exporter
    relay: Relay
    out: Path

    def preflight(self, out: Path, study: str) -> None:
        if out == self.out:
            self.relay.call(DESK, "preflight", study)
        else:
            self.inner.preflight(out, study)

    def write(
        self, candidate: Candidate, out: Path, study: str, files: Sequence[ExportFile]
    ) -> Path:
        if out != self.out:
            return self.inner.write(candidate, out, study, files)
        with scratch("ray-export-", Settings.from_environment().work_dir) as folder:
            config = self.inner.write(candidate, folder / "out", study, files)
            self.relay.call(DESK, "put", packed(folder / "out"), study)
            return out / config.relative_to((folder / "out").absolute())

    def strict_server(self, out: Path) -> Server:
        return self.inner.strict_server(out)


def packed(folder: Path) -> bytes:
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w") as archive:
        archive.add(folder, ".")
    return sink.getvalue()
