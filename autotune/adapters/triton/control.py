"""Model control and statistics of a running Triton, by gRPC, each call with a deadline."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

from tritonclient.grpc import InferenceServerClient
from tritonclient.utils import InferenceServerException

from autotune.adapters.triton import statistics
from autotune.adapters.triton.aside import aside
from autotune.adapters.triton.config import ModelConfig
from autotune.core.errors import CandidateFailed, ServerCrashed, ServerFailed
from autotune.core.memory import blamed, tells_out_of_memory
from autotune.core.model_interface import ModelInterface, TensorSpec

T = TypeVar("T")

CALL_TIMEOUT_S = 10.0
LIVE_TIMEOUT_S = 2.0
_POLL_S = 0.05
_GRACE_S = 2.0
"""How much later than its deadline a call has to have ended."""
_STUB_DIED = re.compile(r"stub process\b.*\b(?:not healthy|unhealthy|exited)", re.IGNORECASE)
"""How Triton says that an instance of its Python backend has died."""
_MISSING = re.compile(r"ModuleNotFoundError: No module named '([^']+)'")


class Unanswered(ServerFailed):
    """The server did not answer within the deadline: it hangs."""


class Unreachable(ServerFailed):
    """Nothing answers at the server's address: it is gone."""


class Refused(ServerFailed):
    """The server answered, with an error."""


class Control:
    """One server, one model, and what that model needs. ``model=`` names another one than the
    first. Raises `Unanswered`, `Unreachable` and `Refused`.

    A server goes on with a load that nobody waits for any more, and has what it loads only then.
    ``to_the_end``: whoever is interrupted in a call waits for its end all the same, within its
    deadline, so that what is served then stays.
    """

    def __init__(
        self,
        grpc: str,
        model: str,
        *,
        call_timeout_s: float = CALL_TIMEOUT_S,
        to_the_end: bool = False,
    ) -> None:
        self._timeout_s = call_timeout_s
        self._to_the_end = to_the_end
        self._address = grpc
        self._model = model
        self._client = InferenceServerClient(grpc)

    def live(self) -> bool:
        try:
            return self._aside(
                lambda: bool(self._client.is_server_live(client_timeout=LIVE_TIMEOUT_S)),
                LIVE_TIMEOUT_S,
            )
        except (InferenceServerException, TimeoutError):
            return False

    def load(
        self,
        override: str | None,
        timeout_s: float,
        model: str | None = None,
        *,
        files: Mapping[str, bytes] | None = None,
    ) -> None:
        """Load a model, with a configuration in place of its file's if one is given (and then, if
        they are given, with ``files`` in place of all of its own, by their paths), and wait until
        it is ready."""
        deadline = time.monotonic() + timeout_s
        sent = {f"file:{path}": content for path, content in (files or {}).items()}
        self._call(
            self._client.load_model,
            config=override,
            files=sent or None,
            timeout_s=timeout_s,
            model=model,
        )
        self.wait_until_ready(deadline - time.monotonic(), model)

    def wait_until_ready(self, timeout_s: float, model: str | None = None) -> None:
        deadline = time.monotonic() + timeout_s
        while not self.loaded(model):
            if time.monotonic() > deadline:
                raise Unanswered(
                    f"the model {model or self._model} was loaded but is not ready",
                    value=f"{timeout_s:.3g} s",
                )
            time.sleep(_POLL_S)

    def unload(self, timeout_s: float | None = None, model: str | None = None) -> None:
        self._call(self._client.unload_model, timeout_s=timeout_s, model=model)

    def loaded(self, model: str | None = None) -> bool:
        """Whether the model is ready to serve."""
        return bool(self._call(self._client.is_model_ready, model=model))

    def statistics(self, steps: Collection[str] = ()) -> statistics.Mark:
        """Of the model, and of a pipeline's steps at the same moment."""
        if not steps:
            return statistics.read(self._call(self._client.get_inference_statistics))
        every = self._call(self._client.get_inference_statistics, model="")
        return statistics.read_pipeline(every, self._model, steps)

    def config(self, model: str | None = None) -> ModelConfig:
        """A loaded model's whole configuration, with the server's own completions."""
        config: ModelConfig = self._call(self._client.get_model_config, model=model).config
        return config

    def version(self) -> str:
        metadata = self._translated(
            lambda: self._client.get_server_metadata(client_timeout=self._timeout_s),
            self._timeout_s,
        )
        return str(metadata.version)

    def interface(self) -> ModelInterface:
        return interface(self._call(self._client.get_model_metadata), self.config())

    def close(self) -> None:
        self._client.close()

    def _call(
        self,
        method: Callable[..., T],
        *,
        timeout_s: float | None = None,
        model: str | None = None,
        **arguments: object,
    ) -> T:
        deadline_s = self._timeout_s if timeout_s is None else timeout_s
        name = self._model if model is None else model
        return self._translated(
            lambda: method(name, client_timeout=deadline_s, **arguments), deadline_s
        )

    def _translated(self, call: Callable[[], T], timeout_s: float) -> T:
        try:
            return self._aside(call, timeout_s)
        except TimeoutError as error:
            raise self._unanswered(timeout_s) from error
        except InferenceServerException as error:
            text = str(error.message() or error)
            if str(error.status()).endswith("DEADLINE_EXCEEDED"):
                failure: ServerFailed = self._unanswered(timeout_s)
            elif self.live():
                failure = Refused("the server refused", value=text)
            else:  # a dying connection has many statuses, some of which Triton uses as well
                failure = Unreachable(f"no server answers at {self._address}", value=text)
            raise failure from error

    def _aside(self, call: Callable[[], T], timeout_s: float) -> T:
        return aside(call, within_s=timeout_s + _GRACE_S, to_the_end=self._to_the_end)

    def _unanswered(self, timeout_s: float) -> Unanswered:
        return Unanswered(f"the server at {self._address} did not answer within {timeout_s:g} s")


