"""Where something is promoted to, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autotune.core.promotions import Target


def target_json(target: Target | None) -> dict[str, Any]:
    """Empty: none."""
    if target is None:
        return {}
    return {
        "repository": None if target.repository is None else str(target.repository),
        "grpc": target.grpc,
        "http": target.http,
        "shadow_s": target.shadow_s,
    }


def target(stored: Mapping[str, Any]) -> Target | None:
    if not stored:
        return None
    repository = stored["repository"]
    return Target(
        repository=None if repository is None else Path(repository),
        grpc=stored["grpc"],
        http=stored["http"],
        shadow_s=stored["shadow_s"],
    )
