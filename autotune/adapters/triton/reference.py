"""The output check: are the server's answers the model's? Before that, no timing means anything."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import gevent
import numpy as np
import tritonclient.http as triton_http
from tritonclient.grpc.model_config_pb2 import ModelInstanceGroup
from tritonclient.utils import InferenceServerException

from autotune.adapters.triton.artefacts import Artefact, in_tf32
from autotune.adapters.triton.comparison import (
    NEXT_STEP,
    TOLERANCES,
    Array,
    Outputs,
    compare,
    kind_of,
)
from autotune.adapters.triton.config import ModelConfig
from autotune.adapters.triton.control import failure_of
from autotune.adapters.triton.direct import Direct, NotRun, OnnxDirect, TorchDirect
from autotune.adapters.triton.repository import ServedModel
from autotune.adapters.triton.reshapes import from_model, to_model
from autotune.adapters.triton.server_python import ServerPython, this_python
from autotune.core.errors import (
    AutotuneError,
    InputRefused,
    OutputsDiffer,
    ServerFailed,
)
from autotune.core.memory import blamed
from autotune.core.model_interface import (
    NUMPY_DTYPES,
    Endpoint,
    ModelInterface,
    Sample,
    TensorSpec,
)
from autotune.core.study import Tolerance
from autotune.core.variants import Engine, Precision
from search_spaces.candidate import VARIANT, Candidate

SAMPLES = 8


class Infer(Protocol):
    """Sends samples to the model and returns its answers, in order."""

    def __call__(self, samples: Sequence[Sample], *, at_once: int) -> list[Outputs]: ...


class Connect(Protocol):
    """Opens the way to a served model; a test may put its own here."""

    def __call__(self, endpoint: Endpoint, model: ModelInterface) -> Infer: ...


# ------------------------------------------------------------------------------------ the client
@dataclass(frozen=True, slots=True)
class HttpInfer:
    """Requests over HTTP through tritonclient: ``at_once`` of them open at a time.

    CandidateFailed if an answer is an error, ServerCrashed if it is that a process of the server
    has died, OutputsDiffer if it cannot be read as what it says it is, ServerFailed if there is
    none.
    """

    endpoint: Endpoint
    model: ModelInterface
    timeout_s: float = 60.0

    def __call__(self, samples: Sequence[Sample], *, at_once: int) -> list[Outputs]:
        gevent.get_hub().exception_stream = None  # it prints what is raised here anyway
        try:
            with triton_http.InferenceServerClient(
                self.endpoint.http,
                concurrency=at_once,
                connection_timeout=self.timeout_s,
                network_timeout=self.timeout_s,
            ) as client:
                answers: list[Outputs] = []
                for start in range(0, len(samples), at_once):
                    batch = samples[start : start + at_once]
                    pending = [
                        client.async_infer(self.model.name, _request(self.model, sample))
                        for sample in batch
                    ]
                    answers += [self._read(each.get_result()) for each in pending]
                return answers
        except InferenceServerException as error:
            raise self._refused(error) from error
        except OSError as error:
            raise ServerFailed(f"the server does not answer: {error}") from error

    def _refused(self, error: InferenceServerException) -> ServerFailed:
        if "timed out" in str(error) or "Timeout" in str(error):
            return ServerFailed(f"the server does not answer within {self.timeout_s:g} s: {error}")
        said = str(error.message())
        return failure_of(said)(
            blamed(f"the server answers an error to a valid request: {said}", said),
            next_step="The server's own log says more.",
        )

    def _read(self, result: Any) -> Outputs:
        return {spec.name: _read_output(result, spec) for spec in self.model.outputs}


def _request(model: ModelInterface, sample: Sample) -> list[triton_http.InferInput]:
    inputs = []
    for spec in model.inputs:
        if spec.name not in sample:
            continue
        array = _batched(sample[spec.name], model)
        entry = triton_http.InferInput(spec.name, list(array.shape), spec.datatype)
        entry.set_data_from_numpy(array, binary_data=True)
        inputs.append(entry)
    return inputs


def _read_output(result: Any, spec: TensorSpec) -> Array:
    declared = result.get_output(spec.name)
    if declared is None:
        raise OutputsDiffer(f"the server's answer lacks the output {spec.name!r}")
    try:
        array: Array = result.as_numpy(spec.name)
    except (ValueError, InferenceServerException) as error:
        size = declared.get("parameters", {}).get("binary_data_size")
        raise OutputsDiffer(
            f"output {spec.name!r} is said to be {declared['datatype']} of shape"
            f" {declared['shape']}, but the answer has {size} bytes of it: {error}",
            next_step=NEXT_STEP,
        ) from error
    return array


def _batched(array: Array, model: ModelInterface) -> Array:
    return array[np.newaxis] if model.batched else array


# ------------------------------------------------------------------------------------ the checks
class Check(Protocol):
    """Looks at served answers, for one model file."""

    def check(
        self, endpoint: Endpoint, model: ModelInterface, samples: Sequence[Sample]
    ) -> str: ...


class ByVariant:
    """Implements `ports.OutputCheck`: a candidate's answers are held against the file that it
    serves. ``otherwise``: for one that names no variant, or the model's own."""

    def __init__(self, otherwise: Check, by_variant: Mapping[str, Check] | None = None) -> None:
        self._otherwise = otherwise
        self._by_variant = by_variant or {}

    def check(
        self,
        endpoint: Endpoint,
        model: ModelInterface,
        samples: Sequence[Sample],
        candidate: Candidate,
    ) -> str:
        chosen = self._by_variant.get(str(candidate.get(VARIANT)), self._otherwise)
        return chosen.check(endpoint, model, samples)


