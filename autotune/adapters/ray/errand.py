"""A piece of work on one device of the cluster, whose calls this process answers meanwhile."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Protocol

import ray
from ray.exceptions import RayError, RayTaskError

from autotune.adapters.ray.cluster import At, Devices, Patience, at, interruptible, why
from autotune.adapters.ray.relay import Call, Offered, Relay, Reply, answered
from autotune.adapters.ray.slots import Slot, run_on, taken
from autotune.core.errors import AutotuneError

TRIES = 3
"""How many devices may be lost under one piece of work before it is given up."""
_LOOK_S = 5.0
_log = logging.getLogger(__name__)


class Errand:
    """The actor: does one piece of work, or keeps its device from being given to another."""

    def __init__(self) -> None:
        self._relay = Relay()
        self._kept = ExitStack()
        self._cores: set[int] = set()

    def seen(self, slot: Slot) -> At:
        mine = self._kept.enter_context(taken(slot))
        self._cores = set(mine.pinned)
        return at(mine.place, mine.device)

    def begin(self, work: Callable[[Relay], Any]) -> At:
        self._kept.close()
        if self._cores:
            run_on(self._cores)  # of all those that are free the work takes these
        self._relay.begin(work)
        return at()

    def exchange(self, reply: Reply | None) -> Call | Reply:
        return self._relay.exchange(reply)


class Hand(Protocol):
    """Such an actor, as it is called from here. RayError where its device is lost, RayTaskError
    where it could not do what it was asked for, KeyboardInterrupt where a signal came."""

    def seen(self) -> At:
        """Have a device as soon as one is free, whether the work is begun there or not; tells which
        one that is."""

    def begin(self, work: Callable[[Relay], Any]) -> At:
        """Begin it as soon as a slot is free; tells where that is."""

    def exchange(self, reply: Reply | None) -> Call | Reply: ...

    def end(self) -> None: ...


@dataclass(slots=True)
class Hired:
    """Implements `Hand` on one of the ``devices``."""

    devices: Devices
    _actor: Any = field(init=False)

    def __post_init__(self) -> None:
        self._actor = (
            ray.remote(Errand)
            .options(**self.devices.slot.of_actor, label_selector=self.devices.selector())
            .remote()
        )

    def seen(self) -> At:
        asked = self._actor.seen.remote(self.devices.slot)
        which: At = self._got(asked, Patience(say=self.devices.say))
        return which

    def begin(self, work: Callable[[Relay], Any]) -> At:
        where: At = self._got(self._actor.begin.remote(work), Patience(say=self.devices.say))
        return where

    def exchange(self, reply: Reply | None) -> Call | Reply:
        message: Call | Reply = self._got(self._actor.exchange.remote(reply))
        return message

    def end(self) -> None:
        ray.kill(self._actor)

    def _got(self, answer: Any, patience: Patience | None = None) -> Any:
        """The answer; meanwhile it is looked whether there is still a node that could give it. With
        ``patience`` it is one that waits for nothing but a slot."""
        while not ray.wait([answer], timeout=_LOOK_S)[0]:
            self.devices.refuse_gone()
            if patience is not None:
                patience.waits()
        return ray.get(answer)


@interruptible()
def run(
    work: Callable[[Relay], Any],
    objects: Mapping[str, Offered],
    devices: Devices,
    hire: Callable[[Devices], Hand] = Hired,
    unlike: Collection[At] = (),
) -> Any:
    """Do it on a device, and return what it came to; once more on another where a device is lost.
    Not on one of those that are ``unlike`` the others, unless no other is left. What it raises
    passes. AutotuneError where devices are lost again and again, or none is left.
    """
    for attempt in range(1, TRIES + 1):
        where: At | None = None
        hands = ExitStack()
        try:
            hand = _hired(devices, hire, unlike, hands)
            where = hand.begin(work)
            return _conducted(hand, objects)
        except RayTaskError as exc:
            raise AutotuneError(
                f"{where or 'a device'}, of the Ray cluster, could not do what it was asked for",
                value=why(exc),
                next_step="is triton-autotune[ray] installed there as it is here?",
            ) from exc
        except RayError as exc:
            _log.warning(
                "a device of the Ray cluster was lost (%s of %s): %s",
                attempt,
                TRIES,
                where or f"before it was ready, {why(exc)}",
            )
            devices.refuse_gone()
        finally:
            hands.close()
    raise AutotuneError(
        f"{TRIES} devices of the Ray cluster were lost one after another",
        next_step="what was measured is stored: the same command with --resume goes on",
    )


def _hired(
    devices: Devices,
    hire: Callable[[Devices], Hand],
    unlike: Collection[At],
    hands: ExitStack,
) -> Hand:
    """A hand on another device than these, which is told only where it has one: those that are on
    one of them keep it as long as ``hands`` are open, else it would be given to the next."""
    others = devices.apart_from(unlike)
    named = {(each.node, each.device) for each in unlike}
    while True:
        hand = hire(others)
        hands.callback(hand.end)
        if others.nodes == devices.nodes:
            return hand
        which = hand.seen()
        if (which.node, which.device) not in named:
            return hand


def _conducted(hand: Hand, objects: Mapping[str, Offered]) -> Any:
    message = hand.exchange(None)
    while isinstance(message, Call):
        message = hand.exchange(answered(message, objects))
    return message.get()
