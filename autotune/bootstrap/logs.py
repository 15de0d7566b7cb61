"""The service's log: one event a line, ``key=value`` or JSON, on standard error.

What libraries log by `logging` comes out in the same form. Keys that name secrets, tokens and the
user part of addresses are masked, whoever logs them.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import MutableMapping
from enum import StrEnum
from typing import Any, TextIO

import structlog
from structlog.typing import Processor

MASK = "…"
_SECRET_KEY = re.compile(r"(?i)authorization|cookie|token|secret|password|query|webhook|smtp")
_TOKEN = re.compile(r"at_[A-Za-z0-9_-]{20,}")
_USER_PART = re.compile(r"(?<=://)[^/\s@]+@")
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
                _renderer(form),
            ],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.INFO)
    for name in ("apscheduler", "alembic", "uvicorn.error"):
        logging.getLogger(name).setLevel(logging.WARNING)


def _renderer(form: LogFormat) -> Processor:
    if form is LogFormat.JSON:
        return structlog.processors.JSONRenderer(ensure_ascii=False, default=str)
    return structlog.processors.LogfmtRenderer(key_order=_LEADING, drop_missing=True)


def without_secrets(
    _logger: Any, _method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    for key, value in event.items():
        if key != "event" and _SECRET_KEY.search(key):
            event[key] = MASK
        elif isinstance(value, str):
            event[key] = masked(value)
    return event


def masked(text: str) -> str:
    """Without tokens, and without users and passwords of addresses."""
    return _USER_PART.sub(f"{MASK}@", _TOKEN.sub(MASK, text))
