"""Channels that take notices to people: a webhook, e-mail."""

from autotune.adapters.notify.email import Email
from autotune.adapters.notify.persistent import Persistent
from autotune.adapters.notify.webhook import Webhook

__all__ = ["Email", "Persistent", "Webhook"]
