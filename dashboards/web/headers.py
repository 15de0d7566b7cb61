"""What browsers are told to refuse."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def content_policy(script_hashes: Sequence[str]) -> str:
    """Scripts come from here alone. Styles may stand in the page: Dash and Plotly write them
    there."""
    scripts = " ".join(["'self'", *script_hashes])
    return "; ".join(
        [
            "default-src 'none'",
            f"script-src {scripts}",
            "style-src 'self' 'unsafe-inline'",
            "img-src 'self' data: blob:",
            "font-src 'self' data:",
            "connect-src 'self'",
            "manifest-src 'self'",
            "worker-src 'self' blob:",
            "base-uri 'none'",
            "form-action 'self'",
            "frame-ancestors 'none'",
        ]
    )


def safe_headers(script_hashes: Sequence[str]) -> Mapping[str, str]:
    """Of every answer. (Strict-Transport-Security is for what speaks TLS to say, a proxy: it would
    hold for every port of the host, Triton's too.)"""
    return {
        "content-security-policy": content_policy(script_hashes),
        "x-content-type-options": "nosniff",
        "x-frame-options": "DENY",
        "referrer-policy": "same-origin",
        "cross-origin-opener-policy": "same-origin",
        "cross-origin-resource-policy": "same-origin",
        "permissions-policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
    }
