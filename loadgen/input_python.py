"""Inputs that a function of the user's makes: ``FILE.py:FUNCTION``, called in this process."""

from __future__ import annotations

import difflib
import hashlib
import importlib.util
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from autotune.core.errors import InputRefused
from autotune.core.model_interface import Sample, TensorSpec
from loadgen.input_checks import (
    Tensor,
    Wanted,
    bytes_array,
    check_inputs,
    check_shape,
    check_stated_shape,
    check_tensor,
    encoded,
)


def read_python(wanted: Wanted, path: Path, seed: int) -> list[Sample]:
    """What ``function(count, seed)`` returns: a list of requests, each a mapping from input name to
    array without the batch dimension. A BYTES input takes ``bytes`` or ``str``, alone where its
    shape is [1], in an array or in nested lists. InputRefused for an error of the user's code,
    with file, function, line and exception.
    """
    function = load_function(path, wanted.spec.function)
    where = f"{path}:{wanted.spec.function}"
    with users_own(path, where):
        answer = function(wanted.spec.count, seed)
        requests = list(answer) if _listed(answer) else None
    if requests is None:
        raise InputRefused(
            f"{where} returns a list of requests, each a mapping from input name to array",
            value=type(answer).__name__,
        )
    if not requests:
        raise InputRefused(f"{where} returned no request", value=f"count {wanted.spec.count}")
    return [_sample(wanted, each, f"{where}, request {i}") for i, each in enumerate(requests)]


def load_function(path: Path, name: str) -> Callable[..., Any]:
    """A function of a Python file of the user's, which is run for it; its folder is importable
    meanwhile. InputRefused for a file that cannot be run or has no such function."""
    with users_own(path, str(path)):
        module = _module(path)
    function = getattr(module, name, None)
    if callable(function):
        return _importing_from(path, function)
    known = [key for key, value in vars(module).items() if callable(value) and key[:1] != "_"]
    near = difflib.get_close_matches(name, known, n=1) or known
    raise InputRefused(
        f"{path} has no such function",
        value=name,
        next_step=f"did you mean {', '.join(near)}?" if near else "it defines none",
    )


def _module(path: Path) -> ModuleType:
    name = f"autotune_user_{hashlib.sha256(str(path).encode()).hexdigest()[:16]}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None, "the study file's rules ask for a .py file"
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look their module up there
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _importing_from(path: Path, function: Callable[..., Any]) -> Callable[..., Any]:
    def called(*arguments: Any) -> Any:
        with _folder_on_path(path):
            return function(*arguments)

    return called


@contextmanager
def users_own(path: Path, where: str) -> Iterator[None]:
    """Runs the user's code: what it raises is refused, what it prints is kept off standard output,
    which is the tool's own."""
    try:
        with _folder_on_path(path), redirect_stdout(sys.stderr):
            yield
    except (Exception, SystemExit) as exc:
        line = _line(exc, path)
        raise InputRefused(
            f"{where} failed" + (f" in line {line}" if line else ""),
            value=f"{type(exc).__name__}: {exc}",
            next_step="it runs in autotune's own environment: install it there"
            if isinstance(exc, ModuleNotFoundError)
            else "",
        ) from exc


@contextmanager
def _folder_on_path(path: Path) -> Iterator[None]:
    folder = str(path.parent)
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        with suppress(ValueError):
            sys.path.remove(folder)


def _line(exc: BaseException, path: Path) -> int | None:
    """The last line of the user's own file that led to it."""
    if isinstance(exc, SyntaxError):
        return exc.lineno
    frames = traceback.extract_tb(exc.__traceback__)
    own = [frame.lineno for frame in frames if Path(frame.filename) == path]
    return own[-1] if own else None


def _listed(answer: object) -> bool:
    """Whether it holds requests, one after the other; a generator does too."""
    return isinstance(answer, Sequence | Iterator) and not isinstance(answer, str | bytes)


def _sample(wanted: Wanted, request: object, where: str) -> Sample:
    if not isinstance(request, Mapping):
        raise InputRefused(f"{where} must map input names to arrays", value=type(request).__name__)
    check_inputs(wanted.model, request, where)
    sample = {
        name: _tensor(wanted.tensor(name), value, f"{where}, {name}")
        for name, value in request.items()
    }
    for name, array in sample.items():
        check_stated_shape(name, array.shape, wanted, f"{where}, {name}")
    return sample


def _tensor(tensor: TensorSpec, value: object, where: str) -> Tensor:
    if tensor.datatype == "BYTES":
        array = _bytes(value, where)
        check_shape(tensor, array.shape, where)
        return array
    if not isinstance(value, np.ndarray | np.generic):
        raise InputRefused(f"{where} must be a NumPy array", value=type(value).__name__)
    array = np.ascontiguousarray(value).reshape(np.shape(value))
    check_tensor(tensor, array, array.shape, where)
    return array


def _bytes(value: object, where: str) -> Tensor:
    """Bytes as they are, a final NUL included, which NumPy's own strings would lose."""
    if isinstance(value, bytes | str):
        value = [value]
    array = np.asarray(value) if isinstance(value, np.ndarray) else np.array(value, dtype=object)
    if array.dtype.kind in "SU":
        return encoded(array)
    elements = [each.encode() if isinstance(each, str) else each for each in array.ravel()]
    wrong = next((each for each in elements if not isinstance(each, bytes)), None)
    if array.dtype.kind != "O" or wrong is not None:
        raise InputRefused(
            f"{where}: BYTES takes bytes or strings", value=type(wrong or array.flat[0]).__name__
        )
    return bytes_array(elements, array.shape)
