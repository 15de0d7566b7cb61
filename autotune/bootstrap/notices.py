"""Notices: put into the outbox when something happens, delivered until they have arrived."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from autotune.adapters.notify import Email, Persistent, Webhook
from autotune.core.errors import DeliveryFailed, DeliveryRefused
from autotune.core.notices import Event, Notice, scrubbed
from autotune.core.plain import finite
from autotune.service_ports import Channel, NoticeStore
from autotune.settings import NotifySettings, Settings

WEBHOOK, EMAIL, NONE = "webhook", "email", "none"
NO_CHANNEL = "not sent: no channel is configured"
ATTEMPTS = 10
"""Deliveries of a notice, each of a few tries, before it is given up: the last one comes some eight
hours after the first."""
FIRST_WAIT_S = 60.0


def notify(  # noqa: PLR0913 - an outbox, what is told, and where to
    store: NoticeStore,
    event: Event,
    title: str,
    text: str,
    payload: Mapping[str, Any],
    *,
    settings: NotifySettings | None = None,
) -> None:
    """Put a notice into the outbox, once for each channel that is configured; `deliver_waiting`
    sends it. Where none is, it is kept as one that was not sent. It tells which machine it is
    from: several may share a channel."""
    known = settings or NotifySettings.from_environment()
    hidden = known.secrets
    host = Settings.from_environment().machine
    plain = scrubbed(finite({**payload, "host": host}), hidden)
    text = scrubbed(f"{text}\nFrom: autotune on {host}.", hidden)
    told = (event, scrubbed(title, hidden), text, plain)
    configured = channels(known)
    for channel in configured:
        store.add(*told, channel)
    if not configured:
        store.add(*told, NONE, unsent=NO_CHANNEL)


def deliver_waiting(
    store: NoticeStore,
    *,
    settings: Settings | None = None,
    now: Callable[[], float] = time.time,
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Deliver the notices that are due, and say how many arrived. One process at a time does it
    for a service directory; another that asks meanwhile delivers none."""
    known = settings or Settings.from_environment()
    waiting = [notice for notice in store.waiting() if due_at(notice) <= now()]
    if not waiting:
        return 0
    try:
        with _turn(known.service_dir):
            return _all_delivered(store, waiting, known.notify, sleep)
    except Timeout:
        return 0


def _all_delivered(
    store: NoticeStore,
    waiting: Sequence[Notice],
    settings: NotifySettings,
    sleep: Callable[[float], None],
) -> int:
    """Each channel in its own thread, so that one that hangs holds up no other; and of a channel
    that takes nothing now, what else waits for it is left for later."""
    by_channel: dict[str, list[Notice]] = {}
    for notice in waiting:
        by_channel.setdefault(notice.channel, []).append(notice)
    by_name = channels(settings)

    def deliver(name: str) -> int:
        arrived = 0
        for notice in by_channel[name]:
            took = _delivered(store, notice, by_name.get(name), settings, sleep)
            if took is None:
                break
            arrived += took
        return arrived

    with ThreadPoolExecutor(len(by_channel)) as pool:
        return sum(pool.map(deliver, by_channel))


def due_at(notice: Notice) -> float:
    """When it is tried next, in seconds since the epoch: each wait is twice the one before."""
    return notice.created_at + FIRST_WAIT_S * (2.0**notice.attempts - 1)


def channels(settings: NotifySettings) -> Mapping[str, Channel]:
    """Those that are configured, by name."""
    found: dict[str, Channel] = {}
    if settings.webhook is not None:
        found[WEBHOOK] = Webhook(url=settings.webhook)
    if settings.smtp is not None:
        sender = settings.mail_from or next(iter(settings.mail_to), "")
        found[EMAIL] = Email(server=settings.smtp, sender=sender, to=settings.mail_to)
    return found


def _turn(folder: Path) -> FileLock:
    folder.mkdir(parents=True, exist_ok=True)
    return FileLock(folder / "notices.lock", timeout=0)


def _delivered(
    store: NoticeStore,
    notice: Notice,
    channel: Channel | None,
    settings: NotifySettings,
    sleep: Callable[[float], None],
) -> bool | None:
    """Whether it has arrived; None where the channel takes nothing now."""
    try:
        if channel is None:
            raise DeliveryRefused(f"the channel {notice.channel} is not configured any more")
        Persistent(channel=channel, sleep=sleep).deliver(notice)
    except DeliveryFailed as exc:
        refused = isinstance(exc, DeliveryRefused)
        last = refused or notice.attempts + 1 >= ATTEMPTS
        store.tried(notice.id, error=scrubbed(str(exc), settings.secrets), give_up=last)
        return False if refused else None
    store.tried(notice.id, error=None)
    return True
