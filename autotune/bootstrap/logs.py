"""The service's log: one event a line, ``key=value`` or JSON, on standard error.

What libraries log by `logging` comes out in the same form. Keys that name secrets, tokens and the
user part of addresses are masked, whoever logs them.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Mapping, MutableMapping, Sequence
from enum import StrEnum
from typing import Any, TextIO

import structlog
from structlog.typing import Processor

MASK = "…"
_SECRET_KEY = re.compile(r"(?i)authorization|cookie|token|secret|password|query|webhook|smtp")
_TOKEN = re.compile(r"at_[A-Za-z0-9_-]{20,}")
_USER_PART = re.compile(r"(?<=://)[^/\s@]+@")
_CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]")
_LEADING = ("time", "level", "event")


class LogFormat(StrEnum):
    TEXT = "text"
    JSON = "json"


def set_up_logs(form: LogFormat, *, to: TextIO | None = None) -> None:
    """For this process, from now on."""
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
        structlog.processors.format_exc_info,
        without_secrets,
    ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(to or sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                *_rendering(form),
            ],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.INFO)
    for name in ("apscheduler", "alembic", "uvicorn.error"):
        logging.getLogger(name).setLevel(logging.WARNING)


def _rendering(form: LogFormat) -> Sequence[Processor]:
    if form is LogFormat.JSON:
        return (structlog.processors.JSONRenderer(ensure_ascii=False, default=str),)
    text = structlog.processors.LogfmtRenderer(key_order=_LEADING, drop_missing=True)
    return _without_controls, text


def _without_controls(
    _logger: Any, _method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """What would move a terminal's cursor is written out; ends of lines the renderer sees to."""
    for key, value in event.items():
        if isinstance(value, str):
            event[key] = _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", value)
    return event


def without_secrets(
    _logger: Any, _method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    for key, value in event.items():
        event[key] = MASK if key != "event" and _SECRET_KEY.search(key) else _masked(value)
    return event


def _masked(value: Any) -> Any:
    """Within lists and mappings, too."""
    if isinstance(value, str):
        return masked(value)
    if isinstance(value, Mapping):
        return {
            key: MASK if _SECRET_KEY.search(str(key)) else _masked(one)
            for key, one in value.items()
        }
    if isinstance(value, list | tuple):
        return [_masked(one) for one in value]
    return value


def masked(text: str) -> str:
    """Without tokens, and without users and passwords of addresses."""
    return _USER_PART.sub(f"{MASK}@", _TOKEN.sub(MASK, text))
