"""Where a study is carried out: what its run asks of the place, and the place of its run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from autotune.core.decision import Decision
from autotune.ports import Executor
from autotune.tuner.conclude import Settled
from autotune.tuner.recorder import Say


@dataclass(frozen=True, slots=True, kw_only=True)
class Readied:
    """What was found before the first trial: what was ``compared`` of the answers, how many model
    ``instances`` there were, and the ``identity`` of the server (see `autotune.ports.Server`)."""

    compared: str
    instances: int
    identity: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Overseer:
    """A study's run, as the end of the study sees it: ``warn`` is told what went wrong without
    ending it; ``decision`` decides on what is stored now; ``seconds_left`` of the budget, less what
    the confirmation takes; ``planned`` is how many candidates there were to try."""

    say: Say
    warn: Callable[[str], None]
    decision: Callable[[], Decision]
    seconds_left: Callable[[], float]
    planned: int


class Venue(Executor, Protocol):
    """Measures a study's trials and carries out its end: this machine, or a cluster."""

    def prepare(self, say: Say) -> Readied:
        """Bring up a server and hold its answers under the first candidate against the model run
        directly. CandidateFailed if that does not load, OutputsDiffer if they differ; InputRefused
        where nothing can be exported to."""

    def settle(self, overseer: Overseer) -> Settled:
        """Canary, finals, capacity; decide, confirm the pick from its exported files, and export
        it. All of it on one device."""

    def close(self) -> None:
        """End what serves. Safe to call twice."""
