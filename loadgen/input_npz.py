"""Inputs from arrays in files: an ``.npz`` for all requests, or a folder with a file for each."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np

from autotune.core.errors import InputRefused
from autotune.core.model_interface import Sample
from loadgen.input_checks import (
    Tensor,
    Wanted,
    check_inputs,
    check_stated_shape,
    check_tensor,
    encoded,
)

SUFFIXES = (".npy", ".npz")


def read_npz(wanted: Wanted, path: Path) -> list[Sample]:
    """One array per input, whose first axis runs over samples."""
    arrays = _load_npz(path)
    check_inputs(wanted.model, arrays, str(path))
    columns = {
        name: _column(name, array, wanted, f"{path}, {name}") for name, array in arrays.items()
    }
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) != 1 or 0 in lengths.values():
        raise InputRefused(
            f"{path}: the first axis runs over samples and is equally long in every input",
            value=", ".join(f"{name}: {n}" for name, n in lengths.items()),
        )
    count = next(iter(lengths.values()))
    return [{name: column[i] for name, column in columns.items()} for i in range(count)]


def read_folder(wanted: Wanted, folder: Path) -> list[Sample]:
    """One request per file, in the order of their names: an ``.npy`` for a model of one input, an
    ``.npz`` with an array per input. Arrays have no batch dimension; other files are passed over.
    """
    try:
        files = sorted(file for file in folder.iterdir() if file.suffix in SUFFIXES)
    except OSError as exc:
        raise InputRefused(
            "the inputs folder cannot be read", value=str(folder), next_step=str(exc)
        ) from exc
    if not files:
        raise InputRefused(
            "the inputs folder holds no .npy and no .npz file",
            value=str(folder),
            next_step="one file per request, its arrays without the batch dimension",
        )
    return [_request(wanted, file) for file in files]


def _request(wanted: Wanted, file: Path) -> Sample:
    if file.suffix == ".npz":
        arrays = _load_npz(file)
    else:
        name = _only_input(wanted, file)
        arrays = {name: _load_npy(file)}
    check_inputs(wanted.model, arrays, str(file))
    return {name: _whole(name, array, wanted, f"{file}, {name}") for name, array in arrays.items()}


def _only_input(wanted: Wanted, file: Path) -> str:
    names = [tensor.name for tensor in wanted.model.inputs if not tensor.optional]
    if len(names) != 1:
        raise InputRefused(
            f"{file}: an .npy holds one array, and model {wanted.model.name} takes {len(names)}",
            value=", ".join(names),
            next_step="write one .npz per request: numpy.savez(file, INPUT=array, ...)",
        )
    return names[0]


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


def _load_npy(path: Path) -> Tensor:
    try:
        with path.open("rb") as file:
            array: Tensor = np.lib.format.read_array(file, allow_pickle=False)
    except (OSError, ValueError, EOFError) as exc:
        raise InputRefused(
            "the inputs file cannot be read as .npy (pickled objects are never loaded)",
            value=str(path),
            next_step=f"write it with numpy.save, strings as dtype S or U: {exc}",
        ) from exc
    return array


def _column(name: str, array: Tensor, wanted: Wanted, where: str) -> list[Tensor]:
    if array.ndim == 0:
        raise InputRefused(f"{where}: the first axis runs over samples", value="a scalar")
    tensor = wanted.tensor(name)
    check_tensor(tensor, array, array.shape[1:], where)
    check_stated_shape(name, array.shape[1:], wanted, where)
    if tensor.datatype == "BYTES":
        return list(encoded(array))
    return [np.asarray(row) for row in np.ascontiguousarray(array)]


def _whole(name: str, array: Tensor, wanted: Wanted, where: str) -> Tensor:
    tensor = wanted.tensor(name)
    check_tensor(tensor, array, array.shape, where)
    check_stated_shape(name, array.shape, wanted, where)
    return encoded(array) if tensor.datatype == "BYTES" else np.ascontiguousarray(array)