def output_check(
    model: ServedModel,
    tolerance: Tolerance | None = None,
    *,
    joins: bool = True,
    connect: Connect = HttpInfer,
    python: Callable[[], ServerPython] = this_python,
) -> ByVariant:
    """The check of a model and its variants; ``tolerance`` and ``joins`` as `DirectOutputCheck`
    says, ``python`` gives the one that PyTorch models are run directly by.

    What ONNX Runtime serves on the CPU is compared with the same file run here, and what PyTorch
    serves with the same file run by PyTorch in a process of its own. Another engine on a GPU
    computes otherwise than any runtime here could: of its answers only `BasicOutputCheck` is asked,
    and how good they are is the accuracy gate's to say.
    """

    def of(onnx: Path | None, torch: Path | None, allowed: Tolerance | None) -> Check:
        if onnx is not None:
            return OnnxOutputCheck(onnx, allowed, joins=joins, connect=connect, config=model.config)
        if torch is not None:
            return TorchOutputCheck(
                file=torch,
                config=model.config,
                python=python,
                tolerance=allowed,
                joins=joins,
                connect=connect,
            )
        return BasicOutputCheck(allowed, connect=connect)

    def of_artefact(artefact: Artefact) -> Check:
        engine, precision = artefact.variant.engine, artefact.variant.precision
        return of(
            artefact.path if engine is Engine.ONNXRUNTIME else None,
            artefact.path if engine is Engine.PYTORCH else None,
            _allowed(tolerance, precision),
        )

    others = {name: each for name, each in model.artefacts.items() if not each.own}
    checks = {name: of_artefact(each) for name, each in others.items()}
    own = _allowed(tolerance, Precision.TF32) if in_tf32(model) else tolerance
    return ByVariant(of(model.onnx, model.torch, own), checks)


_LOOSER = {
    Precision.FP16: TOLERANCES["FP16"],
    Precision.BF16: TOLERANCES["FP16"],
    Precision.TF32: TOLERANCES["FP16"],
}
"""Of variants that compute in less than what they answer in; TF32 has the digits of fp16."""


def _allowed(given: Tolerance | None, precision: Precision) -> Tolerance:
    """What the study says; where that is nothing, what the precision's digits give."""
    if given is not None and given != Tolerance():
        return given
    return _LOOSER.get(precision, Tolerance())