def interface(metadata: Any, config: ModelConfig) -> ModelInterface:
    """From a ``ModelMetadataResponse``, whose shapes have the batch dimension, and the config."""
    batched = config.max_batch_size > 0
    optional = {tensor.name for tensor in config.input if tensor.optional}

    def spec(tensor: Any) -> TensorSpec:
        shape = tuple(int(size) for size in tensor.shape)
        return TensorSpec(
            name=tensor.name,
            datatype=tensor.datatype,
            shape=shape[1:] if batched else shape,
            optional=tensor.name in optional,
        )

    return ModelInterface(
        name=metadata.name,
        inputs=tuple(map(spec, metadata.inputs)),
        outputs=tuple(map(spec, metadata.outputs)),
        batched=batched,
    )


def not_loaded(error: ServerFailed, candidate: object, memory: str = "") -> ServerFailed:
    """What the server said, its Python backend's traces without Python's own lines, as memory's
    fault where that, or ``memory``, says so. A module that is missing there is told with where to
    name it. CandidateFailed, or ServerCrashed where a process of the server died of it."""
    said = _without_frames(str(error.value))
    missing = _MISSING.search(said)
    beside = f" ({memory})" if memory and not tells_out_of_memory(said) else ""
    return failure_of(said, memory)(
        blamed(f"the server cannot load {candidate}: {said}{beside}", said + memory),
        next_step=""
        if missing is None
        else f"The server's Python has no module {missing[1]}: name its package in the file of"
        " server.requirements (launch embedded), or install it where that server runs.",
    )


def failure_of(said: str, memory: str = "") -> type[ServerFailed]:
    """CandidateFailed for what a server refuses with these words; ServerCrashed where they tell
    that a process of it has died, and neither they nor ``memory`` that memory ran out."""
    died = _STUB_DIED.search(said) and not tells_out_of_memory(said + memory)
    return ServerCrashed if died else CandidateFailed


def _without_frames(said: str) -> str:
    lines = (line.rstrip("; ") for line in said.splitlines())
    return "\n".join(
        line for line in lines if line.strip() not in {"", "At:"} and "<frozen " not in line
    )
