"""A channel that tries again while a moment's patience may help."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_random_exponential

from autotune.core.errors import DeliveryFailed, DeliveryRefused
from autotune.core.notices import Notice
from autotune.service_ports import Channel

TRIES = 3
LONGEST_WAIT_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Persistent:
    """Up to `TRIES` times, with waits between that grow and are never the same for two senders.
    Implements `autotune.service_ports.Channel` over another one."""

    channel: Channel
    sleep: Callable[[float], None] = time.sleep

    def deliver(self, notice: Notice) -> None:
        again = Retrying(
            stop=stop_after_attempt(TRIES),
            wait=wait_random_exponential(multiplier=1, max=LONGEST_WAIT_S),
            retry=retry_if_exception(_may_help),
            sleep=self.sleep,
            reraise=True,
        )
        again(self.channel.deliver, notice)


def _may_help(error: BaseException) -> bool:
    return isinstance(error, DeliveryFailed) and not isinstance(error, DeliveryRefused)
