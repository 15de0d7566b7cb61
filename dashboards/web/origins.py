"""By which name a request asks for the service, and which page makes a browser ask."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.datastructures import Headers

_FORWARDED = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip", "via")


def is_ours(host: str, names: Collection[str]) -> bool:
    """Whether a Host header names this machine: by ``localhost``, an address, or one of ``names``.

    A page of another site whose name is made to point here asks by that name, with its visitor's
    browser (DNS rebinding); an address cannot be made to point elsewhere."""
    name = _name_of(host)
    return name is not None and (name == "localhost" or name in names or is_address(name))


def _name_of(host: str) -> str | None:
    """Of a Host header, without its port; None for one that is none."""
    try:
        parts = urlsplit(f"//{host}")
        parts.port  # noqa: B018 - raises for one that is no number
    except ValueError:
        return None
    plain = parts.netloc == host and parts.username is None
    return parts.hostname if plain else None


def is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def is_loopback(address: str) -> bool:
    try:
        known = ipaddress.ip_address(address)
    except ValueError:
        return False
    mapped = getattr(known, "ipv4_mapped", None)
    return (mapped or known).is_loopback


def same_origin(headers: Headers) -> bool | None:
    """Whether a page of this site asks, or the user of the browser; None where it is not said:
    then no browser asks (they all tell the origin of what may change something), or a very old one.

    Sources: Fetch Metadata, and RFC 6454 for those that are too old for that, or that find the
    address not trustworthy, as without TLS."""
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site in ("same-origin", "none")
    origin = headers.get("origin")
    if origin is None:
        return None
    return urlsplit(origin).netloc.lower() == headers.get("host", "").lower() != ""


def forwarded(headers: Headers) -> bool:
    """Whether someone else's request was passed on by a proxy."""
    return any(name in headers for name in _FORWARDED)
