"""The Locust user that sends an open loop: one per process, a greenlet per arrival."""

from __future__ import annotations

import time
from typing import ClassVar

from locust import User, task
from locust.exception import StopUser

from loadgen.pacing import Phase
from loadgen.results import Code, RawRun

START_DELAY_S = 0.02


class InferUser(User):
    """Runs one phase and stops. Locust's statistics hear of every request, warm-up included,
    with the latency counted from the scheduled time."""

    abstract = True
    recorded: ClassVar[RawRun | None] = None

    def make_phase(self) -> Phase:
        """The phase to run, with `report` as its listener."""
        raise NotImplementedError

    def begins(self) -> float:
        """At which time of `time.monotonic` the phase, which is ready, begins."""
        return time.monotonic() + START_DELAY_S

    def starting(self, phase: Phase, at: float) -> None:
        """Told, just before, at which time of `time.monotonic` the phase begins."""

    @task
    def load(self) -> None:
        phase = self.make_phase()
        start = self.begins()
        self.starting(phase, start)
        type(self).recorded = phase.run(start)
        raise StopUser

    def report(self, latency_ms: float, length: int, code: int) -> None:
        self.environment.events.request.fire(
            request_type="infer",
            name=self.model_name(),
            response_time=latency_ms,
            response_length=length,
            exception=None if code == Code.OK else RequestFailed(code),
            context={},
        )

    def model_name(self) -> str:
        raise NotImplementedError


class RequestFailed(Exception):
    """How a request failed, in Locust's statistics."""

    def __init__(self, code: int) -> None:
        super().__init__(f"HTTP {code}" if code >= 100 else Code(code).name.lower())
