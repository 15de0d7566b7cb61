"""A piece of work on one device of the cluster, whose calls this process answers meanwhile."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from autotune.adapters.ray.cluster import Devices, Patience, interruptible, why
from autotune.adapters.ray.relay import Call, Offered, Relay, Reply, answered
from autotune.core.errors import AutotuneError

TRIES = 3
"""How many devices may be lost under one piece of work before it is given up."""
_LOOK_S = 5.0
_log = logging.getLogger(__name__)


class Errand:
    """The actor: does one piece of work."""

    def __init__(self) -> None:
        self._relay = Relay()

    def begin(self, work: Callable[[Relay], Any]) -> None:
        self._relay.begin(work)

    def exchange(self, reply: Reply | None) -> Call | Reply:
        return self._relay.exchange(reply)


def run(work: Callable[[Relay], Any], objects: Mapping[str, Offered], devices: Devices) -> Any:
    """Do it on a device, and return what it came to; once more on another where a device is lost.
    What it raises passes. AutotuneError where devices are lost again and again, or none is left.
    """
    for attempt in range(TRIES):
        try:
            return _once(work, objects, devices)
        except RayTaskError as exc:
            raise AutotuneError(
                "a device of the Ray cluster could not do what it was asked for",
                value=why(exc),
                next_step="is triton-autotune[ray] installed there as it is here?",
            ) from exc
        except RayError as exc:
            _log.warning(
                "a device of the Ray cluster was lost (%s of %s): %s", attempt + 1, TRIES, exc
            )
            devices.refuse_gone()
    raise AutotuneError(
        f"{TRIES} devices of the Ray cluster were lost one after another",
        next_step="what was measured is stored: the same command with --resume goes on",
    )


def _once(work: Callable[[Relay], Any], objects: Mapping[str, Offered], devices: Devices) -> Any:
    actor: Any = (
        ray.remote(Errand)
        .options(**devices.slot.of_actor, label_selector=devices.selector())
        .remote()
    )
    try:
        _got(actor.begin.remote(work), devices, Patience(say=devices.say))
        message = _got(actor.exchange.remote(None), devices)
        while isinstance(message, Call):
            message = _got(actor.exchange.remote(answered(message, objects)), devices)
        return message.get()
    finally:
        ray.kill(actor)


@interruptible()
def _got(answer: Any, devices: Devices, patience: Patience | None = None) -> Any:
    """The answer; meanwhile it is looked whether there is still a node that could give it. With
    ``patience`` it is one that waits for nothing but a slot."""
    while not ray.wait([answer], timeout=_LOOK_S)[0]:
        devices.refuse_gone()
        if patience is not None:
            patience.waits()
    return ray.get(answer)
