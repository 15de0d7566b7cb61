"""A login's cookie: signed, of one name, and worth nothing once the token is revoked."""

from __future__ import annotations

from http.cookies import CookieError, SimpleCookie

from itsdangerous import BadSignature, TimestampSigner

COOKIE = "autotune_session"
LASTS_S = 12 * 3600


class Sessions:
    """``key`` signs the cookies; whoever knows it can make one."""

    def __init__(self, key: str) -> None:
        self._signer = TimestampSigner(key, salt="autotune.session", digest_method="sha256")

    def begin(self, name: str, *, secure: bool) -> str:
        """The Set-Cookie header of someone who has shown the token of this name."""
        return _cookie(self._signer.sign(name.encode().hex()).decode(), LASTS_S, secure=secure)

    @staticmethod
    def end(*, secure: bool) -> str:
        return _cookie("", 0, secure=secure)

    def name(self, cookie_header: str) -> str | None:
        """Who began the session that a request's Cookie header holds; None if that is nobody, or
        too long ago."""
        try:
            found = SimpleCookie(cookie_header).get(COOKIE)
            if found is None:
                return None
            signed = self._signer.unsign(found.value, max_age=LASTS_S)
            return bytes.fromhex(signed.decode()).decode()
        except (CookieError, BadSignature, ValueError):
            return None


def _cookie(value: str, lasts_s: int, *, secure: bool) -> str:
    parts = [f"{COOKIE}={value}", "Path=/", f"Max-Age={lasts_s}", "HttpOnly", "SameSite=Lax"]
    return "; ".join([*parts, "Secure"] if secure else parts)
