"""What `autotune doctor` asks."""

from __future__ import annotations

from collections.abc import Sequence

from autotune.adapters import hardware
from autotune.adapters.check import Check
from autotune.adapters.examine import checks
from autotune.core.capability import Capability, table
from autotune.core.errors import AutotuneError
from autotune.settings import Settings
from loadgen.sizing import cores, highest_of_small

__all__ = ["Check", "engines_here", "examine_machine"]


SHARED_BY = 8
"""The most load processes that the highest rate is looked for with."""


def examine_machine(*, load: bool = True) -> Sequence[Check]:
    """``load``: also what it can send, which takes some seconds of all its cores."""
    settings = Settings.from_environment()
    found = list(checks(settings.cache_dir, settings.work_dir, settings.server_dir))
    return [*found, _load()] if load else found


def _load() -> Check:
    """What the load generator itself can send: a server that takes more cannot be saturated."""
    try:
        rates = {1: highest_of_small()}
        many = min(cores(), SHARED_BY)
        if many > 1:
            rates[many] = highest_of_small(processes=many)
    except AutotuneError as exc:
        return Check(name="load generator", state="missing", detail=str(exc))
    told = ", ".join(
        f"{rate:,.0f}/s by {'one process' if count == 1 else f'{count} processes'}"
        for count, rate in rates.items()
    )
    detail = f"small requests to a server that does nothing, on the same cores: {told}"
    return Check(name="load generator", state="ok", detail=detail)


def engines_here() -> Sequence[Capability]:
    """Which variants this machine can build and serve, given a server with their backends."""
    return table(hardware.seen(visible=Settings.from_environment().visible_devices))
