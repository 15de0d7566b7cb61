"""How often someone may try a token that is none."""

from __future__ import annotations

from limits import RateLimitItemPerMinute
from limits.storage import MemoryStorage
from limits.strategies import MovingWindowRateLimiter

PER_ADDRESS = 10
PER_SERVICE = 100


class Attempts:
    """Failed logins, by the address that they come from and in all, within the last minute."""

    def __init__(self, *, per_address: int = PER_ADDRESS, per_service: int = PER_SERVICE) -> None:
        self._limiter = MovingWindowRateLimiter(MemoryStorage())
        self._per_address = RateLimitItemPerMinute(per_address)
        self._per_service = RateLimitItemPerMinute(per_service)

    def allowed(self, address: str) -> bool:
        """Whether a secret from there is looked at at all."""
        return self._limiter.test(self._per_address, address) and self._limiter.test(
            self._per_service, "all"
        )

    def failed(self, address: str) -> None:
        self._limiter.hit(self._per_address, address)
        self._limiter.hit(self._per_service, "all")
