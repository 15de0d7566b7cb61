"""A study's runner on fakes and the real store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from autotune.core.study import Study
from autotune.core.trial import Trial
from autotune.core.variants import VariantRecord
from autotune.ports import ExportFile, Progress, Telemetry
from autotune.studyfile import study_from_options
from autotune.tuner.compare import ComparisonRunner
from autotune.tuner.conclude import Documents
from autotune.tuner.here import Here
from autotune.tuner.run import StudyRunner
from search_spaces.candidate import Candidate
from storage.store import SqlTrialStore
from tests.fakes import (
    FakeCheck,
    FakeClock,
    FakeExporter,
    FakeGate,
    FakeLoad,
    FakeServer,
    FakeTelemetry,
    ListSearch,
)

ONE, TWO, FOUR = (Candidate({"instances": n}) for n in (1, 2, 4))


def study(**changes: Any) -> Study:
    return study_from_options(
        {
            "study": "s",
            "model": {"onnx": "m.onnx", "name": "m"},
            "workload": {
                "target_qps": 50.0,
                "headroom": 1.2,
                "measure_s": 10.0,
                "measure_max_s": 20.0,
            },
            "sla": {"p95_ms": 80.0},
            "space": {"instances": [1, 2, 4]},
            "finals": "none",
            **changes,
        }
    )


class Bench:
    """A runner with its fakes at hand."""

    def __init__(self, tmp_path: Path, study_: Study, candidates: list[Candidate]) -> None:
        self.study = study_
        self.clock = FakeClock()
        self.server = FakeServer(self.clock)
        self.load = FakeLoad(self.server)
        self.check = FakeCheck(self.server)
        self.strict = FakeServer(self.clock)
        self.exporter = FakeExporter(self._strict)
        self.search = ListSearch(candidates)
        self.store = SqlTrialStore(str(tmp_path / "autotune.db"))
        self.steps: list[Progress] = []
        self.out = tmp_path / "out"
        self.work = tmp_path / "work"
        self.telemetry: Telemetry = FakeTelemetry()
        self.baseline = ONE
        self.found: Candidate | None = None
        self.gate: FakeGate | None = None
        self.variants: tuple[VariantRecord, ...] = ()
        self.study_id = self.store.create_study("s", study_.definition, study_.digest)

    def _strict(self) -> FakeServer:
        self.load.server = self.strict
        return self.strict

    def runner(self) -> StudyRunner:
        return StudyRunner(
            study=self.study,
            study_id=self.study_id,
            store=self.store,
            search=self.search,
            venue=self.here(),
            environment=lambda: {"host": "here"},
            clock=self.clock,
            listen=self.steps.append,
            planned=3,
            holds=3,
            variants=self.variants,
            found=self.found,
        )

    def here(self) -> Here:
        return Here(
            study=self.study,
            study_id=self.study_id,
            store=self.store,
            server=self.server,
            load=self.load,
            telemetry=self.telemetry,
            check=self.check,
            exporter=self.exporter,
            documents=Documents(write=lambda *_: [ExportFile(name="report.html", text="")]),
            samples_for=lambda _: [{"x": np.zeros(4, np.float32)}],
            clock=self.clock,
            baseline=self.baseline,
            found=self.found,
            out=self.out,
            work=self.work,
            gate=self.gate,
        )

    def comparison(self, first: Trial, second: Trial) -> ComparisonRunner:
        """Of two of the study's trials, on the server that was tuned."""
        self.load.server = self.server
        return ComparisonRunner(
            rig=self.here(), listen=self.steps.append, first=first, second=second
        )
