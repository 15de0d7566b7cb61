"""What `autotune doctor` asks."""

from __future__ import annotations

from collections.abc import Sequence

from autotune.adapters.examine import Check, checks
from autotune.settings import Settings


def examine_machine() -> Sequence[Check]:
    settings = Settings.from_environment()
    return list(checks(settings.cache_dir, settings.work_dir))
