"""How a trial stands: what every list of trials says of it first."""

from __future__ import annotations

from enum import StrEnum

from autotune.core.wording import IN_DOUBT


class Standing(StrEnum):
    """A trial's state, with the SLA's verdict in place of ok, or that it is in doubt."""

    MEETS = "meets"
    MISSES = "misses"
    UNDECIDED = "undecided"
    DOUBTED = IN_DOUBT
    INVALID = "invalid"
    FAILED = "failed"
    PRUNED = "pruned"
    RUNNING = "running"
