"""Promotions to a real Triton in explicit mode, and their undoing."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.http

from autotune.adapters.deploy.directory import DirectoryDeployment
from autotune.adapters.deploy.live import LiveDeployment
from autotune.adapters.triton.config import ModelConfig
from autotune.adapters.triton.control import Control
from autotune.adapters.triton.environment import ServerEnvironment
from autotune.adapters.triton.launchers import EmbeddedLauncher
from autotune.adapters.triton.local import LocalServer
from autotune.adapters.triton.repository import from_repository
from autotune.bootstrap import releases
from autotune.bootstrap.edits import edited_since
from autotune.bootstrap.promotions import promote_now, propose_now, roll_back_now
from autotune.bootstrap.stored import StoredStudy
from autotune.core.errors import InputRefused, ServerFailed
from autotune.core.promotions import Promotion, PromotionState, Target
from autotune.retune.promote import BEFORE, BEGUN, label_of
from autotune.settings import Settings
from search_spaces.candidate import Candidate
from storage.service import ServiceStore
from tests import promoting
from tests.integration.conftest import FAST
from tests.integration.studies import CALM, QUICK
from tests.promoting import tree

pytestmark = pytest.mark.server

MODEL = """
import json, time
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        parameters = json.loads(args["model_config"]).get("parameters", {})
        self.sleep_s = float(parameters.get("sleep_ms", {}).get("string_value", "1")) / 1000

    def execute(self, requests):
        time.sleep(self.sleep_s)
        return [self.answer(request) for request in requests]

    def answer(self, request):
        x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
        return pb_utils.InferenceResponse([pb_utils.Tensor("y", x * FACTOR)])
