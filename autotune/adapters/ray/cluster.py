"""The cluster: connecting to it, its nodes, and what they have."""

from __future__ import annotations

import logging
import math
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import ray
from ray._private import services
from ray._private import worker as driver
from ray._raylet import GcsClient  # type: ignore[attr-defined] # compiled; as `ray health-check` asks
from ray.exceptions import AuthenticationError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from autotune.adapters.ray import sources
from autotune.adapters.ray.slots import UNKNOWN_GPU, Slot, Taken, process_here, shown, taken
from autotune.core.errors import AutotuneError, InputRefused, Interrupted
from autotune.core.kinds import Kind, chosen, counted

AUTO = "auto"
LOCAL = "local"
NODE_ID = "ray.io/node-id"
HIGHEST_PORT = 65535
CONNECT_S = 5.0
PROBE_S = 60.0
"""How long a node may take to give its slots to those who look what they are."""
SAID_S = 8.0
"""So long is waited for a slot without a word: a process comes up, and another's ends."""
NAMED = 8
"""How many nodes are named in a line."""
_THERE = {"env_vars": {"RAY_kill_child_processes_on_worker_exit": "0"}}
"""On the nodes. Ray would kill the guards of servers and loads, and nothing else that they started:
what a guard would have ended and removed would be left (Python backends, shared memory)."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def connected(address: str) -> Iterator[str]:
    """Be the driver of the cluster at ``address`` (``auto``: the one that runs here; ``local``: one
    of this machine alone, for this time); tells where it was found. What it started on the nodes
    ends with it."""
    logging.getLogger("ray").setLevel(logging.CRITICAL + 1)
    found = _found(address)
    shown_as = address if found == address else f"{address}, which is {found}"
    _refuse_client(found)
    _refuse_silent(found, shown_as)
    with hushed():
        with _own_signals():
            try:
                ray.init(
                    address=found,
                    log_to_driver=False,
                    logging_level=logging.CRITICAL + 1,
                    configure_logging=False,
                    include_dashboard=False if found == LOCAL else None,
                    runtime_env=_THERE,
                )
            except (RayError, ConnectionError, OSError, RuntimeError, ValueError) as exc:
                raise _no_cluster(shown_as, why(exc)) from exc
        try:
            yield found
        finally:
            ray.shutdown()


def _found(address: str) -> str:
    """Of ``auto`` what Ray takes for it: RAY_ADDRESS, else what `ray start` began here."""
    if address != AUTO:
        return address
    try:
        found: str = services.get_ray_address_from_environment(AUTO, None)
    except ConnectionError as exc:
        raise _no_cluster(address, why(exc)) from exc
    return found


@contextmanager
def hushed() -> Iterator[None]:
    """Of a node that is lost Ray prints its daemon's last words on standard output, whatever
    ``log_to_driver`` says: some fifty lines, of which ours says the one that matters."""
    before = driver._worker_logs_enabled  # noqa: SLF001 - there is no option for it
    driver._worker_logs_enabled = False  # noqa: SLF001
    try:
        yield
    finally:
        driver._worker_logs_enabled = before  # noqa: SLF001


def _no_cluster(address: str, reason: str) -> InputRefused:
    return InputRefused(
        "there is no Ray cluster at this address",
        value=address,
        next_step="start one (`ray start --head` here, `ray start --address=HOST:6379` on each"
        " other machine, with the same RAY_AUTH_MODE and token as here), give its address by"
        f" --ray-address, or take --ray-address {LOCAL} for this machine alone ({reason})",
    )


def _refuse_silent(address: str, shown_as: str) -> None:
    """Ray itself tries for many minutes where nothing listens, or no token is right."""
    host, colon, port = address.rpartition(":")
    if not colon:
        return
    if not port.isdecimal() or not 0 < int(port) <= HIGHEST_PORT:
        raise _no_cluster(shown_as, f"a port is a number from 1 to {HIGHEST_PORT}")
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_S).close()
        GcsClient(address=address)
    except AuthenticationError as exc:
        raise InputRefused(
            "this Ray cluster wants a token, and another than this process has",
            value=shown_as,
            next_step="set RAY_AUTH_MODE=token here and wherever `ray start` is called, with the"
            " head's ~/.ray/auth_token (or RAY_AUTH_TOKEN) on each machine",
        ) from exc
    except (OSError, RayError) as exc:
        raise _no_cluster(shown_as, why(exc)) from exc


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
    address: str = ""

    @property
    def name(self) -> str:
        """For people: containers may have the same host's name."""
        return f"{self.host} ({self.address})" if self.address else self.host


def nodes() -> list[Node]:
    """Those that live, by their ids."""
    found = [
        Node(
            id=each["NodeID"],
            host=each["NodeManagerHostname"],
            address=each["NodeManagerAddress"],
            resources=each["Resources"],
        )
        for each in _listed()
        if each["Alive"]
    ]
    return sorted(found, key=lambda node: node.id)