class DirectOutputCheck:
    """Compares served answers with the same file run directly.

    Each sample is sent alone, then all of them at once, so that a dynamic batcher joins them.
    ``tolerance`` overrides the datatype's own (`TOLERANCES`). ``joins``: requests will be joined in
    batches, so that a model whose answer for a sample depends on its batch mates is refused.
    ``config`` is the model's, which may reshape what it is given and what it gives.
    """

    def __init__(
        self,
        direct: Direct,
        tolerance: Tolerance | None = None,
        *,
        joins: bool = True,
        connect: Connect = HttpInfer,
        config: ModelConfig | None = None,
    ) -> None:
        self._direct = direct
        self._config = config or ModelConfig()
        self._joins = joins
        self._tolerance = tolerance or Tolerance()
        self._connect = connect

    def check(self, endpoint: Endpoint, model: ModelInterface, samples: Sequence[Sample]) -> str:
        """Say in a line what was compared. OutputsDiffer with both values if they differ;
        InputRefused if the samples are not what the model takes.
        """
        samples = _some(samples)
        given = [dict(to_model(self._config, sample)) for sample in samples]
        expected = [self._as_served(model, each) for each in self._run_directly(model, given)]
        infer = self._connect(endpoint, model)
        worst = 0.0
        for at_once in (1, len(samples)):
            answers = infer(samples, at_once=at_once)
            for index, (served, direct) in enumerate(zip(answers, expected, strict=True)):
                where = f"sample {index}" + (f", {at_once} at once" if at_once > 1 else "")
                worst = max(worst, compare(model, served, direct, self._tolerance, where))
        return (
            f"{2 * len(samples)} answers ({len(samples)} one by one, then {len(samples)} at once)"
            f" match {self._name}{self._direct.by}; largest difference {worst:.2g}"
        )

    @property
    def _name(self) -> str:
        return f"{self._direct.file.name} run directly"

    def _as_served(self, model: ModelInterface, direct: Outputs) -> Outputs:
        if not model.batched:
            return dict(from_model(self._config, direct))
        rows = {name: array[0] for name, array in direct.items()}
        return {name: array[np.newaxis] for name, array in from_model(self._config, rows).items()}

    def _run_directly(self, model: ModelInterface, samples: Sequence[Sample]) -> list[Outputs]:
        """Each sample's outputs. The first is run twice, and those that can be joined are, once."""
        feeds = [{name: _batched(a, model) for name, a in each.items()} for each in samples]
        alike = _alike(samples) if self._joins and model.batched else []
        runs = [*feeds, feeds[0]]
        if alike:
            runs.append(_joined([feeds[index] for index in alike]))
        try:
            found = self._direct(runs, [spec.name for spec in model.outputs])
        except NotRun as error:
            raise self._refused(error, len(feeds), len(alike)) from error
        results, again, together = found[: len(feeds)], found[len(feeds)], found[len(feeds) + 1 :]
        self._require_repeatable(model, again, results[0])
        for outputs in together:
            self._require_independent(model, alike, results, outputs)
        return results

    def _refused(self, error: NotRun, samples: int, joined: int) -> AutotuneError:
        if error.index > samples:
            return OutputsDiffer(
                f"{self._name} does not take {joined} samples in one batch: {error}",
                next_step=_UNBATCHED,
            )
        return InputRefused(
            f"{self._name} does not take sample {error.index % samples}: {error}",
            next_step="Check workload.inputs: names, shapes, datatypes, ranges.",
        )

    def _require_repeatable(self, model: ModelInterface, again: Outputs, once: Outputs) -> None:
        try:
            compare(model, again, once, self._tolerance, "again")
        except OutputsDiffer as error:
            raise OutputsDiffer(
                f"{self._name} answers one input differently each time: {error.rule}",
                value=error.value,
                next_step="There is nothing to compare with: give its random nodes a seed.",
            ) from error

    def _require_independent(
        self,
        model: ModelInterface,
        alike: Sequence[int],
        alone: Sequence[Outputs],
        together: Outputs,
    ) -> None:
        """A sample must get the same answer alone and in a batch: else batching changes results."""
        for row, index in enumerate(alike):
            mine = {name: array[row : row + 1] for name, array in together.items()}
            try:
                compare(model, mine, alone[index], self._tolerance, f"sample {index}")
            except OutputsDiffer as error:
                raise OutputsDiffer(
                    f"{self._name} answers otherwise for a sample in a batch of"
                    f" {len(alike)} than for the same alone: {error.rule}",
                    value=error.value,
                    next_step=_UNBATCHED,
                ) from error


_UNBATCHED = "Batching would change its results: leave max_batch_size at 1, and out of the space."


class OnnxOutputCheck(DirectOutputCheck):
    """With the same ONNX file run by ONNX Runtime, here."""

    def __init__(
        self,
        onnx: Path,
        tolerance: Tolerance | None = None,
        *,
        joins: bool = True,
        connect: Connect = HttpInfer,
        config: ModelConfig | None = None,
    ) -> None:
        super().__init__(OnnxDirect(onnx), tolerance, joins=joins, connect=connect, config=config)


@dataclass(frozen=True, kw_only=True)
class TorchOutputCheck:
    """`DirectOutputCheck` with the same file run by the PyTorch of a Python, which is looked for
    when there are answers; `BasicOutputCheck`, which then says why, where there is none."""

    file: Path
    config: ModelConfig
    python: Callable[[], ServerPython]
    tolerance: Tolerance | None = None
    joins: bool = True
    connect: Connect = HttpInfer

    def check(self, endpoint: Endpoint, model: ModelInterface, samples: Sequence[Sample]) -> str:
        return self._chosen.check(endpoint, model, samples)

    @cached_property
    def _chosen(self) -> Check:
        python = self.python()
        if python.torch() is None:
            why = f" ({python.where} has no PyTorch to run {self.file.name} with)"
            return BasicOutputCheck(self.tolerance, connect=self.connect, why=why)
        groups = self.config.instance_group or [ModelInstanceGroup()]
        on_gpu = any(group.kind != ModelInstanceGroup.KIND_CPU for group in groups)
        return DirectOutputCheck(
            TorchDirect(self.file, self.config, python, on_gpu=on_gpu),
            self.tolerance,
            joins=self.joins,
            connect=self.connect,
            config=self.config,
        )


