"""How often someone may try a token that is none."""

from __future__ import annotations

import ipaddress

from limits import RateLimitItemPerMinute
from limits.storage import MemoryStorage
from limits.strategies import MovingWindowRateLimiter

PER_ADDRESS = 10
PER_SERVICE = 100
WAIT_S = 60


class Attempts:
    """Wrong tokens within the last minute, by the address that they come from and in all.

    Whoever has not shown a wrong one is always listened to: however many others guess, nobody who
    has a token is kept out by them. An IPv6 host has a whole network of addresses, which counts as
    one.
    """

    def __init__(self, *, per_address: int = PER_ADDRESS, per_service: int = PER_SERVICE) -> None:
        self._limiter = MovingWindowRateLimiter(MemoryStorage())
        self._per_address = RateLimitItemPerMinute(per_address)
        self._per_service = RateLimitItemPerMinute(per_service)

    def allowed(self, address: str) -> bool:
        """Whether a secret from there is looked at at all."""
        left = self._limiter.get_window_stats(self._per_address, _origin(address)).remaining
        if left == self._per_address.amount:
            return True
        return left > 0 and self._limiter.test(self._per_service, "all")

    def failed(self, address: str) -> None:
        self._limiter.hit(self._per_address, _origin(address))
        self._limiter.hit(self._per_service, "all")


def _origin(address: str) -> str:
    try:
        known = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(known, ipaddress.IPv4Address):
        return str(known)
    if known.ipv4_mapped is not None:
        return str(known.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(known), 64), strict=False))
