"""Work on a node whose calls are answered elsewhere, one at a time."""

from __future__ import annotations

from typing import Any, Protocol

import pytest

from autotune.adapters.ray.relay import Call, Distant, Offered, Relay, Reply, answered
from autotune.core.errors import StoreFailed


class Port(Protocol):
    def add(self, number: int) -> int: ...


class Store:
    def __init__(self) -> None:
        self.added: list[int] = []

    def add(self, number: int) -> int:
        if number < 0:
            raise StoreFailed("the disk is full", next_step="make room")
        self.added.append(number)
        return sum(self.added)

    def drop_everything(self) -> None:
        self.added.clear()


def conducted(work: Any, store: Store) -> Any:
    """As the driver does it."""
    objects = {"store": Offered(store, Port)}
    relay = Relay()
    relay.begin(work)
    message = relay.exchange(None)
    while isinstance(message, Call):
        message = relay.exchange(answered(message, objects))
    return message.get()


def test_calls_are_made_on_the_other_side_in_order_and_their_answers_come_back() -> None:
    store = Store()

    def work(relay: Relay) -> list[int]:
        distant = Distant(relay, "store")
        return [distant.add(1), distant.add(number=2)]

    assert conducted(work, store) == [1, 3]
    assert store.added == [1, 2]


def test_what_a_call_raises_is_raised_in_the_work_which_may_go_on() -> None:
    def work(relay: Relay) -> str:
        with pytest.raises(StoreFailed, match="the disk is full"):
            Distant(relay, "store").add(-1)
        return "went on"

    assert conducted(work, Store()) == "went on"


def test_what_the_work_raises_is_raised_where_it_was_asked_for() -> None:
    def work(relay: Relay) -> None:
        Distant(relay, "store").add(-1)

    with pytest.raises(StoreFailed) as raised:
        conducted(work, Store())
    assert raised.value.next_step == "make room"


@pytest.mark.parametrize("method", ["drop_everything", "__init__", "added", "mro"])
def test_only_what_the_port_has_is_called(method: str) -> None:
    store = Store()
    store.add(1)
    reply = answered(Call(name="store", method=method), {"store": Offered(store, Port)})
    with pytest.raises(AttributeError, match="Port offers no"):
        reply.get()
    assert store.added == [1]


def test_an_object_that_is_not_there_is_told_to_the_work() -> None:
    assert isinstance(answered(Call(name="desk", method="put"), {}), Reply)
    with pytest.raises(KeyError):
        answered(Call(name="desk", method="put"), {}).get()
