"""Inputs from an ``.npz``: one array per input, whose first axis runs over samples."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np

from autotune.core.errors import InputRefused
from autotune.core.model_interface import NUMPY_DTYPES, ModelInterface, Sample, TensorSpec
from autotune.core.workload import InputSpec
from loadgen.input_checks import SHAPES_KEY, Tensor, bytes_array, check_inputs, check_shape


def read_npz(model: ModelInterface, spec: InputSpec, path: Path) -> list[Sample]:
    arrays = _load_npz(path)
    check_inputs(model, arrays, str(path))
    tensors = {tensor.name: tensor for tensor in model.inputs}
    columns = {
        name: _npz_column(tensors[name], spec, array, f"{path}, {name}")
        for name, array in arrays.items()
    }
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) != 1 or 0 in lengths.values():
        raise InputRefused(
            f"{path}: the first axis runs over samples and is equally long in every input",
            value=", ".join(f"{name}: {n}" for name, n in lengths.items()),
        )
    count = next(iter(lengths.values()))
    return [{name: column[i] for name, column in columns.items()} for i in range(count)]


def _load_npz(path: Path) -> dict[str, Tensor]:
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except (OSError, ValueError, EOFError, AttributeError, TypeError, zipfile.BadZipFile) as exc:
        raise InputRefused(
            "the inputs file cannot be read as .npz (pickled objects are never loaded)",
            value=str(path),
            next_step=f"write it with numpy.savez, strings as dtype S or U: {exc}",
        ) from exc


def _npz_column(tensor: TensorSpec, spec: InputSpec, array: Tensor, where: str) -> list[Tensor]:
    if array.ndim == 0:
        raise InputRefused(f"{where}: the first axis runs over samples", value="a scalar")
    check_shape(tensor, array.shape[1:], where)
    if tensor.name in spec.shapes and array.shape[1:] != tuple(spec.shapes[tensor.name]):
        raise InputRefused(
            f"{where}: {SHAPES_KEY} says {list(spec.shapes[tensor.name])}",
            value=str(list(array.shape[1:])),
        )
    if tensor.datatype == "BYTES":
        if array.dtype.kind not in "SU":
            raise InputRefused(
                f"{where}: BYTES takes strings (dtype S or U)", value=str(array.dtype)
            )
        if array.dtype.kind == "U":
            array = np.char.encode(array.astype(np.str_), "utf-8")
        return [bytes_array(row.ravel().tolist(), row.shape) for row in array]
    wanted = np.dtype(NUMPY_DTYPES[tensor.datatype])
    if array.dtype != wanted:
        raise InputRefused(
            f"{where}: {tensor.datatype} takes dtype {wanted}",
            value=str(array.dtype),
            next_step=f"convert it with .astype('{wanted}')",
        )
    return [np.asarray(row) for row in np.ascontiguousarray(array)]
