"""The cluster: connecting to it, its nodes, and what they have."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from autotune.adapters.ray.slots import Slot, Taken, autotune_version, taken
from autotune.core.errors import AutotuneError, InputRefused
from autotune.core.kinds import Kind, chosen

LOCAL = "local"
NODE_ID = "ray.io/node-id"
PROBE_S = 60.0
"""How long a node may take to give a slot to the one who looks what it is."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def connected(address: str) -> Iterator[None]:
    """Be the driver of the cluster at ``address`` (``auto``: the one that runs here; ``local``: one
    of this machine alone, for this time). What it started on the nodes ends with it."""
    _refuse_client(address)
    logging.getLogger("ray").setLevel(logging.CRITICAL + 1)
    with _own_signals():
        try:
            ray.init(
                address=address,
                log_to_driver=False,
                logging_level=logging.CRITICAL + 1,
                configure_logging=False,
                include_dashboard=False if address == LOCAL else None,
            )
        except (RayError, ConnectionError, OSError, RuntimeError, ValueError) as exc:
            raise InputRefused(
                "there is no Ray cluster at this address",
                value=address,
                next_step="start one (`ray start --head` here, `ray start --address=HOST:6379` on"
                " each other machine), give its address by --ray-address, or take --ray-address"
                f" local for this machine alone ({why(exc)})",
            ) from exc
    try:
        yield
    finally:
        ray.shutdown()


def _refuse_client(address: str) -> None:
    if "://" in address:
        raise InputRefused(
            "Ray's client is not supported: results reach the database through a driver that is"
            " part of the cluster",
            value=address,
            next_step="run on a machine of the cluster (it needs no device: `ray start"
            " --address=HOST:6379 --num-cpus=0`) with --ray-address auto",
        )


@contextmanager
def _own_signals() -> Iterator[None]:
    """Ray puts handlers of its own in the place of those that end a run in order."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {each: signal.getsignal(each) for each in _SIGNALS}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


# ------------------------------------------------------------------------------------ the nodes
@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    id: str
    host: str
    resources: dict[str, float] = field(compare=False)


def nodes() -> list[Node]:
    """Those that live, by their ids."""
    found = [
        Node(id=each["NodeID"], host=each["NodeManagerHostname"], resources=each["Resources"])
        for each in _listed()
        if each["Alive"]
    ]
    return sorted(found, key=lambda node: node.id)


def _listed() -> list[dict[str, Any]]:
    listed: Callable[[], list[dict[str, Any]]] = ray.nodes
    return listed()


def slot_for(found: Sequence[Node], cpus: int | None) -> Slot:
    """What a trial is given: a GPU where there is any, with its share of its node's cores; else two
    cores, or as many as ``cpus`` says."""
    with_gpus = [node for node in found if node.resources.get("GPU", 0) >= 1]
    if not with_gpus:
        return Slot(cpus=cpus or 2)
    shares = [int(n.resources.get("CPU", 0) // n.resources["GPU"]) for n in with_gpus]
    return Slot(cpus=cpus or max(1, min(shares)), gpu=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Devices:
    """The slots of one ``kind`` that a study uses: on which ``nodes``, by id, and how ``many`` in
    all. ``left_alone`` says what is not used, and why."""

    slot: Slot
    kind: Kind
    nodes: tuple[str, ...]
    many: int
    left_alone: tuple[str, ...] = ()

    def selector(self) -> dict[str, str]:
        """For Ray: one of these nodes."""
        return {NODE_ID: f"in({','.join(self.nodes)})"}

    def refuse_gone(self) -> None:
        """AutotuneError where none of the nodes lives any more."""
        alive = {node.id for node in nodes()}
        if not alive.intersection(self.nodes):
            raise AutotuneError(
                "no device of the kind that this study measures on is left in the Ray cluster",
                value=str(self.kind),
                next_step="what was measured is stored: when such a node is back, the same command"
                " with --resume goes on",
            )


def devices(
    *,
    cpus: int | None = None,
    slots: int | None = None,
    before: dict[str, Any] | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Devices:
    """Look what the nodes have, and choose one kind of it: the one that is recorded from ``before``
    on resume, else the most numerous. InputRefused where there is none."""
    found = nodes()
    slot = slot_for(found, cpus)
    holding = {node: slot.fit_into(node.resources) for node in found}
    holding = {node: many for node, many in holding.items() if many}
    if not holding:
        raise InputRefused(
            "no node of the Ray cluster has what a trial needs",
            value=str(slot),
            next_step="`ray status` tells what there is; --slot-cpus N sets how many cores a trial"
            " is given",
        )
    say(f"looking at {len(holding)} nodes of the Ray cluster")
    kinds, left_alone = _looked_at(list(holding), slot)
    kind = chosen(
        [kinds[node] for node, many in holding.items() if node in kinds for _ in range(many)],
        before,
    )
    if kind is None:
        raise _nothing_fits(slot, set(kinds.values()), left_alone)
    used = [node for node in holding if kinds.get(node) == kind]
    left_alone += [
        f"{node.host} is left alone: its devices are {other}, and this study measures on {kind}"
        for node, other in kinds.items()
        if other != kind
    ]
    many = sum(holding[node] for node in used)
    return Devices(
        slot=slot,
        kind=kind,
        nodes=tuple(node.id for node in used),
        many=many if slots is None else min(many, slots),
        left_alone=tuple(left_alone),
    )


def _nothing_fits(slot: Slot, kinds: set[Kind], left_alone: Sequence[str]) -> InputRefused:
    if kinds:
        return InputRefused(
            "no device of the Ray cluster is of the kind that this study was begun on",
            value="; ".join(sorted(map(str, kinds))),
            next_step="go on where there is one, or run without --resume: numbers of different"
            " devices are not comparable",
        )
    return InputRefused(
        f"no node of the Ray cluster gave a trial what it needs, {slot}",
        value="; ".join(left_alone),
        next_step="`ray status` tells who has it now",
    )


def _looked_at(found: Sequence[Node], slot: Slot) -> tuple[dict[Node, Kind], list[str]]:
    """What kind each node's slots are of; what could not be looked at, with the reason."""
    asked = {node: _look(node, slot) for node in found}
    ray.wait(list(asked.values()), num_returns=len(asked), timeout=PROBE_S)
    kinds: dict[Node, Kind] = {}
    left_alone: list[str] = []
    for node, answer in asked.items():
        try:
            found_there: Taken = ray.get(answer, timeout=0.1)
        except (RayError, TimeoutError) as exc:
            ray.cancel(answer, force=True)
            left_alone.append(f"{node.host} is left alone: it gave no slot ({why(exc)})")
            continue
        if found_there.version == autotune_version():
            kinds[node] = found_there.kind
        else:
            left_alone.append(
                f"{node.host} is left alone: it has autotune {found_there.version}, and this"
                f" machine {autotune_version()}"
            )
    return kinds, left_alone


def _look(node: Node, slot: Slot) -> Any:
    options = {
        "num_cpus": slot.cpus,
        "num_gpus": 1 if slot.gpu else 0,
        "max_retries": 0,
        "scheduling_strategy": NodeAffinitySchedulingStrategy(node.id, soft=False),
    }
    return ray.remote(_seen).options(**options).remote(slot)


def _seen(slot: Slot) -> Taken:
    with taken(slot) as mine:
        return mine


def why(exc: BaseException) -> str:
    """In a line: of what was raised on a node that, and not where."""
    lines = str(exc).strip().splitlines() or [type(exc).__name__]
    return lines[-1] if isinstance(exc, RayTaskError) else lines[0]
