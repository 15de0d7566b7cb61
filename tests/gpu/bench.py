"""The product's own server, load and telemetry, wired as a study has them, for a part to measure
with by hand."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from autotune.bootstrap import open_store
from autotune.bootstrap.bench import Surroundings, alone, fresh_folder, prepare_model, set_up
from autotune.core.measurement import Ended, LoadResult, ServerWindow, TelemetryWindow
from autotune.core.model_interface import NUMPY_DTYPES, ModelInterface, Sample
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
from tests.gpu.models import Model
from tests.gpu.report import write_text

IMAGES = 8
"""Different requests."""
MOST_IN_FLIGHT = 4096


def definition(context: Context, model: Model, name: str) -> dict[str, Any]:
    """A study's file but for its space, its rate and its SLA, in the study file's own words."""
    scale = context.scale
    found = chosen_devices() if context.on_gpu else ()
    return {
        "study": name,
        "model": {"repository": str(model.repository), "name": model.name},
        "server": {"devices": list(found)},
        "workload": {
            "target_qps": 100.0,
            "headroom": 1.0,
            "inputs": {"kind": "random", "count": IMAGES},
            "warmup_s": scale.warmup_s,
            "measure_s": scale.measure_s,
            "saturation_s": scale.burst_s,
        },
        "sla": {"p95_ms": scale.least_p95_ms},
        "space": {"instances": list(scale.instances)},
        "tolerance": {} if model.tolerance is None else _tolerance(model.tolerance),
        "finals": "none",
        "trust": {"foreign_cpu": scale.foreign_cpu},
        "seed": 7,
    }


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
        whole = replace(interface, batched=False)
        self.load.prepare(whole, [batch(interface, size, seed) for seed in range(2)])

    def send_single(self) -> None:
        """From now on a request is one image."""
        interface = self.server.interface()
        self.load.prepare(interface, images(interface))


def batch(interface: ModelInterface, size: int, seed: int) -> Sample:
    draw = np.random.default_rng(seed)
    return {
        each.name: draw.integers(0, 256, (size, *each.shape)).astype(NUMPY_DTYPES[each.datatype])
        for each in interface.inputs
    }


def images(interface: ModelInterface) -> list[Sample]:
    whole = batch(interface, IMAGES, 0)
    return [{name: rows[place] for name, rows in whole.items()} for place in range(IMAGES)]


@contextmanager
def opened(context: Context, study: Mapping[str, Any]) -> Iterator[Bench]:
    """The bench of a study file's content, the server started, no model loaded yet. Nobody else
    measures on this machine meanwhile."""
    read = read_study_file(write_study(context, study))
    settings = Settings.from_environment()
    settings.refuse_unusable()
    with ExitStack() as stack:
        stack.enter_context(alone())
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
        yield Bench(study=read, server=wired.server, load=wired.load, telemetry=wired.telemetry)
