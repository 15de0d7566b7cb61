"""Tokens: made, held against those that are valid, revoked."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from autotune.core.access import Identity, Role, Token
from autotune.core.errors import InputRefused, StoreFailed
from autotune.service_ports import PromotionStore, TokenStore

PREFIX = "at_"
"""By which a token is known for one where it should not be: in a log, in a repository."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,99}")
_USED_EVERY_S = 60.0
_MARK = 32
"""So many digits of a digest tell its token from all others: 128 bits."""


def digest_of(secret: str) -> str:
    """A secret of 256 random bits needs no salt and no slow hash."""
    return hashlib.sha256(secret.encode()).hexdigest()


class Access:
    """Implements `autotune.service_ports.AccessDesk`. ``loopback``: the service can be reached from
    this machine alone. ``now`` gives UTC seconds since the epoch."""

    def __init__(
        self, store: TokenStore, *, loopback: bool, now: Callable[[], float] = time.time
    ) -> None:
        self._store = store
        self._loopback = loopback
        self._now = now

    def required(self) -> bool:
        return not self._loopback or bool(self._store.valid())

    def identify(self, secret: str) -> Identity | None:
        token = _whose(digest_of(secret), self._store.valid())
        if token is None:
            return None
        if token.last_used_at is None or self._now() - token.last_used_at >= _USED_EVERY_S:
            with suppress(StoreFailed):  # that it was used may be told later
                self._store.used(token.id)
        return _identity(token)

    def holder(self, token: str) -> Identity | None:
        known = (_identity(each) for each in self._store.valid())
        return next((each for each in known if each.token == token), None)


def _identity(token: Token) -> Identity:
    return Identity(name=token.name, role=token.role, token=token.digest[:_MARK])


def _whose(digest: str, tokens: Sequence[Token]) -> Token | None:
    """All of them are compared, each in constant time: how long it takes tells nothing."""
    found = None
    for token in tokens:
        if hmac.compare_digest(token.digest, digest):
            found = token
    return found


def add_token(store: TokenStore, audit: PromotionStore, name: str, role: Role, *, by: str) -> str:
    """Make a token and return its secret, which is not kept: only its digest is."""
    if not _NAME.fullmatch(name):
        raise InputRefused(
            "a token's name is up to 100 plain letters, digits and . _ @ -", value=name
        )
    secret = PREFIX + secrets.token_urlsafe(32)
    store.add(name, role, digest_of(secret))
    audit.note(by, "token add", name, detail={"role": str(role)})
    return secret


def revoke_token(store: TokenStore, audit: PromotionStore, name: str, *, by: str) -> None:
    store.revoke(name)
    audit.note(by, "token revoke", name)
