"""Request bodies, built once: Triton's HTTP binary format, ready to be posted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tritonclient.http import InferenceServerClient, InferInput, InferRequestedOutput
from tritonclient.utils import InferenceServerException

from autotune.core.errors import InputRefused
from autotune.core.model_interface import ModelInterface, Sample


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    """``content`` begins with ``json_size`` bytes of JSON; None means that it is JSON alone."""

    content: bytes
    json_size: int | None


def build_bodies(model: ModelInterface, samples: Sequence[Sample]) -> list[Body]:
    """One body per sample, with a batch dimension of 1 where the model is batched and every
    output asked for in binary. InputRefused for no sample or one that the model cannot take."""
    if not samples:
        raise InputRefused("load needs at least one sample of inputs")
    return [_body(model, sample) for sample in samples]


def _body(model: ModelInterface, sample: Sample) -> Body:
    outputs = [InferRequestedOutput(output.name, binary_data=True) for output in model.outputs]
    content, json_size = InferenceServerClient.generate_request_body(
        [_tensor(model, name, array) for name, array in sample.items()], outputs=outputs
    )
    return Body(content=content, json_size=json_size)


def _tensor(
    model: ModelInterface, name: str, array: np.ndarray[tuple[int, ...], np.dtype[np.generic]]
) -> InferInput:
    datatypes = {tensor.name: tensor.datatype for tensor in model.inputs}
    if name not in datatypes:
        raise InputRefused(f"model {model.name} has no such input", value=name)
    batch = array[np.newaxis] if model.batched else array
    tensor = InferInput(name, list(batch.shape), datatypes[name])
    try:
        tensor.set_data_from_numpy(batch, binary_data=True)
    except InferenceServerException as exc:
        raise InputRefused(
            f"input {name} does not fit model {model.name}", next_step=str(exc)
        ) from exc
    return tensor


def save_bodies(bodies: Sequence[Body], path: Path) -> None:
    """Write the bodies for the worker process: plain arrays, nothing pickled."""
    joined = np.frombuffer(b"".join(body.content for body in bodies), dtype=np.uint8)
    lengths = np.array([len(body.content) for body in bodies], dtype=np.int64)
    sizes = [-1 if body.json_size is None else body.json_size for body in bodies]
    np.savez(path, content=joined, lengths=lengths, json_sizes=np.array(sizes, dtype=np.int64))


def load_bodies(path: Path) -> list[Body]:
    with np.load(path, allow_pickle=False) as archive:
        content = archive["content"].tobytes()
        ends = np.cumsum(archive["lengths"]).tolist()
        sizes = archive["json_sizes"].tolist()
    starts = [0, *ends[:-1]]
    return [
        Body(content=content[start:end], json_size=None if size < 0 else size)
        for start, end, size in zip(starts, ends, sizes, strict=True)
    ]
