"""How errors are worded."""

from __future__ import annotations

from autotune.core.errors import InputRefused


def test_a_value_of_several_lines_is_told_in_lines() -> None:
    error = InputRefused("pip failed", value="ERROR: one\nERROR: two\n", next_step="mend it")
    assert str(error) == "pip failed:\n    ERROR: one\n    ERROR: two\n  mend it"


def test_a_value_of_one_line_is_told_in_the_sentence() -> None:
    assert str(InputRefused("no such metric", value="top")) == "no such metric (got 'top')"
