"""Work that is done on a node while another process answers what it asks for.

The work runs in a thread of its own. What it calls of the other side is handed out one call at a
time, and the work waits for the answer: so that whoever holds the database is asked on the driver
alone, and by nobody at the same time.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """Of a ``method`` of an object that the other side knows by ``name``."""

    name: str
    method: str
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    value: Any = None
    error: Exception | None = None

    def get(self) -> Any:
        if self.error is not None:
            raise self.error
        return self.value


class Relay:
    """Hands out the calls of one piece of work, and its outcome."""

    def __init__(self) -> None:
        self._asked: queue.Queue[Call | Reply] = queue.Queue()
        self._told: queue.Queue[Reply] = queue.Queue()

    def begin(self, work: Callable[[Relay], Any]) -> None:
        def do() -> None:
            try:
                self._asked.put(Reply(value=work(self)))
            except Exception as exc:  # noqa: BLE001 - it is raised again on the other side
                self._asked.put(Reply(error=exc))

        threading.Thread(target=do, name="errand", daemon=True).start()

    def exchange(self, reply: Reply | None) -> Call | Reply:
        """Answer the last call, if there was one, and wait for the next; a Reply is the end."""
        if reply is not None:
            self._told.put(reply)
        return self._asked.get()

    def call(self, name: str, method: str, *args: Any, **kwargs: Any) -> Any:
        """In the work's thread: have the other side call it. What that raises is raised here."""
        self._asked.put(Call(name=name, method=method, args=args, kwargs=kwargs))
        return self._told.get().get()


@dataclass(frozen=True, slots=True)
class Distant:
    """An object of the other side's: whatever method is asked for is called there."""

    relay: Relay
    name: str

    def __getattr__(self, method: str) -> Callable[..., Any]:
        return partial(self.relay.call, self.name, method)


@dataclass(frozen=True, slots=True)
class Offered:
    """What the other side may call: the methods of a ``port``, as the object ``by`` has them."""

    by: object
    port: type

    def method(self, name: str) -> Callable[..., Any]:
        if name.startswith("_") or name not in dir(self.port):
            raise AttributeError(f"{self.port.__name__} offers no {name!r}")
        method: Callable[..., Any] = getattr(self.by, name)
        return method


def answered(call: Call, objects: Mapping[str, Offered]) -> Reply:
    """What a call comes to on this side."""
    try:
        method = objects[call.name].method(call.method)
        return Reply(value=method(*call.args, **call.kwargs))
    except Exception as exc:  # noqa: BLE001 - the one that called is told
        return Reply(error=exc)
