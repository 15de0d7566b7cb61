"""What a model and its variants answer to evaluation requests, without a load.

A model that is tuned alone is asked in ONNX Runtime. Of a pipeline each step is asked in turn on a
server that serves it as it was found, so that what goes into a step is what goes into it in
service, and what becomes of a variant's answers is seen at the pipeline's end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
from tritonclient.grpc.model_config_pb2 import DataType

from autotune.adapters.triton.config import ModelConfig
from autotune.adapters.triton.dag import Dag, Walk, Wire
from autotune.adapters.triton.reference import Connect, HttpInfer
from autotune.adapters.triton.repository import ServedModel
from autotune.adapters.triton.reshapes import from_model, to_model
from autotune.adapters.variants.running import Runner
from autotune.core.accuracy import Accuracy, Answer
from autotune.core.errors import CandidateFailed, InputRefused
from autotune.core.model_interface import Endpoint, ModelInterface, Sample, TensorSpec

AT_ONCE = 8
"""Open requests while answers are asked for."""


class Evaluated(Protocol):
    """A model whose answers can be had, with variants in place of its parts."""

    def inputs(self, step: str, requests: Sequence[Sample]) -> Sequence[Sample]:
        """What requests of the tuned model bring to a step (the empty name: the model itself), in
        the shapes that its file takes."""

    def answers(self, requests: Sequence[Sample]) -> Sequence[Answer]:
        """The source's answers."""

    def answers_with(
        self, step: str, requests: Sequence[Sample], outputs: Sequence[Answer]
    ) -> Sequence[Answer]:
        """The answers where a step's file gave these outputs to `inputs`, in order."""


class Alone:
    """A model from an ONNX file, of whose outputs a server gives what its configuration declares.
    InputRefused where that declares what the file does not have."""

    def __init__(self, model: ServedModel) -> None:
        assert model.onnx is not None, "another model is asked on a server"
        self._runner = Runner(model.onnx)
        self._config = model.config
        self._outputs = [output.name for output in model.config.output]
        lacking = [name for name in self._outputs if name not in self._runner.signature.outputs]
        if lacking:
            raise InputRefused(
                f"the configuration of {model.name} declares outputs that {model.onnx.name} does"
                " not have",
                value=", ".join(lacking),
                next_step=f"It has {', '.join(self._runner.signature.outputs)}.",
            )

    def inputs(self, step: str, requests: Sequence[Sample]) -> Sequence[Sample]:  # noqa: ARG002
        return [dict(to_model(self._config, request)) for request in requests]

    def answers(self, requests: Sequence[Sample]) -> Sequence[Answer]:
        try:
            outputs = [self._runner(sample) for sample in self.inputs("", requests)]
            return self.answers_with("", requests, outputs)
        except Exception as error:  # ONNX Runtime's exceptions have no base class of their own
            raise InputRefused(
                f"the source model does not take an evaluation request: {error}",
                next_step="Check accuracy.data (or workload.inputs): names, shapes, ranges.",
            ) from error

    def answers_with(
        self,
        step: str,  # noqa: ARG002
        requests: Sequence[Sample],  # noqa: ARG002
        outputs: Sequence[Answer],
    ) -> Sequence[Answer]:
        declared = [{name: each[name] for name in self._outputs} for each in outputs]
        return [from_model(self._config, each) for each in declared]


