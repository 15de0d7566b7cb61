"""Tensors as requests bring them and as the model file sees them, where a configuration says
``reshape``: each without the batch dimension."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from autotune.adapters.triton.config import ModelConfig

Tensors = Mapping[str, NDArray[Any]]


def to_model(config: ModelConfig, sample: Tensors) -> Tensors:
    """A request's inputs as the model file takes them."""
    return _reshaped(sample, {t.name: (t.dims, t.reshape.shape) for t in _told(config.input)})


def from_model(config: ModelConfig, answer: Tensors) -> Tensors:
    """The model file's outputs as the server answers them."""
    return _reshaped(answer, {t.name: (t.reshape.shape, t.dims) for t in _told(config.output)})


def _told(tensors: Iterable[Any]) -> list[Any]:
    return [tensor for tensor in tensors if tensor.HasField("reshape")]


def _reshaped(
    tensors: Tensors, shapes: Mapping[str, tuple[Sequence[int], Sequence[int]]]
) -> Tensors:
    """The very same mapping where nothing is reshaped: a walk knows its tensors by identity."""
    if not shapes.keys() & tensors.keys():
        return tensors
    return {
        name: array.reshape(_shape(array, *shapes[name])) if name in shapes else array
        for name, array in tensors.items()
    }


def _shape(array: NDArray[Any], before: Sequence[int], after: Sequence[int]) -> tuple[int, ...]:
    """Sizes that a configuration leaves open, -1, go over in their order, as Triton has it."""
    open_sizes = iter([size for size, said in zip(array.shape, before, strict=False) if said == -1])
    return tuple(next(open_sizes, -1) if said == -1 else int(said) for said in after)
