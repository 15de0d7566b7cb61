"""What `autotune doctor` asks."""

from __future__ import annotations

from collections.abc import Sequence

from autotune.adapters import hardware
from autotune.adapters.check import Check
from autotune.adapters.examine import checks
from autotune.core.capability import Capability, table
from autotune.settings import Settings

__all__ = ["Check", "engines_here", "examine_machine"]


def examine_machine() -> Sequence[Check]:
    settings = Settings.from_environment()
    return list(checks(settings.cache_dir, settings.work_dir, settings.server_dir))


def engines_here() -> Sequence[Capability]:
    """Which variants this machine can build and serve, given a server with their backends."""
    return table(hardware.seen())
