"""The whole web application over a real database, as `autotune serve` puts it together, without its
worker, scheduler and sockets."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from fastapi import FastAPI
from starlette.testclient import TestClient

from autotune.bootstrap import serving
from autotune.bootstrap.access import Access, add_token
from autotune.bootstrap.desks import compose
from autotune.bootstrap.guard import Guard, Limits
from autotune.bootstrap.web import web_app
from autotune.core.access import Role
from autotune.core.decision import decide
from autotune.core.jobs import JobKind
from autotune.core.promotions import Promotion, PromotionState, Target
from autotune.core.records import DecisionRecord, StudyState
from autotune.core.schedules import Schedule
from autotune.service_ports import Desks
from autotune.settings import Settings
from autotune.studyfile import read_definition
from storage.service import ServiceStore
from tests import onnx_models
from tests.realistic import STARTED_AT, a_finished_study, comparisons

LOCAL = ("127.0.0.1", 50_000)
KEY = "0123456789abcdef" * 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """``root`` is the folder that requests may name, with ``linear.onnx`` in it."""

    store: ServiceStore
    root: Path
    settings: Settings
    loopback: bool = True
    hosts: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()

    @classmethod
    def in_folder(cls, folder: Path, **how: Any) -> Service:
        root = folder / "root"
        (root / "models").mkdir(parents=True)
        onnx_models.linear(root / "linear.onnx")
        settings = Settings(
            cache_dir=folder / "cache",
            work_dir=folder / "work",
            service_dir=folder / "service",
            database=str(folder / "autotune.db"),
        )
        return cls(store=ServiceStore(settings.database), root=root, settings=settings, **how)

    def desks(self) -> Desks:
        return compose(
            self.store,
            settings=self.settings,
            access=Access(self.store.tokens, loopback=self.loopback),
            limits=Limits(root=self.root),
            problems=lambda: self.problems,
        )

    def app(self, desks: Desks | None = None) -> FastAPI:
        return web_app(desks or self.desks(), key=KEY, hosts=self.hosts)

    def token(self, name: str, role: Role) -> str:
        return add_token(self.store.tokens, self.store.promotions, name, role, by="test")

    # ------------------------------------------------------------------------------ what is there
    def definition(self, name: str = "ocr") -> dict[str, Any]:
        """A study of what lies below the root, as it is stored."""
        checks = Guard(Limits(root=self.root))
        return dict(checks.study(a_request(name)))

    def finished_study(self, name: str = "ocr") -> int:
        """With a decision and comparisons; its trials are those of `tests.realistic`."""
        study = read_definition(self.definition(name))
        trials = a_finished_study()
        store = self.store.trials
        study_id = store.create_study(name, study.definition, study.digest)
        for trial in trials:
            store.begin_trial(study_id, trial.number, trial.candidate)
            for measurement in trial.measurements:
                store.add_measurement(study_id, trial.number, measurement)
            store.end_trial(study_id, trial.number, trial.state, trial.reason)
        store.add_comparisons(study_id, comparisons())
        decision = decide(trials, study.sla, study.objectives, study.pick, workload=study.workload)
        store.add_decision(
            DecisionRecord(
                study_id=study_id,
                taken_at=STARTED_AT,
                rule=str(study.pick),
                pick=decision.pick,
                detail=decision.to_json(),
            )
        )
        store.set_study_state(study_id, StudyState.DONE)
        return study_id

    def queued_job(self, title: str = "ocr") -> int:
        payload = {"definition": self.definition(title)}
        return self.store.jobs.submit(JobKind.STUDY, title, payload, devices=["host/cpu"], by="ci")

    def schedule(self, name: str = "nightly", model: str = "ocr") -> int:
        schedule = Schedule(
            id=0, name=name, definition=self.definition(model), cron="0 3 * * *", created_by="ci"
        )
        return self.store.schedules.add(schedule)

    def proposal(self, study_id: int, model: str = "linear") -> int:
        return self.store.promotions.propose(
            Promotion(
                id=0,
                model=model,
                target=Target(repository=self.root / "models"),
                study_id=study_id,
                trial=5,
                candidate={"instances": 2, "max_batch_size": 2},
                state=PromotionState.PROPOSED,
                why="31% cheaper",
                diff="--- a\n+++ b\n",
                created_by="schedule nightly",
            )
        )

    def all_of_it(self) -> None:
        """One of each, all with the id 1; two jobs, of which one is the schedule's run."""
        study_id = self.finished_study()
        self.queued_job()
        schedule_id = self.schedule()
        self.store.submit_run(schedule_id, STARTED_AT, title="a night", devices=(), by="nightly")
        self.proposal(study_id)


@contextmanager
def apart(folder: Path) -> Iterator[None]:
    """What commands and desks keep outside of the database is kept in this folder."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("AUTOTUNE_WORK", str(folder / "work"))
        environment.setenv("AUTOTUNE_SERVICE", str(folder / "service"))
        yield


def a_request(name: str = "ocr", **sections: Any) -> dict[str, Any]:
    """A study as a request gives it."""
    return {
        "study": name,
        "model": {"onnx": "linear.onnx", "name": "linear"},
        "workload": {"target_qps": 80.0, "headroom": 1.0},
        "sla": {"p95_ms": 80.0},
        "space": {"max_batch_size": [1, 2, 4, 8, 16, 32], "instances": [1, 2, 3, 4]},
        "objectives": ["saturation_qps", "p95_ms"],
        **sections,
    }


def client(app: FastAPI, token: str = "", **options: Any) -> TestClient:
    """Someone on this machine, with a token if one is given."""
    settings = {"base_url": "http://localhost:8080", "client": LOCAL, "follow_redirects": False}
    asking = TestClient(app, **{**settings, **options})
    if token:
        asking.headers["authorization"] = f"Bearer {token}"
    return asking


def unsafe_routes(app: FastAPI) -> Sequence[tuple[str, str]]:
    """Every method and path of the application that may change something."""
    found = []
    for route in _all_routes(app.routes):
        methods = getattr(route, "methods", None) or ()
        found += [(method, route.path) for method in methods if method not in ("GET", "HEAD")]
    return sorted(found)


def _all_routes(routes: Sequence[Any]) -> list[Any]:
    found = []
    for route in routes:
        inner = getattr(route, "effective_candidates", None)
        found += _all_routes(inner()) if inner is not None else [route]
    return found


@contextmanager
def listening(app: FastAPI) -> Iterator[str]:
    """The application's address, while it is served on loopback as `autotune serve` does."""
    server = uvicorn.Server(serving._server(app, (), lambda: None).config)
    socket_ = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=server.run, args=([socket_],), daemon=True)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive(), "it did not begin to listen"
            time.sleep(0.02)
        yield f"http://127.0.0.1:{socket_.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(20)
