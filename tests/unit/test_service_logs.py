"""The service's log: its two forms, and what it does not tell."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from autotune.bootstrap.logs import LogFormat, set_up_logs

SECRET = "at_" + "s3cr3t" * 6


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    yield
    root.handlers, root.level = before, level
    structlog.reset_defaults()


def told(form: LogFormat, event: str, **values: Any) -> str:
    sink = io.StringIO()
    set_up_logs(form, to=sink)
    structlog.get_logger("autotune.test").info(event, **values)
    return sink.getvalue()


def test_json_is_one_document_a_line() -> None:
    line = json.loads(told(LogFormat.JSON, "job begins", job=3))
    assert line.pop("time").endswith("Z")
    assert line == {"event": "job begins", "level": "info", "job": 3}


def test_text_is_one_line_whatever_it_holds() -> None:
    text = told(LogFormat.TEXT, "job ends", reason='a "b"\nlevel=error')
    assert text.count("\n") == 1
    assert text.startswith("time=")
    assert 'event="job ends" reason="a \\"b\\"\\nlevel=error"' in text


def test_what_moves_a_terminals_cursor_is_written_out() -> None:
    text = told(LogFormat.TEXT, "job ends", reason="\x1b[2Jgone\r")
    assert text.endswith("reason=\\x1b[2Jgone\\x0d\n")


def test_the_id_of_a_request_is_in_every_line_of_it() -> None:
    with structlog.contextvars.bound_contextvars(request_id="abc"):
        assert json.loads(told(LogFormat.JSON, "x"))["request_id"] == "abc"


@pytest.mark.parametrize("form", list(LogFormat))
@pytest.mark.parametrize(
    "values",
    [
        {"authorization": SECRET},
        {"Cookie": f"autotune_session={SECRET}"},
        {"query": f"token={SECRET}"},
        {"why": f"cannot use {SECRET}"},
        {"url": f"postgresql://autotune:{SECRET}@host/db"},
        {"smtp_password": SECRET},
        {"addresses": [f"http://me:{SECRET}@host"]},
        {"asked": {"token": "x", "url": ({"at": f"http://{SECRET}@host"},)}},
    ],
)
def test_secrets_are_masked(form: LogFormat, values: dict[str, Any]) -> None:
    assert SECRET not in told(form, "something", **values)


def test_what_libraries_log_has_the_same_form_and_mask() -> None:
    sink = io.StringIO()
    set_up_logs(LogFormat.JSON, to=sink)
    logging.getLogger("some.library").warning("no answer from %s", f"http://u:{SECRET}@host")
    line = json.loads(sink.getvalue())
    assert line["event"] == "no answer from http://…@host"
    assert line["level"] == "warning"