"""
CONFIG = """name: "{name}"
backend: "python"
max_batch_size: {batch}
input {{ name: "x" data_type: TYPE_FP32 dims: 4 }}
output {{ name: "y" data_type: TYPE_FP32 dims: 4 }}
instance_group {{ count: 1 kind: KIND_CPU }}
"""
ENSEMBLE = """
platform: "ensemble"
max_batch_size: 1
input { name: "x" data_type: TYPE_FP32 dims: 4 }
output { name: "y" data_type: TYPE_FP32 dims: 4 }
ensemble_scheduling {
  step { model_name: "first" model_version: -1
    input_map { key: "x" value: "x" } output_map { key: "y" value: "h" } }
  step { model_name: "second" model_version: -1
    input_map { key: "x" value: "h" } output_map { key: "y" value: "y" } }
}
"""
FOUND = Candidate({"max_batch_size": 1, "parameters.sleep_ms": None})
LARGER = FOUND.replacing(max_batch_size=4)
SLOW = LARGER.replacing(**{"parameters.sleep_ms": "200"})


def put(repository: Path, name: str, *, batch: int = 1, factor: int = 1) -> None:
    version = repository / name / "1"
    version.mkdir(parents=True, exist_ok=True)
    (version / "model.py").write_text(MODEL.replace("FACTOR", str(factor)))
    (repository / name / "config.pbtxt").write_text(CONFIG.format(name=name, batch=batch))


def put_pipeline(repository: Path, *, batch: int = 1) -> None:
    for name in ("first", "second"):
        put(repository, name, batch=batch)
    (repository / "whole" / "1").mkdir(parents=True, exist_ok=True)
    (repository / "whole" / "config.pbtxt").write_text(ENSEMBLE)


@dataclass
class Service:
    """A server in production, with the repository that it loads from."""

    server: LocalServer
    repository: Path
    control: Control = field(init=False)

    def __post_init__(self) -> None:
        self.control = Control(self.server.endpoint.grpc, "own")

    def config(self, name: str = "own") -> ModelConfig:
        return self.control.config(name)

    def answer(self, name: str = "own") -> list[float]:
        with closing(tritonclient.http.InferenceServerClient(self.server.endpoint.http)) as client:
            x = tritonclient.http.InferInput("x", [1, 4], "FP32")
            x.set_data_from_numpy(np.ones((1, 4), np.float32))
            y = client.infer(name, [x]).as_numpy("y")
            assert y is not None
            return [float(each) for each in y.flatten()]

    def target(self, *, repository: bool, shadow_s: float = 0.0) -> Target:
        return Target(
            repository=self.repository if repository else None,
            grpc=self.server.endpoint.grpc,
            http=self.server.endpoint.http,
            shadow_s=shadow_s,
        )


@pytest.fixture(scope="module")
def running(
    server_environment: ServerEnvironment, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("production")
    put(folder / "models", "own")
    model = from_repository(folder / "models", "own", folder)
    launcher = EmbeddedLauncher(lambda: server_environment)
    server = LocalServer(FAST, model, launcher, work_dir=folder / "server")
    server.start()
    yield Service(server, folder / "models")
    server.close()


@pytest.fixture
def service(running: Service) -> Service:
    """With the model as its files say: loaded anew where the test before has left it otherwise."""
    put(running.repository, "own")
    as_ever = running.control.loaded() and running.config().max_batch_size == 1
    if not as_ever or running.answer() != [1.0] * 4:
        running.control.load(None, 30.0)
    return running


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServiceStore]:
    monkeypatch.setenv("AUTOTUNE_WORK", str(tmp_path / "work"))
    with closing(ServiceStore(str(tmp_path / "service.db"))) as made:
        yield made


def study(store: ServiceStore, source: Path, *candidates: Candidate, **sections: Any) -> str:
    definition: dict[str, Any] = {
        "study": "own",
        "model": {"repository": str(source), "name": "own"},
        "workload": {**QUICK, "target_qps": 20},
        "sla": {"p50_ms": 150},
        "space": {"max_batch_size": [1, 4], "parameters.sleep_ms": ["1", "200"]},
        **CALM,
        **sections,
    }
    return str(promoting.stored_study(store, definition, [FOUND, *candidates]))


def promoted(store: ServiceStore, reference: str, target: Target, trial: int = 1) -> Promotion:
    proposal = propose_now(store, reference, trial=trial, target=target, why="better", by="someone")
    return promote_now(store, proposal.id, by="someone", alone=False)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """The study's repository, as it was when it ran."""
    put(tmp_path / "models", "own")
    return tmp_path / "models"


# ------------------------------------------------------------------------------ what a study found
def test_what_is_loaded_and_checked_stays_what_breaks_its_sla_goes_back_and_all_can_be_undone(
    service: Service, store: ServiceStore, source: Path
) -> None:
    before, files = service.config(), tree(service.repository / "own")
    target = service.target(repository=True, shadow_s=2.0)
    reference = study(store, source, LARGER, SLOW)
    done = promoted(store, reference, target)
    assert done.state is PromotionState.DONE, done.reason
    assert "beside 0.0/s of live traffic" in done.reason
    assert edited_since(store, done, StoredStudy.load(store.trials, reference).study) is None
    promoted_files = tree(service.repository / "own")
    assert "max_batch_size: 4" in promoted_files["config.pbtxt"]
    assert service.config().max_batch_size == 4

    failed = promoted(store, reference, target, trial=2)
    assert failed.state is PromotionState.FAILED
    assert "it misses its SLA in service" in failed.reason
    assert service.config().max_batch_size == 4
    assert "sleep_ms" not in service.config().parameters
    assert tree(service.repository / "own") == promoted_files
    assert_undone_by_itself(store, failed)

    back = roll_back_now(store, done.id, by="someone", why="as a test")
    assert back.state is PromotionState.ROLLED_BACK
    assert service.config() == before
    assert tree(service.repository / "own") == files


def assert_undone_by_itself(store: ServiceStore, failed: Promotion) -> None:
    actions = [entry.action for entry in store.promotions.audit(subject=f"promotion {failed.id}")]
    assert actions[::-1] == [
        "proposed",
        "begun",
        "applied",
        "verified",
        "checked: misses",
        "undone",
    ]