class Served:
    """A pipeline, or any other model, on a server that serves it as it was found."""

    def __init__(
        self, model: ServedModel, endpoint: Endpoint, *, connect: Connect = HttpInfer
    ) -> None:
        models = {**model.composing, model.name: model}
        self._configs = {name: each.config for name, each in models.items()}
        self._batched = model.config.max_batch_size > 0
        self._dag = Dag.of(model.name, self._configs)
        self._name = model.name
        self._endpoint = endpoint
        self._connect = connect
        self._walks: dict[int, tuple[Sequence[Sample], Walk]] = {}

    def inputs(self, step: str, requests: Sequence[Sample]) -> Sequence[Sample]:
        name = step or self._name
        calls = self._walk(requests).of(name)
        config, batched = self._configs[name], self._takes_batches(name)
        return [
            dict(to_model(config, _unbatched(wire, batched, name)))
            for call in calls
            for wire in call.inputs
        ]

    def answers(self, requests: Sequence[Sample]) -> Sequence[Answer]:
        return self._plain(self._walk(requests))

    def answers_with(
        self, step: str, requests: Sequence[Sample], outputs: Sequence[Answer]
    ) -> Sequence[Answer]:
        name = step or self._name
        config, batched = self._configs[name], self._takes_batches(name)
        wires = [_wire(from_model(config, each), batched=batched) for each in outputs]
        before = self._walk(requests)
        # The arrays of before, by which a step that is given nothing new is known.
        walk = self._dag.walk(before.sent, self._ask, before=before, replaced={name: wires})
        return self._plain(walk)

    def _walk(self, requests: Sequence[Sample]) -> Walk:
        """Of the same list of requests only once."""
        if id(requests) not in self._walks:
            sent = [_wire(request, batched=self._batched) for request in requests]
            walk = self._dag.walk(sent, self._ask)
            self._walks[id(requests)] = (requests, walk)  # held, so that its id stays its own
        return self._walks[id(requests)][1]

    def _plain(self, walk: Walk) -> Sequence[Answer]:
        return [_unbatched(wire, self._batched, self._name) for wire in walk.outputs]

    def _ask(self, name: str, requests: Sequence[Wire]) -> Sequence[Wire]:
        # Wires have their batch dimension already.
        interface = replace(interface_of(self._configs[name]), batched=False)
        ask = self._connect(self._endpoint, interface)
        return ask([dict(wire) for wire in requests], at_once=AT_ONCE)

    def _takes_batches(self, name: str) -> bool:
        return bool(self._configs[name].max_batch_size > 0)


class ServedGate:
    """Implements `ports.AccuracyGate`. ``source``: the source's answers to the ``requests``; None
    where only a server has them: those of the first candidate, the configuration found, then."""

    def __init__(
        self,
        accuracy: Accuracy,
        requests: Sequence[Sample],
        source: Sequence[Answer] | None = None,
        *,
        connect: Connect = HttpInfer,
    ) -> None:
        self._accuracy = accuracy
        self._requests = requests
        self._source = source
        self._connect = connect

    def drop(self, endpoint: Endpoint, model: ModelInterface) -> float:
        ask = self._connect(endpoint, model)
        wires = ask(self._requests, at_once=AT_ONCE)
        answers = [without_batch(wire, batched=model.batched) for wire in wires]
        if self._source is None:
            self._source = answers
        try:
            return self._accuracy.drop(answers, self._source)
        except InputRefused as refused:
            raise CandidateFailed(
                f"what it answers cannot be judged: {refused.rule}",
                value=refused.value,
                next_step=refused.next_step,
            ) from refused


def interface_of(config: ModelConfig) -> ModelInterface:
    """What a model takes and gives, by its configuration alone."""
    return ModelInterface(
        name=config.name,
        inputs=tuple(map(_spec, config.input)),
        outputs=tuple(map(_spec, config.output)),
        batched=config.max_batch_size > 0,
    )


def without_batch(answer: Mapping[str, np.ndarray], *, batched: bool) -> Answer:
    """An answer over the wire as one request's outputs."""
    return {name: array[0] for name, array in answer.items()} if batched else answer


def _spec(tensor: Any) -> TensorSpec:
    """Of a ``ModelInput`` or a ``ModelOutput``."""
    datatype = DataType.Name(tensor.data_type).removeprefix("TYPE_")
    return TensorSpec(
        name=tensor.name,
        datatype="BYTES" if datatype == "STRING" else datatype,
        shape=tuple(int(size) for size in tensor.dims),
        optional=bool(getattr(tensor, "optional", False)),
    )


def _wire(sample: Answer, *, batched: bool) -> Wire:
    return {name: array[np.newaxis] if batched else array for name, array in sample.items()}


def _unbatched(wire: Wire, batched: bool, name: str) -> Sample:
    if batched and any(array.shape[0] != 1 for array in wire.values()):
        raise InputRefused(
            f"one request brings several samples at once to the step {name}, whose variants can"
            " then not be held against it sample by sample",
            next_step="Take its variant out of the space.",
        )
    return dict(without_batch(wire, batched=batched))
