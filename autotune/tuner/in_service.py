"""How much the configuration in service takes, before anything is asked of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from autotune.core.measurement import Ended, LoadResult
from autotune.core.model_interface import ModelInterface, Sample
from autotune.core.workload import Workload
from autotune.ports import Applied, LoadDriver, LoadPlan, Saturate, Server
from autotune.tuner.crashes import despite_a_crash
from autotune.tuner.measure import enough_in_flight
from search_spaces.candidate import Candidate

WARMUP_S = 2.0
MEASURE_S = 5.0


def saturation_of(  # noqa: PLR0913 - of what, with what, and who is told
    server: Server,
    load: LoadDriver,
    candidate: Candidate,
    workload: Workload,
    samples_for: Callable[[ModelInterface], Sequence[Sample]],
    *,
    tell: Callable[[str], None],
) -> float:
    """Good answers per second of a candidate under a burst, on a server that is not started yet:
    a look, without an interval. ``tell`` is told of a crash at its start."""
    applied = despite_a_crash(lambda: _served(server, candidate), server, tell)
    interface = server.interface()
    load.prepare(interface, samples_for(interface))
    plan = LoadPlan(
        mode=Saturate(in_flight=min(enough_in_flight(candidate, applied), workload.max_in_flight)),
        warmup_s=WARMUP_S,
        measure_s=MEASURE_S,
        timeout_s=workload.timeout_s,
        max_in_flight=workload.max_in_flight,
    )
    return load.run(server.endpoint, plan, _Unwatched()).achieved_qps


def _served(server: Server, candidate: Candidate) -> Applied:
    server.start()
    return server.apply(candidate)


class _Unwatched:
    """A window that nothing else is read over."""

    def opened(self) -> None: ...

    def enough(self, so_far: LoadResult) -> Ended | None: ...

    def closed(self) -> None: ...
