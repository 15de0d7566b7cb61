"""The emulated accelerator of examples/emulated on the embedded Triton, for benchmarks: a batch of
n holds the one device for 4.8 + 2.4·n ms, times its parameter ``scale``, and otherwise needs no
processor time. Emulated: says nothing of a GPU.
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

EXAMPLE = Path(__file__).parents[2] / "examples" / "emulated" / "models"
MODEL = "accelerator"
BATCH_MS = "1:7.2, 16:43.2"


@contextmanager
def emulated_server(folder: Path) -> Iterator[Server]:
    """The server with the model loaded: batches up to 16, no delay, one instance."""
    served = from_repository(EXAMPLE, MODEL, folder / "work")
    served.config.parameters["batch_ms"].string_value = BATCH_MS
    servers = Servers(cache_dir=Settings.from_environment().cache_dir, work_dir=folder / "logs")
    server = servers.tuned(ServerSpec(), served)
    try:
        server.start()
        server.apply(Candidate({"max_batch_size": 16, "queue_delay_us": 0, "instances": 1}))
        yield server
    finally:
        server.close()