def test_without_a_repository_the_configuration_is_sent_and_taken_back(
    service: Service, store: ServiceStore, source: Path
) -> None:
    """A server that is started again has its own configuration; so it is told apart."""
    before = service.config()
    reference = study(store, source, LARGER)
    done = promoted(store, reference, service.target(repository=False))
    assert done.state is PromotionState.DONE, done.reason
    assert service.config().max_batch_size == 4
    asked = StoredStudy.load(store.trials, reference).study
    assert edited_since(store, done, asked) is None
    service.control.load(None, 30.0)
    edited = edited_since(store, done, asked)
    assert edited is not None
    assert "own: max_batch_size is 1, not 4" in edited.words
    assert edited.candidate == FOUND
    assert "max_batch_size: 1" in (service.repository / "own" / "config.pbtxt").read_text()
    roll_back_now(store, done.id, by="someone")
    assert service.config() == before


def test_what_was_tuned_on_the_server_itself_is_promoted_there(
    service: Service, store: ServiceStore, source: Path
) -> None:
    """Its configuration alone is known, as the server has completed it."""
    endpoint = service.server.endpoint
    server = {"launch": "remote", "http": endpoint.http, "grpc": endpoint.grpc}
    reference = study(store, source, LARGER, model={"name": "own"}, server=server)
    before, files = service.config(), tree(service.repository / "own" / "1")
    done = promoted(store, reference, service.target(repository=True))
    assert done.state is PromotionState.DONE, done.reason
    assert service.config().max_batch_size == 4
    assert tree(service.repository / "own" / "1") == files
    roll_back_now(store, done.id, by="someone")
    assert service.config() == before


def test_killed_between_the_switch_and_the_load_it_is_gone_on_with(
    service: Service, store: ServiceStore, source: Path, live: Any
) -> None:
    target = service.target(repository=True)
    proposal = propose_now(
        store, study(store, source, LARGER), trial=1, target=target, why="", by="someone"
    )
    release = releases.release_at(releases.folder_of(Settings.from_environment(), proposal))
    before = live(repository=True).before(release)
    directory = DirectoryDeployment(service.repository, known=None)
    directory.apply(release, label=label_of(proposal))
    store.promotions.advance(
        proposal.id,
        expected=[PromotionState.PROPOSED],
        state=PromotionState.APPLYING,
        detail={**proposal.detail, BEGUN: True, BEFORE: before},
    )
    assert service.config().max_batch_size == 1
    done = promote_now(store, proposal.id, by="someone")
    assert done.state is PromotionState.DONE, done.reason
    assert service.config().max_batch_size == 4
    roll_back_now(store, done.id, by="someone")
    assert service.config().max_batch_size == 1


def test_a_configuration_that_somebody_loaded_is_not_overwritten(
    service: Service, store: ServiceStore, source: Path
) -> None:
    (service.repository / "own" / "config.pbtxt").write_text(CONFIG.format(name="own", batch=2))
    service.control.load(None, 30.0)
    reference = study(store, source, LARGER)
    for repository in (True, False):
        with pytest.raises(InputRefused, match="neither"):
            promoted(store, reference, service.target(repository=repository))
    assert service.config().max_batch_size == 2


def test_a_server_that_hangs_is_told_in_bounded_time(
    service: Service, store: ServiceStore, source: Path
) -> None:
    reference = study(store, source, LARGER)
    server = service.server.pids()[0]
    os.kill(server, signal.SIGSTOP)
    try:
        with pytest.raises(ServerFailed, match="no live Triton answers"):
            promoted(store, reference, service.target(repository=False))
    finally:
        os.kill(server, signal.SIGCONT)


