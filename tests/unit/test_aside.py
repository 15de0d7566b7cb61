"""Calls that an interruption does not break off half-way."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator

import pytest

from autotune.adapters.triton.aside import aside


@pytest.fixture
def interrupted() -> Iterator[None]:
    """InterruptedError comes up in the main thread after 50 ms."""

    def interrupt(*_: object) -> None:
        raise InterruptedError

    former = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, former)


def test_what_a_call_comes_to_is_its_answer() -> None:
    here = threading.get_ident()
    assert aside(threading.get_ident, within_s=5) != here


def test_what_a_call_raises_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        aside(lambda: 1 / 0, within_s=5)


def test_one_that_does_not_end_is_given_up() -> None:
    held = threading.Event()
    with pytest.raises(TimeoutError):
        aside(held.wait, within_s=0.05)
    held.set()


@pytest.mark.usefixtures("interrupted")
@pytest.mark.parametrize("to_the_end", [True, False])
def test_an_interruption_waits_for_the_end_where_it_is_to(to_the_end: bool) -> None:
    done: list[int] = []

    def call() -> None:
        time.sleep(0.4)
        done.append(1)

    with pytest.raises(InterruptedError):
        aside(call, within_s=5, to_the_end=to_the_end)
    assert done == ([1] if to_the_end else [])
