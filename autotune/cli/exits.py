"""Exit codes."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    MEETS = 0
    """The pick meets the SLA; or the command did what it was asked."""
    FAILED = 1
    REFUSED = 2
    """The input was refused."""
    NO_CANDIDATE = 3
    """No candidate meets the SLA."""
