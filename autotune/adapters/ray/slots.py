"""What one trial at a time is given on a node: cores of its own, and a GPU or a slice of one."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from autotune.adapters import hardware, machine
from autotune.adapters.telemetry.cores import affinity, available_cores
from autotune.core.kinds import Kind

_CORE = "\0triton-autotune.core"
UNKNOWN_GPU = "unknown GPU"
"""The name of one that NVML does not tell: it may be equal to no other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """As Ray counts: so many ``cpus``, and a GPU (a slice where Ray was told of slices) or none."""

    cpus: int
    gpu: bool = False

    @property
    def resources(self) -> dict[str, float]:
        return {"CPU": float(self.cpus), **({"GPU": 1.0} if self.gpu else {})}

    @property
    def of_actor(self) -> dict[str, int]:
        """For Ray: an actor that has it to itself, and is not begun again by Ray."""
        return {"num_cpus": self.cpus, "num_gpus": 1 if self.gpu else 0, "max_restarts": 0}

    def fit_into(self, resources: dict[str, float]) -> int:
        """How many of them a node with these resources holds."""
        return int(min(resources.get(key, 0.0) // need for key, need in self.resources.items()))

    def __str__(self) -> str:
        return shown(self.resources)


def shown(resources: Mapping[str, float]) -> str:
    """Of resources, as Ray counts them, the processor cores and the GPUs."""
    gpus = resources.get("GPU", 0)
    return f"{resources.get('CPU', 0):g} CPU" + (f", {gpus:g} GPU" if gpus else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """A slot on a node. ``pinned``: its cores, which no other slot of this machine has; none where
    the machine has not as many left, and slots share them, or where a control group's quota says
    how much of them a container has. ``gpu`` is its id, as Ray gave it."""

    kind: Kind
    pinned: tuple[int, ...] = ()
    gpu: str = ""

    @property
    def name(self) -> str:
        if self.gpu:
            return f"ray-gpu-{self.gpu}"
        if self.pinned:
            return f"ray-cores-{'-'.join(map(str, self.pinned))}"
        return f"ray-{os.getpid()}"

    @property
    def device(self) -> str:
        """Which of its node's it is: the GPU, else the cores; empty where nothing is its own."""
        return f"GPU {self.gpu}" if self.gpu else self._cores

    @property
    def place(self) -> str:
        """For people: where something was measured."""
        own = dict.fromkeys((self.device, self._cores))
        return ", ".join([process_here(), *filter(None, own)])

    @property
    def _cores(self) -> str:
        cores = "core" if len(self.pinned) == 1 else "cores"
        return f"{cores} {', '.join(map(str, self.pinned))}" if self.pinned else ""


@contextmanager
def taken(slot: Slot) -> Iterator[Taken]:
    """Pin this process to cores of its own, with all that it starts. Ray has told CUDA already
    which GPU is its, by a number that is NVML's, as CUDA's is where it is told so; one that is
    given none sees none."""
    with ExitStack() as stack:
        if slot.gpu:
            os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
        else:
            os.environ["CUDA_VISIBLE_DEVICES"] = ""
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "") if slot.gpu else ""
        pinned = _pin(stack, slot.cpus)
        yield Taken(kind=_kind(slot, visible), pinned=pinned, gpu=visible)


def process_here() -> str:
    """Of this process, for people."""
    return f"{machine.describe()['host']}, process {os.getpid()}"


def _kind(slot: Slot, visible: str) -> Kind:
    names, driver = hardware.shown(visible)
    return Kind(
        processor=str(machine.describe()["processor"]),
        cores=slot.cpus,
        gpus=(names or (UNKNOWN_GPU,)) if slot.gpu else (),
        driver=driver,
    )


def _pin(stack: ExitStack, count: int) -> tuple[int, ...]:
    """The lock on each core is an abstract socket's name (Linux): gone with its process. It is not
    seen from another container, which may have the same cores. One with a quota has its share of
    them without, of whichever are free; its slots are not pinned."""
    before = affinity(os.getpid())
    if available_cores(os.getpid()) < len(before):
        return ()
    with ExitStack() as locks:
        mine: list[int] = []
        for core in sorted(before):
            if len(mine) == count:
                break
            lock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            try:
                lock.bind(f"{_CORE}.{core}")
            except OSError:
                lock.close()
                continue
            locks.callback(lock.close)
            mine.append(core)
        if len(mine) < count:
            return ()
        stack.push(locks.pop_all())
    run_on(set(mine))
    stack.callback(run_on, before)
    return tuple(mine)


def run_on(cores: set[int]) -> None:
    """Each thread of this process: children have the cores of the thread that starts them."""
    for thread in Path("/proc/self/task").iterdir():
        with suppress(OSError):
            os.sched_setaffinity(int(thread.name), cores)
