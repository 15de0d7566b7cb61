"""Notices sent by e-mail."""

from __future__ import annotations

import logging
import smtplib
import ssl
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from email.message import EmailMessage
from email.utils import formatdate, parseaddr
from ipaddress import ip_address
from urllib.parse import unquote, urlsplit

from autotune.core.errors import DeliveryFailed, DeliveryRefused
from autotune.core.notices import Notice

TIMEOUT_S = 20.0
LASTING = 500
"""SMTP's answers from here on are final (RFC 5321, 4.2.1)."""
LONGEST_SUBJECT = 200

_log = logging.getLogger("autotune.notices")


@dataclass(frozen=True, slots=True, kw_only=True)
class Email:
    """``server`` is ``smtp://user:password@host:port`` or ``smtps://…``, a secret. By ``smtp`` the
    connection is encrypted where the server can (STARTTLS), and no password is sent over one that
    is not, but on this machine.

    DeliveryRefused, when something is to be delivered, for a URL or addresses that are none.
    """

    server: str = field(repr=False)
    sender: str
    to: tuple[str, ...]
    timeout_s: float = TIMEOUT_S
    tls: Callable[[], ssl.SSLContext] = field(default=ssl.create_default_context, repr=False)

    def deliver(self, notice: Notice) -> None:
        mail = message(notice, self.sender, self.to)
        where = _Server.of(self.server)
        try:
            with where.connected(self.timeout_s, self.tls) as client:
                where.log_in(client, self.tls)
                _tell_of(client.send_message(mail), len(self.to))
        except smtplib.SMTPAuthenticationError as exc:
            raise DeliveryRefused(
                f"the mail server refused the login ({exc.smtp_code})",
                next_step="look at AUTOTUNE_SMTP_URL",
            ) from None
        except smtplib.SMTPRecipientsRefused as exc:
            codes = {code for code, _ in exc.recipients.values()}
            raise _answered("the mail server takes none of AUTOTUNE_MAIL_TO", min(codes)) from None
        except smtplib.SMTPResponseException as exc:
            raise _answered("the mail server refused the message", exc.smtp_code) from None
        except TimeoutError:
            raise DeliveryFailed(
                f"the mail server did not answer within {self.timeout_s:g} s"
            ) from None
        except (smtplib.SMTPException, OSError) as exc:
            raise DeliveryFailed(
                f"the mail server could not be reached ({type(exc).__name__})",
                next_step="look at AUTOTUNE_SMTP_URL and the network",
            ) from None


def message(notice: Notice, sender: str, to: tuple[str, ...]) -> EmailMessage:
    """The same notice always has the same Message-ID: mail programs show it once, however often it
    was sent. DeliveryRefused where an address is none."""
    mail = EmailMessage()
    domain = parseaddr(sender)[1].rpartition("@")[2] or "localhost"
    headers = {
        "Subject": " ".join(notice.title.split())[:LONGEST_SUBJECT],
        "From": sender,
        "To": ", ".join(to),
        "Date": formatdate(notice.created_at),
        "Message-ID": f"<autotune-notice-{notice.id}-{notice.created_at:.0f}@{domain}>",
        "Auto-Submitted": "auto-generated",
    }
    if not to or not all("@" in parseaddr(each)[1] for each in (sender, *to)):
        raise DeliveryRefused("AUTOTUNE_MAIL_FROM and AUTOTUNE_MAIL_TO are not mail addresses")
    try:
        for name, value in headers.items():
            mail[name] = value
    except ValueError:  # a line break in an address
        raise DeliveryRefused(
            "AUTOTUNE_MAIL_FROM and AUTOTUNE_MAIL_TO are not mail addresses"
        ) from None
    mail.set_content(notice.text + "\n")
    return mail


def _tell_of(refused: Mapping[str, object], of: int) -> None:
    """The others have the message, so that it is not sent again. Nobody's address is told."""
    if refused:
        _log.warning(
            "the mail server takes no mail for %d of the %d addresses of AUTOTUNE_MAIL_TO",
            len(refused),
            of,
        )


def _answered(told: str, code: int) -> DeliveryFailed:
    kind = DeliveryRefused if code >= LASTING else DeliveryFailed
    return kind(f"{told} ({code})")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Server:
    host: str
    port: int
    encrypted: bool
    user: str
    password: str = field(repr=False)

    @classmethod
    def of(cls, url: str) -> _Server:
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            parts, port = urlsplit(""), None
        if parts.scheme not in {"smtp", "smtps"} or not parts.hostname:
            raise DeliveryRefused(
                "AUTOTUNE_SMTP_URL is no mail server",
                next_step="smtp://user:password@host:587, or smtps:// for TLS from the start",
            )
        encrypted, user = parts.scheme == "smtps", unquote(parts.username or "")
        usual = 465 if encrypted else 587 if user else 25
        return cls(
            host=parts.hostname,
            port=port or usual,
            encrypted=encrypted,
            user=user,
            password=unquote(parts.password or ""),
        )

    @property
    def here(self) -> bool:
        with suppress(ValueError):
            return ip_address(self.host).is_loopback
        return self.host == "localhost"

    def connected(self, timeout_s: float, tls: Callable[[], ssl.SSLContext]) -> smtplib.SMTP:
        if self.encrypted:
            return smtplib.SMTP_SSL(self.host, self.port, timeout=timeout_s, context=tls())
        return smtplib.SMTP(self.host, self.port, timeout=timeout_s)

    def log_in(self, client: smtplib.SMTP, tls: Callable[[], ssl.SSLContext]) -> None:
        client.ehlo_or_helo_if_needed()
        if not self.encrypted and client.has_extn("starttls"):
            client.starttls(context=tls())
            client.ehlo()
        elif not self.encrypted and self.user and not self.here:
            raise DeliveryRefused(
                "the mail server offers no encryption, so that the password would be readable on"
                " its way",
                next_step="use smtps://, or a server that offers STARTTLS",
            )
        if self.user:
            client.login(self.user, self.password)
