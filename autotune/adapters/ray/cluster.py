"""The cluster: connecting to it, its nodes, and what they have."""

from __future__ import annotations

import logging
import math
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import ray
from ray._raylet import GcsClient  # type: ignore[attr-defined] # compiled; as `ray health-check` asks
from ray.exceptions import AuthenticationError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from autotune.adapters.ray.slots import UNKNOWN_GPU, Slot, Taken, autotune_version, taken
from autotune.core.errors import AutotuneError, InputRefused, Interrupted
from autotune.core.kinds import Kind, chosen

LOCAL = "local"
NODE_ID = "ray.io/node-id"
HIGHEST_PORT = 65535
CONNECT_S = 5.0
PROBE_S = 60.0
"""How long a node may take to give its slots to those who look what they are."""
SAID_S = 20.0
"""So long is waited for a slot without a word: a process comes up, and another's ends."""
_THERE = {"env_vars": {"RAY_kill_child_processes_on_worker_exit": "0"}}
"""On the nodes. Ray would kill the guards of servers and loads, and nothing else that they started:
what a guard would have ended and removed would be left (Python backends, shared memory)."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def connected(address: str) -> Iterator[None]:
    """Be the driver of the cluster at ``address`` (``auto``: the one that runs here; ``local``: one
    of this machine alone, for this time). What it started on the nodes ends with it."""
    _refuse_client(address)
    _refuse_silent(address)
    logging.getLogger("ray").setLevel(logging.CRITICAL + 1)
    with _own_signals():
        try:
            ray.init(
                address=address,
                log_to_driver=False,
                logging_level=logging.CRITICAL + 1,
                configure_logging=False,
                include_dashboard=False if address == LOCAL else None,
                runtime_env=_THERE,
            )
        except (RayError, ConnectionError, OSError, RuntimeError, ValueError) as exc:
            raise _no_cluster(address, why(exc)) from exc
    try:
        yield
    finally:
        ray.shutdown()


def _no_cluster(address: str, reason: str) -> InputRefused:
    return InputRefused(
        "there is no Ray cluster at this address",
        value=address,
        next_step="start one (`ray start --head` here, `ray start --address=HOST:6379` on each"
        " other machine, with the same RAY_AUTH_MODE and token as here), give its address by"
        f" --ray-address, or take --ray-address {LOCAL} for this machine alone ({reason})",
    )


def _refuse_silent(address: str) -> None:
    """Ray itself tries for many minutes where nothing listens, or no token is right."""
    host, colon, port = address.rpartition(":")
    if not colon:
        return
    if not port.isdecimal() or not 0 < int(port) <= HIGHEST_PORT:
        raise _no_cluster(address, f"a port is a number from 1 to {HIGHEST_PORT}")
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_S).close()
        GcsClient(address=address)
    except AuthenticationError as exc:
        raise InputRefused(
            "this Ray cluster wants a token, and another than this process has",
            value=address,
            next_step="set RAY_AUTH_MODE=token here and wherever `ray start` is called, with the"
            " head's ~/.ray/auth_token (or RAY_AUTH_TOKEN) on each machine",
        ) from exc
    except (OSError, RayError) as exc:
        raise _no_cluster(address, why(exc)) from exc


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


@contextmanager
def interruptible() -> Iterator[None]:
    """While Ray waits it swallows what a signal's handler raises, and raises a KeyboardInterrupt of
    its own for it, without a word."""
    try:
        yield
    except Interrupted:
        raise
    except KeyboardInterrupt as exc:
        raise Interrupted("stopped by a signal") from exc


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


def slot_for(
    found: Sequence[Node], cpus: int | None, before: Mapping[str, Any] | None = None
) -> Slot:
    """What a trial is given: on resume what is recorded from ``before``, whatever nodes there are
    now; else a GPU where there is any, with its share of its node's cores; else two cores. Or as
    many as ``cpus`` says."""
    if before and "cores" in before:
        return Slot(cpus=cpus or int(before["cores"]), gpu=bool(before.get("gpus")))
    with_gpus = [node for node in found if node.resources.get("GPU", 0) >= 1]
    if not with_gpus:
        return Slot(cpus=cpus or 2)
    shares = [int(n.resources.get("CPU", 0) // n.resources["GPU"]) for n in with_gpus]
    return Slot(cpus=cpus or max(1, min(shares)), gpu=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Devices:
    """The slots of one ``kind`` that a study uses: on which ``nodes``, by id, and how ``many`` in
    all. ``left_alone`` says what is not used, and why; ``say`` tells who looks on."""

    slot: Slot
    kind: Kind
    nodes: tuple[str, ...]
    many: int
    left_alone: tuple[str, ...] = ()
    say: Callable[[str], None] = field(default=lambda _: None, compare=False)

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


@dataclass(slots=True, kw_only=True)
class Patience:
    """Says once that nothing has a slot, where that lasts: what nodes have, another job may use."""

    say: Callable[[str], None]
    clock: Callable[[], float] = time.monotonic
    _since: float | None = None

    def waits(self) -> None:
        now = self.clock()
        if self._since is None:
            self._since = now
        elif now - self._since > SAID_S:
            self.say(
                "no slot of the Ray cluster is free: waiting (`ray status` tells who has them)"
            )
            self._since = math.inf

    def begun(self) -> None:
        self._since = None


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
    slot = slot_for(found, cpus, before)
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
    looked = _looked_at(holding, slot, say)
    left_alone = [each.left_alone for each in looked if each.left_alone]
    usable = [(each, each.kind) for each in looked if each.kind is not None]
    kind = chosen([kind for each, kind in usable for _ in range(each.many)], before)
    if kind is None:
        raise _nothing_fits(slot, {kind for _, kind in usable}, left_alone)
    left_alone += [
        f"{each.node.host} is left alone: its devices are {other}, and this study measures on"
        f" {kind}"
        for each, other in usable
        if other != kind
    ]
    used = [each for each, its in usable if its == kind]
    many = sum(each.many for each in used)
    return Devices(
        slot=slot,
        kind=kind,
        nodes=tuple(each.node.id for each in used),
        many=many if slots is None else min(many, slots),
        left_alone=tuple(left_alone),
        say=say,
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
        next_step="mend what is told of it, or wait: `ray status` tells who has it now",
    )


# -------------------------------------------------------------------------- what their slots are
@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """What a node is: ``many`` slots of a ``kind``, or of none that is used; ``left_alone`` says
    what of it is not used, and why."""

    node: Node
    kind: Kind | None = None
    many: int = 0
    left_alone: str = ""


def judged(node: Node, many: int, seen: Sequence[Taken], lacking: str) -> Looked:
    """Of a node's ``many`` slots those that were ``seen`` say what all are; ``lacking`` says why
    others were not."""
    if reason := _unusable(seen, lacking):
        return Looked(node=node, left_alone=f"{node.host} is left alone: {reason}")
    less = f"{node.host}: {len(seen)} of its {many} slots are used ({lacking})"
    return Looked(
        node=node,
        kind=seen[0].kind,
        many=len(seen),
        left_alone=less if len(seen) < many else "",
    )


def _unusable(seen: Sequence[Taken], lacking: str) -> str:
    if not seen:
        return f"it gave no slot ({lacking})"
    ours = autotune_version()
    for each in seen:
        if each.version != ours:
            return f"it has autotune {each.version}, and this machine {ours}"
        if UNKNOWN_GPU in each.kind.gpus:
            return (
                f"NVML does not tell what its GPU {each.gpu} is (`autotune doctor` there says more)"
            )
    kinds = sorted({str(each.kind) for each in seen})
    if len(kinds) > 1:
        return (
            f"its devices are of several kinds, {' and '.join(kinds)}; CUDA_VISIBLE_DEVICES at"
            " `ray start` there can name those of one"
        )
    return ""


def _looked_at(holding: Mapping[Node, int], slot: Slot, say: Callable[[str], None]) -> list[Looked]:
    """All GPUs of a node are looked at, at once, so that none is looked at twice; of its cores one
    slot is as another."""
    looking = {
        node: [_look(node, slot) for _ in range(many if slot.gpu else 1)]
        for node, many in holding.items()
    }
    try:
        asked = {
            node: [each.seen.remote(slot) for each in there] for node, there in looking.items()
        }
        _wait([answer for there in asked.values() for answer in there], say)
        found: list[Looked] = []
        for node, answers in asked.items():
            seen, lacking = _told(answers)
            alike = seen if slot.gpu else seen * holding[node]
            found.append(judged(node, holding[node], alike, lacking))
        return found
    finally:
        for each in (each for there in looking.values() for each in there):
            ray.kill(each)


@interruptible()
def _wait(answers: list[Any], say: Callable[[str], None]) -> None:
    _, waiting = ray.wait(answers, num_returns=len(answers), timeout=SAID_S)
    if waiting:
        say(
            f"{len(waiting)} of {len(answers)} slots are not free: waiting {PROBE_S - SAID_S:g} s"
            " for them (`ray status` tells who has them)"
        )
        ray.wait(answers, num_returns=len(answers), timeout=PROBE_S - SAID_S)


def _told(answers: Sequence[Any]) -> tuple[list[Taken], str]:
    """What came of looking, and why something did not."""
    ready, waiting = ray.wait(list(answers), num_returns=len(answers), timeout=0)
    seen: list[Taken] = []
    lacking = f"not free for {PROBE_S:g} s" if waiting else ""
    for answer in ready:
        try:
            seen.append(ray.get(answer))
        except RayError as exc:
            lacking = why(exc)
    return seen, lacking


class _Looking:
    """The actor: has its slot until it is killed."""

    def seen(self, slot: Slot) -> Taken:
        with taken(slot) as mine:
            return mine


def _look(node: Node, slot: Slot) -> Any:
    return (
        ray.remote(_Looking)
        .options(
            **slot.of_actor,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node.id, soft=False),
        )
        .remote()
    )


def why(exc: BaseException) -> str:
    """In a line: of what was raised on a node that, and not where."""
    lines = str(exc).strip().splitlines() or [type(exc).__name__]
    return lines[-1] if isinstance(exc, RayTaskError) else lines[0]
