"""Memory that runs out, on the embedded server: a model whose instances refuse to load from some
number on, or to answer from some batch on, and one that is ended as the kernel would end it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import tritonclient.http
from tritonclient.utils import InferenceServerException

from autotune.adapters.triton.environment import ServerEnvironment
from autotune.adapters.triton.repository import from_repository
from autotune.adapters.triton.servers import Servers
from autotune.core.errors import ServerFailed
from autotune.core.memory import RAN_OUT
from autotune.ports import Server
from search_spaces.candidate import Candidate
from tests.integration.conftest import FAST
from tests.integration.studies import PYTHON_CONFIG, Tool, tool

pytestmark = [
    pytest.mark.server,
    pytest.mark.timeout(600),  # a test may wait for its turn
]

DEADLY = -777.0
MODEL = """
import os
import sys
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        number = int(args["model_instance_name"].rsplit("_", 1)[-1])
        if number >= INSTANCES:
            raise MemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    def execute(self, requests):
        if len(requests) > BATCH:
            return [self.refusal() for _ in requests]  # an error of its own each
        return [self.answer(request) for request in requests]

    def refusal(self):
        said = pb_utils.TritonError("CUDA out of memory. Tried to allocate 512.00 MiB")
        return pb_utils.InferenceResponse(output_tensors=[], error=said)

    def answer(self, request):
        x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
        if (x == DEADLY).all():
            sys.stderr.write("terminate called after throwing an instance of 'std::bad_alloc'\\n")
            sys.stderr.flush()
            os.abort()
        return pb_utils.InferenceResponse([pb_utils.Tensor("y", x[:, :3].astype("float32"))])
"""


def tight_model(repository: Path, *, instances: int = 99, batch: int = 99) -> dict[str, str]:
    """Has memory for so many instances and so large a batch. The study's model section."""
    version = repository / "own" / "1"
    version.mkdir(parents=True)
    (repository / "own" / "config.pbtxt").write_text(PYTHON_CONFIG)
    given = {"INSTANCES": instances, "BATCH": batch, "DEADLY": DEADLY}
    text = MODEL
    for name, value in given.items():
        text = text.replace(name, str(value))
    (version / "model.py").write_text(text)
    return {"repository": str(repository), "name": "own"}


@pytest.fixture
def cli(tmp_path: Path, cache_dir: Path, server_environment: ServerEnvironment) -> Iterator[Tool]:
    yield from tool(tmp_path, cache_dir)


def test_a_study_goes_on_without_what_there_is_no_memory_for(cli: Tool, tmp_path: Path) -> None:
    model = tight_model(tmp_path / "models", instances=2)
    study = cli.study(model=model, space={"instances": [1, 2, 3, 4, 6]})
    done = cli.tune(study).finish()
    done.expect(0, "instances 3: failed: ran out of memory", "instances 4: pruned: asks for at")
    assert "2 ruled out unmeasured" in " ".join(done.stdout.split())
    trials = cli.shown()["trials"]
    assert [trial["state"] for trial in trials] == ["ok", "ok", "failed", "pruned", "pruned"]
    assert trials[2]["reason"].startswith(f"{RAN_OUT}: the server cannot load instances=3")
    assert "asks for at least as much memory as trial 2" in trials[3]["reason"]
    decision = cli.shown()["decision"]
    assert decision["pick"] in (0, 1)
    assert any("trials 3 and 4 were not loaded" in reason for reason in decision["reasons"])


def test_answers_that_say_that_memory_ran_out_fail_their_trial(cli: Tool, tmp_path: Path) -> None:
    model = tight_model(tmp_path / "models", batch=2)
    burst = {"saturation_s": 0.5}
    study = cli.study(model=model, space={"max_batch_size": [1, 2, 8, 16]}, workload=burst)
    cli.tune(study).finish().expect(0)
    trials = cli.shown()["trials"]
    states = [trial["state"] for trial in trials]
    assert states == ["ok", "ok", "failed", "pruned"], [trial["reason"] for trial in trials]
    assert trials[2]["reason"].startswith(RAN_OUT)
    assert "Tried to allocate 512.00 MiB" in trials[2]["reason"]


def test_a_server_whose_instance_dies_of_it_says_so(
    tmp_path: Path, cache_dir: Path, started: Callable[[Server], Server]
) -> None:
    tight_model(tmp_path / "models")
    model = from_repository(tmp_path / "models", "own", tmp_path / "work")
    server = started(Servers(cache_dir=cache_dir, work_dir=tmp_path).tuned(FAST, model))
    server.apply(Candidate({"instances": 1}))
    server.mark()
    with tritonclient.http.InferenceServerClient(server.endpoint.http) as client:
        tensor = tritonclient.http.InferInput("x", (1, 4), "FP32")
        tensor.set_data_from_numpy(np.full((1, 4), DEADLY, np.float32))
        with pytest.raises(InferenceServerException):
            client.infer("own", [tensor])
    with pytest.raises(ServerFailed, match=f"{RAN_OUT}: .*bad_alloc"):
        server.mark()
