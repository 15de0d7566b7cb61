"""Notices posted to a URL, as JSON that Slack and its like show, and programs read."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

import requests

from autotune.core.errors import DeliveryFailed, DeliveryRefused
from autotune.core.notices import Notice

TIMEOUT_S = 10.0
PATIENCE = {HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS}
"""Answers of the 400s that another try may change."""

# It logs the path of every request for debugging, and a webhook's path is its secret.
logging.getLogger("urllib3.connectionpool").setLevel(logging.ERROR)


@dataclass(frozen=True, slots=True, kw_only=True)
class Webhook:
    """Posts to ``url``, which is a secret: whoever knows it may post. No redirect is followed.

    DeliveryRefused, when something is to be delivered, for a URL that is none.
    """

    url: str = field(repr=False)
    timeout_s: float = TIMEOUT_S

    def deliver(self, notice: Notice) -> None:
        self._refuse_unusable()
        try:
            status = self._posted(document(notice))
        except requests.Timeout:
            raise DeliveryFailed(
                f"the webhook did not answer within {self.timeout_s:g} s"
            ) from None
        except requests.RequestException as exc:  # whose words hold the URL
            raise DeliveryFailed(
                f"the webhook could not be reached ({type(exc).__name__})",
                next_step="look at AUTOTUNE_WEBHOOK_URL and the network",
            ) from None
        _judge(status)

    def _posted(self, body: Mapping[str, Any]) -> int:
        with requests.post(
            self.url, json=body, timeout=self.timeout_s, allow_redirects=False, stream=True
        ) as answer:  # of which the body is not read: it may be of any length
            return int(answer.status_code)

    def _refuse_unusable(self) -> None:
        try:
            parts = urlsplit(self.url)
            usable = parts.scheme in {"http", "https"} and bool(parts.hostname)
        except ValueError:
            usable = False
        if not usable:
            raise DeliveryRefused("AUTOTUNE_WEBHOOK_URL is no http or https URL")


def document(notice: Notice) -> dict[str, Any]:
    """``text`` for people, in Slack's markup; the rest for programs."""
    return {
        "text": f"*{_escaped(notice.title)}*\n{_escaped(notice.text)}",
        "event": str(notice.event),
        "title": notice.title,
        "id": notice.id,
        "at": notice.created_at,
        "payload": dict(notice.payload),
    }


def _escaped(text: str) -> str:
    """So that nothing in it is taken for a link or a mention."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _judge(status: int) -> None:
    if status < HTTPStatus.MULTIPLE_CHOICES:
        return
    told = f"the webhook answered {status}"
    if status < HTTPStatus.BAD_REQUEST:
        raise DeliveryRefused(
            f"{told}, a redirect, which is not followed: the notice would go to someone else",
            next_step="give the URL that it leads to, if that is yours",
        )
    if status < HTTPStatus.INTERNAL_SERVER_ERROR and status not in PATIENCE:
        raise DeliveryRefused(told, next_step="look at AUTOTUNE_WEBHOOK_URL: is it still valid?")
    raise DeliveryFailed(told)
