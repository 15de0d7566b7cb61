"""Measure until a measurement can be believed, and store each try."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol, TypeAlias

from autotune.core.errors import AutotuneError, LoadFailed
from autotune.core.measurement import Measurement, Purpose
from autotune.core.trial import Trial
from autotune.core.validity import LOST_GPU
from autotune.ports import Applied, Server
from autotune.tuner.crashes import despite_a_crash
from autotune.tuner.measure import Measurer
from autotune.tuner.phases import Phase
from search_spaces.candidate import Candidate

ATTEMPTS = 3
"""How often an invalid measurement is taken in all, before it is given up."""


class Say(Protocol):
    def __call__(self, stage: str, text: str) -> None: ...


Keep: TypeAlias = Callable[[int, Measurement], None]


class NotBelieved(LoadFailed):
    """No try could be believed: says nothing about the candidate."""


@dataclass(slots=True, kw_only=True)
class Recorder:
    """Takes measurements of one study's trials. ``keep`` stores what was measured of the trial of a
    number. ``check_outputs`` compares some of the answers of a candidate that has just been
    applied; ``accuracy_drop`` tells how much worse than the source model it answers (None: nobody
    asks). ``again`` is told why a measurement is taken again."""

    keep: Keep
    measurer: Measurer
    check_outputs: Callable[[Server, Candidate], object]
    accuracy_drop: Callable[[Server, Candidate], float | None] = lambda _server, _candidate: None
    again: Callable[[str], None] = lambda _: None

    def take(
        self,
        server: Server,
        trial: Trial,
        purpose: Purpose,
        phase: Phase,
        applied: Applied | None = None,
    ) -> Measurement:
        """Serve the trial's candidate, check its answers and their accuracy, and measure it: all of
        it anew at each try, or not the first two where it is ``applied`` already. NotBelieved when
        the last try cannot be believed either; ServerFailed passes, of a server that crashes before
        the load comes at its second crash. AutotuneError where the GPU is gone at two tries
        running: nothing more can be measured on it."""
        reason = lost = ""
        for attempt in range(ATTEMPTS):
            if attempt:
                self.again(reason)
            try:
                served, drop = self._served(server, trial.candidate, applied)
                measured = self.measurer.measure(server, trial.candidate, served, purpose, phase)
            except LoadFailed as exc:
                reason = str(exc)
                continue
            measured = replace(measured, accuracy_drop=drop)
            self.keep(trial.number, measured)
            if measured.valid:
                return measured
            before, lost = lost, measured.telemetry.notes.get(LOST_GPU, "")
            if before and lost:
                raise _gone(lost)
            reason = "; ".join(measured.invalid_because)
        raise NotBelieved(f"measured {ATTEMPTS} times: {reason}")

    def _served(
        self, server: Server, candidate: Candidate, applied: Applied | None
    ) -> tuple[Applied, float | None]:
        """How it is applied, and how much worse it answers than the source model."""
        if applied is not None:
            return applied, self.accuracy_drop(server, candidate)
        return despite_a_crash(lambda: self._apply(server, candidate), server, self.again)

    def _apply(self, server: Server, candidate: Candidate) -> tuple[Applied, float | None]:
        applied = server.apply(candidate)
        self.check_outputs(server, candidate)
        return applied, self.accuracy_drop(server, candidate)


def _gone(said: str) -> AutotuneError:
    return AutotuneError(
        "the server's GPU is gone, so the study ends here",
        value=said,
        next_step="look for Xid in the kernel's log, reset the GPU or restart this machine, then go"
        " on with --resume",
    )
