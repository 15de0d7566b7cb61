"""Asking what may never answer, as the driver of a GPU that hangs."""

from __future__ import annotations

from collections.abc import Callable
from queue import Empty, Queue
from threading import Thread
from typing import TypeVar

T = TypeVar("T")


def within(seconds: float, ask: Callable[[], T]) -> T | None:
    """What is answered in that time; None where nothing is: what asks it is left behind. Its errors
    are raised here."""
    answers: Queue[T | BaseException] = Queue()

    def answer() -> None:
        try:
            answers.put(ask())
        except BaseException as error:  # noqa: BLE001 - raised again by the one who asked
            answers.put(error)

    Thread(target=answer, daemon=True).start()
    try:
        found = answers.get(timeout=seconds)
    except Empty:
        return None
    if isinstance(found, BaseException):
        raise found
    return found
