"""The product's own server, load and telemetry, wired as a study has them, for a part to measure
with by hand."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from autotune.bootstrap import open_store
from autotune.bootstrap.bench import Surroundings, alone, fresh_folder, prepare_model, set_up
from autotune.core.errors import AutotuneError
from autotune.core.measurement import Ended, LoadResult, ServerWindow, TelemetryWindow
from autotune.core.study import Study
from autotune.ports import (
    LoadDriver,
    LoadPlan,
    OpenLoop,
    Saturate,
    Server,
    StatisticsMark,
    Telemetry,
)
from autotune.settings import Settings
from autotune.studyfile import read_study_file
from tests.gpu.context import Context
from tests.gpu.host import chosen_devices
from tests.gpu.images import batch_of, images_of
from tests.gpu.models import Model
from tests.gpu.plan import Shape
from tests.gpu.report import write_text

MOST_IN_FLIGHT = 4096
WAIT_S = 0.2


def definition(context: Context, model: Model, name: str) -> dict[str, Any]:
    """A study's file but for its space, its rate and its SLA, in the study file's own words."""
    scale = context.scale
    found = chosen_devices() if context.on_gpu else ()
    return {
        "study": name,
        "model": {"repository": str(model.repository), "name": model.name},
        "server": {"devices": list(found)} if found else {},
        "workload": {
            "target_qps": 100.0,
            "headroom": 1.0,
            "inputs": str(images_file(context, model)),
            "warmup_s": scale.warmup_s,
            "measure_s": scale.measure_s,
            "saturation_s": scale.burst_s,
        },
        "sla": {"p95_ms": scale.least_p95_ms},
        "space": {"instances": list(scale.instances)},
        "tolerance": {} if model.tolerance is None else _tolerance(model.tolerance),
        "finals": "none",  # the time goes into the search
        "trust": {"foreign_cpu": scale.foreign_cpu},
        "seed": 7,
    }


def images_file(context: Context, model: Model) -> Path:
    """What a study's requests carry: an array, by the name of the model's input."""
    path = context.out / f"images-{model.source}.npz"
    if not path.exists():
        np.savez(path, **{model.takes: images_of(context.scale.shape)})
    return path


def _tolerance(absolute: float) -> dict[str, float]:
    return {"rtol": 0.0, "atol": float(f"{absolute:.3g}")}


def write_study(context: Context, study: Mapping[str, Any]) -> Path:
    path = context.out / f"{study['study']}.yaml"
    write_text(path, json.dumps(study, indent=1) + "\n")  # JSON is YAML
    return path


@dataclass(slots=True)
class Window:
    """Reads the server's statistics and the telemetry over exactly a load's window."""

    server: Server
    telemetry: Telemetry
    statistics: ServerWindow | None = field(default=None, init=False)
    seen: TelemetryWindow = field(default_factory=TelemetryWindow, init=False)
    _start: StatisticsMark | None = field(default=None, init=False)

    def opened(self) -> None:
        self._start = self.server.mark()
        self.telemetry.start(self.server.pids(), self.server.endpoint)

    def enough(self, so_far: LoadResult) -> Ended | None: ...

    def closed(self) -> None:
        end = self.server.mark()
        self.seen = self.telemetry.stop()
        if self._start is not None:
            self.statistics = self.server.between(self._start, end)


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """What one load gave."""

    load: LoadResult
    statistics: ServerWindow
    telemetry: TelemetryWindow


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """Nothing of it runs before it is used; all of it ends with `opened`'s context."""

    study: Study
    shape: Shape
    server: Server
    load: LoadDriver
    telemetry: Telemetry

    def saturate(self, *, in_flight: int, warmup_s: float, seconds: float) -> Loaded:
        """Keep so many requests open."""
        return self._run(Saturate(in_flight=in_flight), warmup_s, seconds)

    def offer(self, qps: float, *, warmup_s: float, seconds: float) -> Loaded:
        """Send at a rate, with the study's arrivals and seed."""
        arrival = self.study.workload.arrival
        mode = OpenLoop(qps=qps, arrival=arrival, seed=self.study.seed)
        return self._run(mode, warmup_s, seconds)

    def _run(self, mode: OpenLoop | Saturate, warmup_s: float, seconds: float) -> Loaded:
        window = Window(self.server, self.telemetry)
        plan = LoadPlan(
            mode=mode,
            warmup_s=warmup_s,
            measure_s=seconds,
            timeout_s=self.study.workload.timeout_s,
            max_in_flight=MOST_IN_FLIGHT,
        )
        try:
            load = self.load.run(self.server.endpoint, plan, window)
        finally:
            self.telemetry.stop()
        assert window.statistics is not None, "a load that ends has closed its window"
        return Loaded(load=load, statistics=window.statistics, telemetry=window.seen)

    def send_batches_of(self, size: int) -> None:
        """From now on a request holds that many images: without a batcher it is one execution.
        (For the load generator it is a model without a batch dimension, of larger inputs.)"""
        interface = self.server.interface()
        (name,) = (each.name for each in interface.inputs)
        self.load.prepare(replace(interface, batched=False), [{name: batch_of(self.shape, size)}])

    def send_single(self) -> None:
        """From now on a request is one image."""
        interface = self.server.interface()
        (name,) = (each.name for each in interface.inputs)
        self.load.prepare(interface, [{name: image} for image in images_of(self.shape)])


def _wait_alone(context: Context, stack: ExitStack) -> None:
    """Wait for another study's end, for half of the time that there is."""
    longest_s = context.deadline.left_s / 2
    while True:
        try:
            stack.enter_context(alone())
        except AutotuneError:
            if context.deadline.left_s < longest_s:
                raise
            time.sleep(WAIT_S)
        else:
            return


@contextmanager
def opened(context: Context, study: Mapping[str, Any]) -> Iterator[Bench]:
    """The bench of a study file's content, the server started, no model loaded yet. Nobody else
    measures on this machine meanwhile."""
    read = read_study_file(write_study(context, study))
    settings = Settings.from_environment()
    settings.refuse_unusable()
    with ExitStack() as stack:
        _wait_alone(context, stack)
        store = stack.enter_context(open_store(settings.database, create=True))
        at = Surroundings(
            settings=settings,
            stack=stack,
            store=store,
            work=fresh_folder(settings.work_dir / read.name),
            listen=lambda _: None,
        )
        wired = set_up(read, prepare_model(read, at, None), at)
        wired.server.start()
        yield Bench(
            study=read,
            shape=context.scale.shape,
            server=wired.server,
            load=wired.load,
            telemetry=wired.telemetry,
        )
