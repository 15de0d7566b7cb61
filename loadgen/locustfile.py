"""The open-loop user by itself, without autotune:

    locust -f loadgen/locustfile.py --headless --host http://127.0.0.1:8000 \
        --model-name minilm --qps 60 --duration 10

Every option can also be set by the environment variable that ``locust -f … --help`` names. The
model's inputs are read from the server. At the end a line of JSON on standard output gives the
percentiles from the raw times: Locust's own table rounds them to two digits.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from locust import events
from locust.argument_parser import LocustArgumentParser
from locust.exception import StopUser
from tritonclient.http import InferenceServerClient
from tritonclient.utils import InferenceServerException

from autotune.core.errors import AutotuneError, InputRefused
from autotune.core.model_interface import ModelInterface, TensorSpec
from autotune.core.workload import Arrival, ArrivalKind, InputKind, InputSpec
from loadgen.arrivals import schedule_at_rate, warm_up
from loadgen.bodies import build_bodies
from loadgen.inputs import build_samples
from loadgen.pacing import Arrivals, OpenLoopPhase, Phase, Window
from loadgen.results import RawRun, summarise
from loadgen.transport import InferClient
from loadgen.users import InferUser

_REFUSED = 2
_TAIL_S = 1.0

_OPTIONS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("model-name", {"type": str, "default": "", "help": "model to call"}),
    ("qps", {"type": float, "default": 10.0, "help": "requests per second"}),
    ("arrival", {"default": "poisson", "choices": [kind.value for kind in ArrivalKind]}),
    ("arrival-cv", {"type": float, "default": 1.0, "help": "gamma: coefficient of variation"}),
    ("arrival-trace", {"type": Path, "default": None, "help": "trace: file of arrival times"}),
    ("load-seed", {"type": int, "default": 0, "help": "seed of the schedule and the inputs"}),
    ("duration", {"type": float, "default": 10.0, "help": "measured window, seconds"}),
    ("warm-up", {"type": float, "default": 2.0, "help": "seconds that are not measured"}),
    ("request-timeout", {"type": float, "default": 10.0, "help": "seconds"}),
    ("max-in-flight", {"type": int, "default": 2048, "help": "cap on open requests"}),
    ("input-data", {"type": Path, "default": None, "help": "perf_analyzer .json, or .npz"}),
    ("input-shapes", {"default": "{}", "help": 'dynamic dimensions as JSON: {"IN": [3, 48]}'}),
)


def add_options(parser: LocustArgumentParser) -> None:
    group = parser.add_argument_group("Open-loop load of a Triton model")
    for name, settings in _OPTIONS:
        variable = "LOADGEN_" + name.upper().replace("-", "_")
        group.add_argument(f"--{name}", env_var=variable, **settings)


events.init_command_line_parser.add_listener(add_options)  # type: ignore[no-untyped-call]


class ModelUser(InferUser):
    """Reads the model's interface from ``--host`` and loads it for the asked time."""

    def on_start(self) -> None:
        options = self.environment.parsed_options
        assert options is not None
        self._options = options
        try:
            self._phase = build_phase(self.host or "", options, self)
        except AutotuneError as exc:
            logging.getLogger(__name__).error("%s", exc)  # noqa: TRY400  -- the text says it all
            self._quit(_REFUSED)
            raise StopUser from exc

    def make_phase(self) -> Phase:
        return self._phase

    def model_name(self) -> str:
        return str(self._options.model_name)

    def on_stop(self) -> None:
        recorded = type(self).recorded
        if recorded is not None:
            sys.stdout.write(_summary(recorded, self._options) + "\n")
            sys.stdout.flush()
            self._quit(None)

    def _quit(self, code: int | None) -> None:
        if code is not None:
            self.environment.process_exit_code = code
        if self.environment.runner is not None:
            self.environment.runner.quit()


def build_phase(host: str, options: Namespace, user: InferUser) -> Phase:
    """Everything that a phase needs, from the options and the server. InputRefused for options
    that do not fit the model, a server that does not answer and a model it does not have."""
    scheme, address = urlsplit(host)[:2]
    if scheme != "http" or not address or not options.model_name:
        raise InputRefused("--host http://HOST:PORT and --model-name are needed", value=host)
    model = read_interface(address, options.model_name)
    samples = build_samples(model, _input_spec(options), seed=options.load_seed)
    window = Window(
        warmup_s=options.warm_up,
        measure_s=options.duration,
        timeout_s=options.request_timeout,
        tail_s=options.request_timeout + _TAIL_S,
        cap=options.max_in_flight,
    )
    arrival = Arrival(
        kind=ArrivalKind(options.arrival), cv=options.arrival_cv, trace=options.arrival_trace
    )
    qps, seed = options.qps, options.load_seed
    before = warm_up(arrival, qps=qps, seed=seed, duration_s=window.warmup_s)
    offsets = schedule_at_rate(
        arrival,
        qps=qps,
        seed=seed,
        duration_s=window.measure_s + window.tail_s,
        looks=(window.measure_s,),
    )
    client = InferClient(address, model.name, build_bodies(model, samples))
    return OpenLoopPhase(
        client,
        window,
        user.report,
        Arrivals(warm_up=before.tolist(), window=offsets.tolist()),
    )


def read_interface(address: str, model: str) -> ModelInterface:
    """The model's inputs and outputs as the server at ``host:port`` tells them."""
    try:
        with InferenceServerClient(address) as client:
            metadata = client.get_model_metadata(model)
            config = client.get_model_config(model)
    except (InferenceServerException, OSError) as exc:
        raise InputRefused(
            f"the server at {address} does not describe the model", value=model, next_step=str(exc)
        ) from exc
    batched = config.get("max_batch_size", 0) > 0
    optional = {entry["name"] for entry in config.get("input", []) if entry.get("optional")}

    def tensors(kind: str) -> tuple[TensorSpec, ...]:
        return tuple(
            TensorSpec(
                name=entry["name"],
                datatype=entry["datatype"],
                shape=tuple(map(int, entry["shape"]))[1 if batched else 0 :],
                optional=entry["name"] in optional,
            )
            for entry in metadata[kind]
        )

    return ModelInterface(
        name=model, inputs=tensors("inputs"), outputs=tensors("outputs"), batched=batched
    )


def _input_spec(options: Namespace) -> InputSpec:
    try:
        given = json.loads(options.input_shapes)
        shapes = {name: tuple(map(int, shape)) for name, shape in given.items()}
    except (ValueError, AttributeError, TypeError) as exc:
        raise InputRefused(
            '--input-shapes is JSON like {"IN": [3, 48]}', value=options.input_shapes
        ) from exc
    path: Path | None = options.input_data
    if path is None:
        return InputSpec(shapes=shapes)
    kind = InputKind.NPZ if path.suffix == ".npz" else InputKind.JSON
    return InputSpec(kind=kind, path=path, shapes=shapes)


def _summary(recorded: RawRun, options: Namespace) -> str:
    result = summarise(recorded, timeout_s=options.request_timeout, keep_samples=False)
    fields = dataclasses.asdict(result)
    del fields["samples"]
    return json.dumps(fields)
