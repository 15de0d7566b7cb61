from __future__ import annotations

import time

import gevent
import pytest

from loadgen.pacing import Arrivals, OpenLoopPhase, Phase, SaturatePhase, Watcher, Window
from loadgen.results import Code


class Client:
    """Answers after ``delay_s`` and remembers the bodies."""

    def __init__(self, delay_s: float = 0.001) -> None:
        self.delay_s = delay_s
        self.bodies: list[int] = []
        self.texts: dict[int, str] = {}

    def infer(self, number: int) -> tuple[int, int]:
        self.bodies.append(number)
        gevent.sleep(self.delay_s)
        return Code.OK, 0

    def close(self) -> None: ...


class Notes(Watcher):
    def __init__(self) -> None:
        self.moments: list[tuple[str, float]] = []
        self.marks: list[tuple[float, float]] = []

    def opened(self, at_s: float, cpu_s: float) -> None:
        self.moments.append(("opened", at_s))

    def closed(self, at_s: float) -> None:
        self.moments.append(("closed", at_s))

    def mark(
        self, now_s: float, complete_s: float, cpu_s: float, max_in_flight: int, cap_hit: bool
    ) -> None:
        self.marks.append((now_s, complete_s))


WINDOW = Window(warmup_s=0.1, measure_s=0.2, timeout_s=1.0, tail_s=0.1, cap=100)
LONG = Window(warmup_s=30.0, measure_s=30.0, timeout_s=1.0, tail_s=0.1, cap=100)
EVERY_10_MS = [number / 100 for number in range(6000)]


def quiet(latency_ms: float, length: int, code: int) -> None: ...


def open_now(phase: Phase) -> None:
    phase.open(time.monotonic() - phase._start + 0.02)


def close_now(phase: Phase) -> None:
    phase.close(time.monotonic() - phase._start)


def open_loop(window: Window, client: Client, watcher: Watcher | None = None) -> OpenLoopPhase:
    arrivals = Arrivals(warm_up=EVERY_10_MS, window=EVERY_10_MS)
    return OpenLoopPhase(client, window, quiet, arrivals, watcher)


def test_the_windows_arrivals_count_from_its_opening():
    run = open_loop(WINDOW, Client()).run(time.monotonic())
    inside = run.scheduled_s[(run.scheduled_s >= 0.1) & (run.scheduled_s < run.closed_s)]
    assert (run.opened_s, run.closed_s) == (0.1, pytest.approx(0.3))
    assert inside == pytest.approx([0.1 + number / 100 for number in range(20)])


def test_opening_ends_the_warm_up_and_drops_its_other_arrivals():
    phase = open_loop(LONG, Client())
    gevent.spawn_later(0.1, open_now, phase)
    gevent.spawn_later(0.3, close_now, phase)
    run = phase.run(time.monotonic())
    assert 0.1 <= run.opened_s < run.closed_s < 5
    before = run.scheduled_s[run.scheduled_s < run.opened_s]
    after = run.scheduled_s[run.scheduled_s >= run.opened_s]
    assert before == pytest.approx(EVERY_10_MS[: len(before)])
    assert after - run.opened_s == pytest.approx(EVERY_10_MS[: len(after)])


def test_a_window_that_is_closed_before_its_time_is_loaded_until_its_last_request_is_settled():
    phase = open_loop(LONG, Client(delay_s=0.15))
    gevent.spawn_later(0.02, open_now, phase)
    gevent.spawn_later(0.2, close_now, phase)
    run = phase.run(time.monotonic())
    counted = (run.scheduled_s >= run.opened_s) & (run.scheduled_s < run.closed_s)
    later = run.scheduled_s[run.scheduled_s >= run.closed_s]
    assert (run.code[counted] == Code.OK).all()
    assert 1 <= len(later) <= 11  # for 0.1 s: the tail
    assert later.max() < run.closed_s + LONG.tail_s


def test_a_window_opens_and_closes_once_and_is_told_so():
    notes = Notes()
    phase = open_loop(WINDOW, Client(), notes)
    for delay_s in (0.15, 0.35):  # too late for either
        gevent.spawn_later(delay_s, open_now, phase)
    gevent.spawn_later(0.4, close_now, phase)
    run = phase.run(time.monotonic())
    assert notes.moments == [("opened", 0.1), ("closed", run.closed_s)]


def test_closing_before_the_window_opened_does_nothing():
    phase = open_loop(WINDOW, Client())
    gevent.spawn_later(0.03, close_now, phase)
    run = phase.run(time.monotonic())
    assert run.closed_s - run.opened_s == pytest.approx(0.2)


def test_the_windows_bodies_do_not_depend_on_the_warm_up():
    client = Client()
    phase = open_loop(WINDOW, client)
    run = phase.run(time.monotonic())
    first = int((run.scheduled_s < run.opened_s).sum())
    assert first > 0
    assert client.bodies[:first] == list(range(first))
    assert client.bodies[first : first + 20] == list(range(20))


def test_marks_promise_no_more_than_what_was_sent():
    notes = Notes()
    run = open_loop(WINDOW, Client(), notes).run(time.monotonic())
    assert notes.marks
    for now_s, complete_s in notes.marks:
        assert complete_s <= now_s
        due = run.scheduled_s < complete_s
        assert (run.sent_s[due] <= now_s).all()


def test_a_cap_that_holds_requests_of_the_window_back_is_told():
    tight = Window(warmup_s=0.05, measure_s=0.2, timeout_s=1.0, tail_s=0.1, cap=5)
    run = open_loop(tight, Client(delay_s=0.4)).run(time.monotonic())
    assert run.cap_hit
    assert (run.code == Code.UNSENT).any()


def test_a_burst_may_be_opened_and_closed_before_its_time():
    phase = SaturatePhase(Client(delay_s=0.01), LONG, quiet, 3)
    gevent.spawn_later(0.05, open_now, phase)
    gevent.spawn_later(0.2, close_now, phase)
    run = phase.run(time.monotonic())
    assert 0.05 <= run.opened_s < run.closed_s < 5
    assert run.max_in_flight == 3
    assert (run.code == Code.OK).all()


def test_a_moment_that_is_heard_of_late_holds_and_what_was_due_since_does_not_count():
    phase = open_loop(LONG, Client(delay_s=0.05))
    gevent.spawn_later(0.1, phase.open, 0.08)
    gevent.spawn_later(0.3, phase.close, 0.25)
    run = phase.run(time.monotonic())
    assert (run.opened_s, run.closed_s) == (0.08, 0.25)
    counted = (run.scheduled_s >= 0.08) & (run.scheduled_s < 0.25)
    assert (run.code[counted] == Code.OK).all()
