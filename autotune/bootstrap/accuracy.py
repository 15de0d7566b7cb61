"""A study's accuracy metric: built in, or the user's own function, and the right answers."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from modulefinder import ModuleFinder
from pathlib import Path
from typing import Any

import numpy as np

from autotune.adapters.hashes import sha256_of
from autotune.core.accuracy import METRICS, Accuracy, Answer, UserScore
from autotune.core.errors import InputRefused
from autotune.core.model_interface import ModelInterface, Sample
from autotune.core.study import AccuracySpec, Study
from loadgen.input_python import load_function, users_own
from loadgen.inputs import build_samples

EXPECTED_KEY = "accuracy.expected"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """``accuracy`` holds answers to the ``requests`` against the source's. ``named`` tells what it
    computes, as text: equal for equal metrics, right answers and functions."""

    accuracy: Accuracy
    requests: Sequence[Sample]
    named: str


def asked(study: Study, interface: ModelInterface) -> Asked:
    """What the study asks of its variants' answers; cosine on the workload's inputs where it says
    nothing. InputRefused for a function or answers that cannot be used."""
    spec = study.accuracy or AccuracySpec()
    if spec.data is None:
        every = build_samples(interface, study.workload.inputs, seed=study.seed)
    else:
        every = build_samples(interface, spec.data, seed=study.seed, key="accuracy.data")
    requests = every[: spec.samples]
    expected = None if spec.expected is None else _expected(spec.expected, len(every))
    function = None if spec.metric in METRICS else _function(spec.metric)
    return Asked(
        accuracy=Accuracy(
            metric=spec.metric,
            output=spec.output,
            expected=None if expected is None else expected[: len(requests)],
            function=function,
        ),
        requests=requests,
        named=json.dumps(
            {
                "metric": spec.metric,
                "output": spec.output,
                "expected": None if spec.expected is None else sha256_of(spec.expected),
                "function": None if function is None else _code_of(_file_of(spec.metric)),
            },
            sort_keys=True,
        ),
    )


# ------------------------------------------------------------------------ the user's function
def _function(metric: str) -> UserScore:
    path, name = _file_of(metric), metric.rpartition(":")[2]
    function = load_function(path, name)
    where = f"the accuracy metric {name} of {path}"
    called = (
        f"it is called as {name}(outputs, expected) and returns a score, higher is better; outputs"
        " holds a mapping from output name to array for each request"
    )

    def score(outputs: Sequence[Answer], expected: Sequence[Any] | None) -> float:
        # Copies: what it changes would be changed for every later variant.
        given = [{key: array.copy() for key, array in each.items()} for each in outputs]
        right = None if expected is None else copy.deepcopy(list(expected))
        try:
            with users_own(path, where):
                answer = function(given, right)
                text = isinstance(answer, str | bytes)  # "0.9" would pass for a number
                value = math.nan if text else float(answer)
        except InputRefused as refused:
            raise InputRefused(
                refused.rule, value=refused.value, next_step=refused.next_step or called
            ) from refused
        if not math.isfinite(value):
            raise InputRefused(f"{where} gives no number", value=answer, next_step=called)
        return value

    return score


def _file_of(metric: str) -> Path:
    return Path(metric.rpartition(":")[0])


def _code_of(path: Path) -> Mapping[str, str]:
    """SHA-256 of the function's file and of all that it imports from its folder, by name."""
    finder = ModuleFinder(path=[str(path.parent)])
    finder.run_script(str(path))
    found = {name: getattr(each, "__file__", None) for name, each in finder.modules.items()}
    return {name: sha256_of(Path(file)) for name, file in sorted(found.items()) if file}


# -------------------------------------------------------------------------- the right answers
def _expected(path: Path, requests: int) -> Sequence[Any]:
    """One right answer for each evaluation request: the lines of a .txt, a list in a .json, or the
    first axis of a .npy, or of the one array of an .npz."""
    answers = _read(path)
    if len(answers) != requests:
        raise InputRefused(
            f"{EXPECTED_KEY} holds one right answer for each evaluation request",
            value=f"{path.name}: {len(answers)} answers, {requests} requests",
        )
    return answers


def _read(path: Path) -> Sequence[Any]:
    try:
        if path.suffix == ".json":
            found = json.loads(path.read_text(encoding="utf-8"))
            answers: Sequence[Any] | None = found if isinstance(found, list) else None
        elif path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as archive:
                arrays = [archive[name] for name in archive.files]
            answers = list(arrays[0]) if len(arrays) == 1 else None
        elif path.suffix == ".npy":
            answers = list(np.load(path, allow_pickle=False))
        elif path.suffix == ".txt":
            # As an editor counts lines: `splitlines` ends them at a form feed, too.
            lines = path.read_text(encoding="utf-8").split("\n")
            answers = lines[:-1] if lines[-1] == "" else lines
        else:
            answers = None
    except (OSError, ValueError, TypeError) as error:
        raise InputRefused(f"{EXPECTED_KEY} cannot be read: {error}", value=str(path)) from error
    if answers is None:
        raise InputRefused(
            f"{EXPECTED_KEY} is a .txt with an answer on each line, a .json with a list, a .npy, or"
            " an .npz with one array",
            value=str(path),
        )
    return answers