class BasicOutputCheck:
    """What can be told of answers without a reference: their datatypes and shapes are the declared
    ones, they are not empty, not NaN, not the same whatever goes in, and, where the model gives the
    same answer twice, also the same when requests arrive at once. ``why``: there is no reference,
    in words that stand behind that.
    """

    def __init__(
        self,
        tolerance: Tolerance | None = None,
        *,
        connect: Connect = HttpInfer,
        why: str = "",
    ) -> None:
        self._tolerance = tolerance or Tolerance()
        self._connect = connect
        self._why = why

    def check(self, endpoint: Endpoint, model: ModelInterface, samples: Sequence[Sample]) -> str:
        """Say in a line what was looked at. OutputsDiffer with what is wrong."""
        samples = _some(samples)
        infer = self._connect(endpoint, model)
        first = infer(samples, at_once=1)
        for index, outputs in enumerate(first):
            _look_at(model, outputs, f"sample {index}")
        _require_something(first)
        _require_variety(samples, first)
        note = self._repeat(infer, model, samples, first)
        return (
            f"no reference to compare with{self._why}: {len(samples)} answers have the declared"
            f" datatypes and shapes, hold no NaN and differ between inputs; {note}"
        )

    def _repeat(
        self, infer: Infer, model: ModelInterface, samples: Sequence[Sample], first: list[Outputs]
    ) -> str:
        for again, once in zip(infer(samples, at_once=1), first, strict=True):
            try:
                compare(model, again, once, self._tolerance, "")
            except OutputsDiffer:
                return "the model answers differently each time, so no more can be told"
        answers = infer(samples, at_once=len(samples))
        for index, (served, once) in enumerate(zip(answers, first, strict=True)):
            where = f"sample {index}, {len(samples)} at once, against the same sent alone"
            compare(model, served, once, self._tolerance, where)
        return f"they are the same for {len(samples)} requests at once"


def _some(samples: Sequence[Sample]) -> Sequence[Sample]:
    if not samples:
        raise InputRefused("the output check needs at least one sample")
    return samples[:SAMPLES]


def _alike(samples: Sequence[Sample]) -> list[int]:
    """Those that can be joined with the first."""
    shapes = {name: array.shape for name, array in samples[0].items()}
    return [
        index
        for index, sample in enumerate(samples)
        if {name: array.shape for name, array in sample.items()} == shapes
    ]


def _joined(feeds: Sequence[Sample]) -> Sample:
    return {name: np.concatenate([feed[name] for feed in feeds]) for name in feeds[0]}


def _look_at(model: ModelInterface, outputs: Outputs, where: str) -> None:
    for spec in model.outputs:
        array = outputs[spec.name]
        shape = array.shape[1:] if model.batched else array.shape
        fits = len(shape) == len(spec.shape) and all(
            declared in (-1, size) for declared, size in zip(spec.shape, shape, strict=True)
        )
        wanted = np.dtype(NUMPY_DTYPES.get(spec.datatype, "float32"))
        if not fits or kind_of(array) != kind_of(np.empty(0, dtype=wanted)):
            raise OutputsDiffer(
                f"output {spec.name!r} ({where}) is declared {spec.datatype} of shape"
                f" {list(spec.shape)}, but is {kind_of(array)} of shape {list(shape)}",
                next_step=NEXT_STEP,
            )
        if array.dtype.kind == "f" and np.isnan(array).any():
            raise OutputsDiffer(
                f"output {spec.name!r} ({where}) holds {int(np.isnan(array).sum())} NaN of"
                f" {array.size} values",
                next_step="Do the inputs make sense to the model (workload.inputs)? " + NEXT_STEP,
            )


def _require_something(answers: list[Outputs]) -> None:
    if all(array.size == 0 for outputs in answers for array in outputs.values()):
        raise OutputsDiffer("all answers are empty", next_step=NEXT_STEP)


def _require_variety(samples: Sequence[Sample], answers: list[Outputs]) -> None:
    """Answers of floating-point numbers that are the same to the last bit, whatever goes in, come
    from inputs that were not read. (A label may well be the same for all of them.)
    """
    floats = [
        [array.tobytes() for array in outputs.values() if array.dtype.kind == "f"]
        for outputs in answers
    ]
    inputs = {str([(name, a.tolist()) for name, a in sorted(s.items())]) for s in samples}
    if len(inputs) > 1 and any(floats[0]) and all(each == floats[0] for each in floats):
        raise OutputsDiffer(
            f"{len(inputs)} different inputs all give the same answer, to the last bit",
            next_step=NEXT_STEP,
        )
