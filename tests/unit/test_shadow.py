"""The shadow check, over a fake server and a fake load."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import pytest

from autotune.core.errors import ServerFailed
from autotune.core.sla import Outcome, Sla
from autotune.core.study import Study, Trust
from autotune.core.workload import Workload
from autotune.ports import OpenLoop
from autotune.retune.shadow import LISTEN_S, Probes, ProbingCheck
from search_spaces.candidate import Candidate
from tests.fakes import INTERFACE, FakeClock, FakeLoad, FakeServer
from tests.realistic import a_study

SAMPLE = {"x": [0.0]}


@dataclass
class Live:
    """A service of 50 requests per second at most, that gets ``live_qps`` by itself; ``dies_at``:
    the reading of its statistics that it does not live to see."""

    live_qps: float = 0.0
    service_ms: float = 20.0
    dies_at: int | None = None
    clock: FakeClock = field(default_factory=FakeClock)
    load: FakeLoad = field(init=False)
    readings: Iterator[int] = field(init=False)

    def __post_init__(self) -> None:
        server = FakeServer(self.clock, service_ms=self.service_ms)
        server.apply(Candidate({}))
        self.load = FakeLoad(server)
        self.readings = iter(range(100))

    def answered(self) -> int:
        if next(self.readings) == self.dies_at:
            raise ServerFailed("no server answers")
        return round(self.live_qps * self.clock.monotonic())

    def check(self, study: Study) -> ProbingCheck:
        return ProbingCheck(
            study=study,
            probes=Probes(
                endpoint=self.load.server.endpoint,
                answered=self.answered,
                interface=lambda: INTERFACE,
                samples=lambda _: [SAMPLE],  # type: ignore[list-item]
            ),
            load=self.load,
            clock=self.clock,
            shadow_s=10.0,
        )

    @property
    def probe_qps(self) -> list[float]:
        modes = [plan.mode for plan in self.load.plans]
        return [mode.qps for mode in modes if isinstance(mode, OpenLoop)]


@pytest.fixture
def study() -> Study:
    """25 requests per second within 80 ms."""
    return replace(
        a_study(),
        workload=Workload(target_qps=20, headroom=1.25),
        sla=Sla(latency_ms={50.0: 80.0}),
    )


def test_probes_make_the_live_traffic_up_to_the_rate_that_the_study_measured(study: Study) -> None:
    live = Live(live_qps=15.0)
    checked = live.check(study).check()
    assert live.probe_qps == [pytest.approx(10.0, abs=0.5)]
    assert checked.outcome is Outcome.MEETS
    assert "10.0/s probes beside 15.0/s of live traffic" in checked.words
    assert checked.detail["live_qps"] == pytest.approx(15.0, abs=0.5)


def test_where_the_live_traffic_is_enough_a_probe_a_second_looks_on(study: Study) -> None:
    live = Live(live_qps=100.0)
    live.check(study).check()
    assert live.probe_qps == [1.0]


def test_a_service_that_is_too_slow_misses_with_the_limit_that_it_breaks(study: Study) -> None:
    live = Live(service_ms=200.0)
    checked = live.check(study).check()
    assert checked.outcome is Outcome.MISSES
    assert "p50" in checked.words


def test_probes_that_were_sent_late_are_sent_again(study: Study) -> None:
    live = Live()
    live.load.lags_ms = [500.0]
    assert live.check(study).check().outcome is Outcome.MEETS
    assert len(live.load.plans) == 2


def test_probes_that_cannot_be_believed_leave_it_undecided(study: Study) -> None:
    live = Live(service_ms=35.0)  # slow, were it to be believed
    live.load.lags_ms = [500.0, 500.0]
    checked = live.check(study).check()
    assert checked.outcome is Outcome.UNDECIDED
    assert "send lag" in checked.words


SLOW_MS = 39.0
"""Its queue makes that a second, without an error."""


def test_what_is_late_from_the_send_misses_though_it_was_sent_late_twice(study: Study) -> None:
    live = Live(service_ms=SLOW_MS)
    live.load.lags_ms = [100.0, 100.0]
    checked = live.check(study).check()
    assert checked.outcome is Outcome.MISSES
    assert "p50" in checked.words
    assert len(live.load.plans) == 2


def test_what_was_sent_late_once_is_sent_again(study: Study) -> None:
    live = Live(service_ms=SLOW_MS)
    live.load.lags_ms = [100.0]

    def recovers(server: FakeServer) -> None:
        server.service_ms = SLOW_MS if len(live.load.plans) == 1 else 20.0

    live.load.before = recovers
    assert live.check(study).check().outcome is Outcome.MEETS


def test_a_latency_that_a_late_reader_may_have_made_is_undecided(study: Study) -> None:
    """90 ms counted from the send, by a generator that is 100 ms late."""
    live = Live(service_ms=35.0)
    live.load.lags_ms = [100.0, 100.0]
    assert live.check(study).check().outcome is Outcome.UNDECIDED


def test_nothing_is_held_against_it_where_the_generator_had_no_more_to_give(study: Study) -> None:
    busy = replace(study, trust=Trust(generator_cpu=0.1))  # the fake one uses a fifth of a core
    assert Live(service_ms=SLOW_MS).check(busy).check().outcome is Outcome.UNDECIDED


def test_what_is_answered_is_not_held_against_the_source_model_again(study: Study) -> None:
    accurate = replace(study, sla=replace(study.sla, accuracy_drop=0.01))
    assert Live().check(accurate).check().outcome is Outcome.MEETS


@pytest.mark.parametrize("reading", [0, 1, 2])
def test_a_server_that_dies_has_failed(study: Study, reading: int) -> None:
    with pytest.raises(ServerFailed):
        Live(dies_at=reading).check(study).check()


def test_the_live_traffic_is_watched_for_a_few_seconds(study: Study) -> None:
    live = Live(live_qps=5.0)
    before = live.clock.monotonic()
    checked = live.check(study).check()
    assert live.clock.monotonic() - before >= LISTEN_S
    assert checked.detail["requests"] > 0
