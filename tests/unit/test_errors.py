"""How errors are worded."""

from __future__ import annotations

import pickle
from collections.abc import Iterator

import pytest

from autotune.adapters.telemetry import parts
from autotune.adapters.triton import control, libpython, local  # noqa: F401 - have theirs
from autotune.core.errors import AutotuneError, InputRefused
from autotune.tuner import recorder  # noqa: F401 - has its own


def errors(of: type[AutotuneError] = AutotuneError) -> Iterator[type[AutotuneError]]:
    if not of.__module__.startswith("tests"):
        yield of
    for each in of.__subclasses__():
        yield from errors(each)


def made(error: type[AutotuneError]) -> AutotuneError:
    return error() if error is parts.DriverHangs else error("rule", value="got", next_step="next")


@pytest.mark.parametrize("error", sorted(set(errors()), key=lambda each: each.__name__))
def test_each_error_is_the_same_when_it_comes_from_a_node(error: type[AutotuneError]) -> None:
    before = made(error)
    after = pickle.loads(pickle.dumps(before))
    assert type(after) is error
    assert (str(after), after.rule, after.next_step) == (
        str(before),
        before.rule,
        before.next_step,
    )


def test_a_value_of_several_lines_is_told_in_lines() -> None:
    error = InputRefused("pip failed", value="ERROR: one\nERROR: two\n", next_step="mend it")
    assert str(error) == "pip failed:\n    ERROR: one\n    ERROR: two\n  mend it"


def test_a_value_of_one_line_is_told_in_the_sentence() -> None:
    assert str(InputRefused("no such metric", value="top")) == "no such metric (got 'top')"
