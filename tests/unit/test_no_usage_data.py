"""ONNX Runtime's usage data, which it sends unless its environment says otherwise."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import onnxruntime
import pytest

TOLD = "import os, autotune; print(os.environ['ORT_DISABLE_TELEMETRY'])"


@pytest.mark.parametrize(("given", "told"), [(None, "1"), ("0", "0")])
def test_no_process_of_autotune_sends_usage_data_unless_its_user_says_so(
    given: str | None, told: str
) -> None:
    """Its server and its load generator inherit the variable."""
    unset = {key: value for key, value in os.environ.items() if key != "ORT_DISABLE_TELEMETRY"}
    variables = unset if given is None else {**unset, "ORT_DISABLE_TELEMETRY": given}
    command = [sys.executable, "-c", TOLD]
    assert subprocess.check_output(command, env=variables, text=True).strip() == told


def test_the_variable_is_the_one_that_this_onnx_runtime_heeds() -> None:
    """It had another name in an earlier version."""
    (library,) = (Path(onnxruntime.__file__).parent / "capi").glob("onnxruntime_pybind11_state*.so")
    assert b"ORT_DISABLE_TELEMETRY" in library.read_bytes()