def _listed() -> list[dict[str, Any]]:
    listed: Callable[[], list[dict[str, Any]]] = ray.nodes
    return listed()


def slot_for(
    found: Sequence[Node],
    cpus: int | None,
    before: Mapping[str, Any] | None = None,
    gpus: int | None = None,
) -> Slot:
    """What a trial is given: on resume what is recorded from ``before``, whatever nodes there are
    now; else a GPU where there is any, with its share of its node's cores; else two cores. Or as
    many as ``cpus`` says, and a GPU or none as ``gpus`` does."""
    if before and "cores" in before:
        has_gpu = bool(before.get("gpus")) if gpus is None else gpus > 0
        return Slot(cpus=cpus or int(before["cores"]), gpu=has_gpu)
    with_gpus = [node for node in found if node.resources.get("GPU", 0) >= 1]
    if gpus == 0 or not (with_gpus or gpus):
        return Slot(cpus=cpus or 2)
    shares = [int(n.resources.get("CPU", 0) // n.resources["GPU"]) for n in with_gpus]
    return Slot(cpus=cpus or max(1, min(shares, default=1)), gpu=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class At:
    """Where a process of a study is: on which ``node``, by Ray's id, at which ``address`` that is;
    ``place`` names the host, the process and what of it is its own, ``device`` the last alone: the
    GPU, else the cores, by which it is known again (empty where that is not known)."""

    node: str
    address: str
    place: str
    device: str = ""

    def __str__(self) -> str:
        return f"{self.place} ({self.address})"


def at(place: str = "", device: str = "") -> At:
    """Of this process, which is on a node."""
    return At(
        node=ray.get_runtime_context().get_node_id(),
        address=ray.util.get_node_ip_address(),  # type: ignore[no-untyped-call]
        place=place or process_here(),
        device=device,
    )


def _alive() -> set[str]:
    return {node.id for node in nodes()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Devices:
    """The slots of one ``kind`` that a study uses: how many of each of the ``nodes``, by id, and
    how ``many`` of them at once. ``left_alone`` says what is not used, and why; ``say`` tells who
    looks on, ``alive`` which nodes live."""

    slot: Slot
    kind: Kind
    nodes: Mapping[str, int]
    many: int
    left_alone: tuple[str, ...] = ()
    say: Callable[[str], None] = field(default=lambda _: None, compare=False)
    alive: Callable[[], Collection[str]] = field(default=_alive, compare=False)

    @property
    def there(self) -> int:
        """How many there are, at once or not."""
        return sum(self.nodes.values())

    def selector(self) -> dict[str, str]:
        """For Ray: one of these nodes."""
        return {NODE_ID: f"in({','.join(self.nodes)})"}

    def apart_from(self, unlike: Collection[At]) -> Devices:
        """The nodes that have others than these, with how many; all of them where no such node
        lives. One whose devices are not known from one another has none."""
        blind = {each.node for each in unlike if not each.device}
        left = Counter({node: many for node, many in self.nodes.items() if node not in blind})
        left.subtract(each.node for each in unlike if each.node in left)
        others = dict(+left)
        return replace(self, nodes=others) if set(self.alive()).intersection(others) else self

    def refuse_gone(self, unlike: Mapping[str, int] | None = None) -> None:
        """AutotuneError where none of the nodes lives any more, or has a slot that may be used:
        some are ``unlike`` the others, so many of each node."""
        alive, unlike = set(self.alive()), unlike or {}
        if any(node in alive and many > unlike.get(node, 0) for node, many in self.nodes.items()):
            return
        raise AutotuneError(
            "no device of the kind that this study measures on is left in the Ray cluster"
            + (", but those that measure otherwise" if alive.intersection(unlike) else ""),
            value=str(self.kind),
            next_step="what was measured is stored: when such a node is back, the same command"
            " with --resume goes on",
        )


@dataclass(slots=True, kw_only=True)
class Patience:
    """Says once that nothing is on a device yet, where that lasts: what nodes have, another job may
    use."""

    say: Callable[[str], None]
    clock: Callable[[], float] = time.monotonic
    _since: float | None = None

    def waits(self) -> None:
        now = self.clock()
        if self._since is None:
            self._since = now
        elif now - self._since > SAID_S:
            self.say(
                "waiting for a slot of the Ray cluster: its process comes up, or another job has it"
                " (`ray status` tells who)"
            )
            self._since = math.inf

    def begun(self) -> None:
        self._since = None


def devices(
    *,
    cpus: int | None = None,
    gpus: int | None = None,
    slots: int | None = None,
    before: dict[str, Any] | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Devices:
    """Look what the nodes have, and choose one kind of it: the one that is recorded from ``before``
    on resume, else the most numerous. InputRefused where there is none."""
    found = nodes()
    slot = slot_for(found, cpus, before, gpus)
    holding = {node: slot.fit_into(node.resources) for node in found}
    holding = {node: many for node, many in holding.items() if many}
    if not holding:
        raise _too_small(slot, found)
    say(f"looking at {counted(len(holding), 'node')} of the Ray cluster")
    others = _with_other_code(list(holding), say)
    holding = {node: many for node, many in holding.items() if node not in others}
    refused = [
        Looked(node=node, left_alone=_left_alone(node, told)) for node, told in others.items()
    ]
    return arranged([*refused, *_looked_at(holding, slot, say)], slot, before, slots, say)


def _too_small(slot: Slot, found: Sequence[Node]) -> InputRefused:
    have = [f"{node.name}: {shown(node.resources)}" for node in found]
    more = [f"and {counted(len(have) - NAMED, 'more node')}"] if len(have) > NAMED else []
    return InputRefused(
        f"no node of the Ray cluster has what a trial needs, {slot}",
        value="; ".join([*have[:NAMED], *more]),
        next_step="`ray status` tells what there is; --slot-cpus N sets how many cores a trial is"
        " given, --slot-gpus 0 that it needs no GPU",
    )


def arranged(
    looked: Sequence[Looked],
    slot: Slot,
    before: Mapping[str, Any] | None,
    slots: int | None,
    say: Callable[[str], None],
) -> Devices:
    """What a study uses of the nodes that were ``looked`` at; see `devices`."""
    left_alone = [each.left_alone for each in looked if each.left_alone]
    usable = [(each, each.kind) for each in looked if each.kind is not None]
    kind = chosen([kind for each, kind in usable for _ in range(each.many)], before)
    if kind is None:
        raise _nothing_fits(slot, {kind for _, kind in usable}, left_alone)
    left_alone += [
        f"{each.node.name} is left alone: its devices are {other}, and this study measures on"
        f" {kind}"
        for each, other in usable
        if other != kind
    ]
    used = {each.node.id: each.many for each, its in usable if its == kind}
    many = sum(used.values())
    if slots is not None and slots > many:
        left_alone.append(
            f"{counted(many, 'trial')} side by side, and not {slots} as --slots asks for: the"
            f" cluster has {counted(many, 'slot')} of {slot} for this study"
        )
    return Devices(
        slot=slot,
        kind=kind,
        nodes=used,
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
        return Looked(node=node, left_alone=_left_alone(node, reason))
    less = f"{node.name}: {len(seen)} of its {many} slots are used ({lacking})"
    return Looked(
        node=node,
        kind=seen[0].kind,
        many=len(seen),
        left_alone=less if len(seen) < many else "",
    )


def _left_alone(node: Node, reason: str) -> str:
    return f"{node.name} is left alone: {reason}"


def _unusable(seen: Sequence[Taken], lacking: str) -> str:
    if not seen:
        return f"it gave no slot ({lacking})"
    for each in seen:
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


def _with_other_code(found: Sequence[Node], say: Callable[[str], None]) -> dict[Node, str]:
    """Of the nodes those whose autotune is another than this machine's, or does not answer, and
    why. Asked first, by what needs none of it there: else what comes back could not be read."""
    look = ray.remote(sources.looking())
    asked = {
        node: look.options(
            num_cpus=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node.id, soft=False),
        ).remote()
        for node in found
    }
    ready = _wait(list(asked.values()), "node", say)
    others: dict[Node, str] = {}
    for node, answer in asked.items():
        try:
            if answer not in ready:
                others[node] = f"it did not answer for {PROBE_S:g} s"
            elif reason := sources.other_than_here(ray.get(answer)):
                others[node] = reason
        except RayError as exc:
            others[node] = f"it did not answer ({why(exc)})"
    return others


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
        ready = _wait([answer for there in asked.values() for answer in there], "slot", say)
        found: list[Looked] = []
        for node, answers in asked.items():
            seen, lacking = _told(answers, [each for each in answers if each in ready])
            alike = seen if slot.gpu else seen * holding[node]
            found.append(judged(node, holding[node], alike, lacking))
        return found
    finally:
        for each in (each for there in looking.values() for each in there):
            ray.kill(each)


@interruptible()
def _wait(answers: list[Any], what: str, say: Callable[[str], None]) -> Collection[Any]:
    """The answers that came within `PROBE_S`, each from another of ``what``."""
    if not answers:
        return ()
    _, waiting = ray.wait(answers, num_returns=len(answers), timeout=SAID_S)
    if waiting:
        say(
            f"waiting {PROBE_S - SAID_S:g} s more for {counted(len(waiting), what)} of"
            f" {len(answers)} (`ray status` tells who has them)"
        )
    ready, _ = ray.wait(
        answers, num_returns=len(answers), timeout=PROBE_S - SAID_S if waiting else 0
    )
    return set(ready)


def _told(answers: Sequence[Any], ready: Collection[Any]) -> tuple[list[Taken], str]:
    """What came of looking, and why something did not."""
    seen: list[Taken] = []
    lacking = f"not free for {PROBE_S:g} s" if len(ready) < len(answers) else ""
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
