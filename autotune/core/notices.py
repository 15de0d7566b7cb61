"""Notices: what someone should hear of without asking."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Event(StrEnum):
    BETTER = "better"
    """A better configuration was found (promoted, proposed, or only told of)."""
    DRIFT = "drift"
    """The champion is no longer what it was."""
    SLA_LOST = "sla_lost"
    """No candidate meets the SLA any more."""
    FAILURE = "failure"
    """A run, a job or a promotion failed."""
    ROLLED_BACK = "rolled_back"
    UNDECIDED = "undecided"
    """What was promoted is in service, and its check there left open whether it keeps its SLA."""


class NoticeState(StrEnum):
    WAITING = "waiting"
    SENT = "sent"
    FAILED = "failed"
    """Tried as often as it is worth, or there was no channel to send it by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """``title`` in one line, ``text`` in a few; ``payload`` is the whole of it as plain data.
    ``channel`` names one of the configured channels (``webhook``, ``email``), or is ``none`` where
    none is; never its address: that may be a secret."""

    id: int
    event: Event
    title: str
    text: str
    channel: str
    created_at: float
    payload: Mapping[str, Any] = field(default_factory=dict)
    state: NoticeState = NoticeState.WAITING
    attempts: int = 0
    sent_at: float | None = None
    error: str = ""


def scrubbed(data: Any, secrets: Collection[str]) -> Any:
    """Plain data with every secret in its texts hidden. What holds another comes first."""
    if isinstance(data, str):
        for secret in sorted(filter(None, secrets), key=len, reverse=True):
            data = data.replace(secret, "***")
        return data
    if isinstance(data, Mapping):
        return {key: scrubbed(value, secrets) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [scrubbed(each, secrets) for each in data]
    return data