# ------------------------------------------------------------------------------------- the adapter
@pytest.fixture
def live(service: Service, tmp_path: Path) -> Iterator[Any]:
    made: list[LiveDeployment] = []

    def make(*, repository: bool = False, sends: frozenset[str] = frozenset()) -> LiveDeployment:
        directory = DirectoryDeployment(service.repository, known=None) if repository else None
        made.append(
            LiveDeployment(
                service.server.endpoint.grpc,
                directory=directory,
                known=None,
                states=tmp_path / "states",
                sends=sends,
                load_timeout_s=20.0,
            )
        )
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_files_that_change_are_sent_and_taken_back(
    service: Service, live: Any, tmp_path: Path
) -> None:
    put(tmp_path / "release", "own", factor=3)
    release = promoting.release(tmp_path / "release", "own")
    deployment = live(sends=frozenset({"own"}))
    was = deployment.before(release)
    kept = deployment.apply(release, label="p1")
    deployment.verify(release)
    assert service.answer() == [3.0] * 4
    deployment.restore(kept, was)
    assert service.answer() == [1.0] * 4


def test_files_that_change_under_the_same_configuration_are_loaded_and_those_put_back_too(
    service: Service, live: Any, tmp_path: Path
) -> None:
    """Those are older than what the server has loaded."""
    put(tmp_path / "release", "own", factor=3)
    release = promoting.release(tmp_path / "release", "own")
    deployment = live(repository=True)
    was = deployment.before(release)
    kept = deployment.apply(release, label="p1")
    assert service.answer() == [3.0] * 4
    deployment.restore(kept, was)
    assert service.answer() == [1.0] * 4


def test_a_pipelines_steps_are_loaded_with_their_ensemble_and_put_back(
    service: Service, live: Any, tmp_path: Path
) -> None:
    put_pipeline(service.repository)
    service.control.load(None, 30.0, "whole")
    before = {name: service.config(name) for name in ("first", "second", "whole")}
    put_pipeline(tmp_path / "release", batch=4)
    release = promoting.release(tmp_path / "release", "first", "second", "whole")
    deployment = live(repository=True)
    was = deployment.before(release)
    kept = deployment.apply(release, label="p1")
    deployment.verify(release)
    assert service.config("second").max_batch_size == 4
    assert service.answer("whole") == [1.0] * 4
    deployment.restore(kept, was)
    assert {name: service.config(name) for name in before} == before
    assert service.answer("whole") == [1.0] * 4


def test_what_the_server_cannot_load_leaves_all_as_it_was(
    service: Service, live: Any, tmp_path: Path
) -> None:
    before = service.config(), tree(service.repository / "own")
    put(tmp_path / "release", "own", batch=4)
    (tmp_path / "release" / "own" / "1" / "model.py").write_text("this is no Python\n")
    release = promoting.release(tmp_path / "release", "own")
    deployment = live(repository=True)
    was = deployment.before(release)
    with pytest.raises(ServerFailed, match="cannot load own as it was to be promoted"):
        deployment.apply(release, label="p1")
    deployment.restore("p1", was)
    assert (service.config(), tree(service.repository / "own")) == before
    assert service.answer() == [1.0] * 4


def test_a_model_that_was_not_loaded_is_unloaded_again(
    service: Service, live: Any, tmp_path: Path
) -> None:
    put(tmp_path / "release", "fresh")
    release = promoting.release(tmp_path / "release", "fresh")
    deployment = live(repository=True)
    was = deployment.before(release)
    kept = deployment.apply(release, label="p1")
    assert service.answer("fresh") == [1.0] * 4
    deployment.restore(kept, was)
    assert not service.control.loaded("fresh")
    assert not (service.repository / "fresh").exists()


def test_a_model_that_serves_something_else_does_not_verify(
    service: Service, live: Any, tmp_path: Path
) -> None:
    put(tmp_path / "release", "own", batch=4)
    with pytest.raises(ServerFailed, match="max_batch_size is 1, not 4"):
        live().verify(promoting.release(tmp_path / "release", "own"))
