"""A login's cookie: signed, of one token, and worth nothing once that is revoked."""

from __future__ import annotations

import hashlib

from itsdangerous import BadSignature, TimestampSigner
from starlette.requests import cookie_parser

from autotune.core.errors import InputRefused

COOKIE = "autotune_session"
SECURE_COOKIE = f"__Host-{COOKIE}"
"""Over TLS. A browser takes it from this very host alone, and only with ``Secure``."""
LASTS_S = 12 * 3600
SHORTEST_KEY = 32


class Sessions:
    """``key`` signs the cookies; whoever knows it can make one. Services with databases of their
    own may have the same key (by default those of one user have): a session names its token by what
    no other token has, whatever its number."""

    def __init__(self, key: str) -> None:
        if len(key) < SHORTEST_KEY:
            raise InputRefused(
                f"the key that signs sessions has at least {SHORTEST_KEY} letters",
                next_step="AUTOTUNE_SECRET_KEY=$(openssl rand -hex 32), or leave it out",
            )
        self._signer = TimestampSigner(
            key, salt="autotune.session", digest_method=hashlib.sha256, key_derivation="hmac"
        )

    def begin(self, token: str, *, secure: bool) -> str:
        """The Set-Cookie header of someone who has shown this token (see `Identity.token`)."""
        return _cookie(self._signer.sign(token).decode(), LASTS_S, secure=secure)

    @staticmethod
    def end(*, secure: bool) -> str:
        return _cookie("", 0, secure=secure)

    def token(self, cookie_header: str, *, secure: bool) -> str | None:
        """Which token the session of a request's Cookie header was begun with; None if it is none
        of ours, or was begun too long ago."""
        given = cookie_parser(cookie_header).get(_name(secure=secure), "")
        try:
            return self._signer.unsign(given, max_age=LASTS_S).decode()
        except (BadSignature, ValueError):
            return None


def _name(*, secure: bool) -> str:
    return SECURE_COOKIE if secure else COOKIE


def _cookie(value: str, lasts_s: int, *, secure: bool) -> str:
    parts = [f"{_name(secure=secure)}={value}", "Path=/", f"Max-Age={lasts_s}", "HttpOnly"]
    parts.append("SameSite=Lax")
    return "; ".join([*parts, "Secure"] if secure else parts)
