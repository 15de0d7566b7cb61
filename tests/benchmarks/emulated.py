"""An emulated accelerator on the embedded Triton, for benchmarks: a batch of n holds the one
device for 4.8 + 2.4·n ms, times its parameter ``scale``, and otherwise needs no processor time.
Emulated: says nothing of a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from autotune.adapters.triton.repository import from_repository
from autotune.adapters.triton.servers import Servers
from autotune.core.study import ServerSpec
from autotune.ports import Server
from autotune.settings import Settings
from search_spaces.candidate import Candidate

MODEL = "emulated"
CONFIG = """
backend: "python"
max_batch_size: 16
input [ { name: "X" data_type: TYPE_FP32 dims: [ 128 ] } ]
output [ { name: "Y" data_type: TYPE_FP32 dims: [ 128 ] } ]
instance_group [ { kind: KIND_CPU count: 1 } ]
dynamic_batching { }
"""
RUNNER = """
import json
import time

import numpy as np
import triton_python_backend_utils as pb


class TritonPythonModel:
    def initialize(self, args):
        parameters = json.loads(args["model_config"])["parameters"]
        self.scale = float(parameters.get("scale", {"string_value": "1"})["string_value"])

    def execute(self, requests):
        xs = [pb.get_input_tensor_by_name(r, "X").as_numpy() for r in requests]
        time.sleep(self.scale * (4.8 + 2.4 * sum(x.shape[0] for x in xs)) / 1e3)
        return [pb.InferenceResponse([pb.Tensor("Y", x * np.float32(2))]) for x in xs]
"""


@contextmanager
def emulated_server(folder: Path) -> Iterator[Server]:
    """The server with the model loaded: batches up to 16, no delay, one instance."""
    model = folder / "repository" / MODEL
    (model / "1").mkdir(parents=True)
    (model / "config.pbtxt").write_text(CONFIG)
    (model / "1" / "model.py").write_text(RUNNER)
    served = from_repository(folder / "repository", MODEL, folder / "work")
    servers = Servers(cache_dir=Settings.from_environment().cache_dir, work_dir=folder / "logs")
    server = servers.tuned(ServerSpec(), served)
    try:
        server.start()
        server.apply(Candidate({"max_batch_size": 16, "queue_delay_us": 0, "instances": 1}))
        yield server
    finally:
        server.close()
