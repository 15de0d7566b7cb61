"""Which GPUs a server may use, said so that NVML and CUDA mean the same ones."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import pynvml
from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelInstanceGroup

from autotune.adapters.telemetry.parts import Part, answered, parts_here
from autotune.core.errors import InputRefused, ServerFailed

VISIBLE = "CUDA_VISIBLE_DEVICES"
_ORDER = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
"""CUDA numbers GPUs by their speed unless told to number them as NVML and nvidia-smi do."""


def variables(devices: Sequence[str]) -> dict[str, str]:
    """Environment variables of a server process that may use these alone; none for all. By UUID:
    NVML counts GPUs, too, that a control group keeps from this process, and CUDA does not."""
    if not devices:
        return {}
    uuids = {index: uuid for uuid, index in _uuids(names()).items()}
    return {**_ORDER, VISIBLE: ",".join(uuids.get(device, device) for device in devices)}


def docker_arguments(devices: Sequence[str], gpus: str | None) -> list[str]:
    """Arguments of ``docker run`` that hand these, or what ``gpus`` says, to a container. Docker
    reads the value as a line of CSV, so a list is quoted."""
    if devices:
        return [f'--gpus="device={",".join(devices)}"']
    return [f"--gpus={gpus}"] if gpus else []


def visible(here: Mapping[str, str], told: str | None) -> Mapping[str, str]:
    """Those of the GPUs and slices ``here`` (see `names`) that CUDA shows a process which has this
    for CUDA_VISIBLE_DEVICES: by number among those that it may use, which need not be NVML's, or by
    the beginning of a UUID, up to the first that there is not; all where it is not set."""
    if told is None:
        return here
    gpus = sorted({_gpu(part) for part in here.values()})
    shown: dict[str, str] = {}
    for entry in map(str.strip, told.split(",")):
        if entry.isdigit():
            index = dict(enumerate(gpus)).get(int(entry))
            meant = {name: part for name, part in here.items() if _gpu(part) == index}
        else:
            meant = {name: part for name, part in here.items() if entry and name.startswith(entry)}
        if not meant:
            break
        shown |= meant
    return shown


def _gpu(part: str) -> int:
    """The index of its GPU."""
    return int(part.partition(":")[0])


def seen(devices: Sequence[str], here: Mapping[str, str]) -> int:
    """How many GPUs CUDA shows a process that may use these, or where none are named all that are
    ``here`` (see `names`): of slices a single one, and none beside whole GPUs."""
    if devices:
        return len(devices)
    parts = set(here.values())
    whole = sum(part.isdigit() for part in parts)
    return whole or min(len(parts), 1)


def handed_on(gpus: str | None, here: Mapping[str, str]) -> int:
    """How many GPUs a container sees that ``docker run --gpus`` is given this for: at least one
    where it is given at all, since NVML may not show them here."""
    if not gpus:
        return 0
    told = gpus.strip("'\"")
    named = re.search(r"device=([^\s=]+?)(?:,[a-z]+=|$)", told)
    if named:
        return len(named[1].split(","))
    counted = re.search(r"(?:^|,)(?:count=)?(\d+)(?:,|$)", told)
    return int(counted[1]) if counted else max(1, seen((), here))


def refuse_missing(devices: Sequence[str]) -> None:
    """InputRefused for a device that this machine does not have, or that is named twice."""
    if not devices:
        return
    here = names()
    for place, device in enumerate(devices):
        if device not in here:
            shown = [f"{index} ({uuid})" for uuid, index in sorted(_uuids(here).items())]
            raise InputRefused(
                "server.devices names a GPU that this machine does not have",
                value=device,
                next_step=f"it has {', '.join(shown)}" if shown else "NVML sees none here",
                place=("server", "devices", place),
            )
    if len({here[device] for device in devices}) < len(devices):
        raise InputRefused(
            "server.devices names a GPU twice, by its index and by its UUID",
            value=", ".join(devices),
            place=("server", "devices"),
        )


def refuse_gone(devices: Sequence[str]) -> None:
    """ServerFailed for a device that this machine does not have, as a study began with them all."""
    try:
        refuse_missing(devices)
    except InputRefused as refused:
        raise ServerFailed(
            "a GPU of server.devices is gone",
            value=refused.value,
            next_step=f"{refused.next_step}: look for Xid in the kernel's log, then reset the GPU"
            " or restart this machine",
        ) from refused


def refuse_out_of_range(config: ModelConfig, gpus: int) -> None:
    """InputRefused where an instance group names a GPU that a server does not see which sees so
    many: it counts those that it may use from 0, in their order."""
    for group in config.instance_group:
        if group.kind not in (ModelInstanceGroup.KIND_GPU, ModelInstanceGroup.KIND_AUTO):
            continue
        missing = sorted(index for index in group.gpus if index >= gpus)
        if missing:
            known = f"it sees {gpus}, numbered from 0" if gpus else "it sees none"
            raise InputRefused(
                f"an instance group of {config.name} names a GPU that the server does not see:"
                f" {known} (in the order of server.devices, where that is given)",
                value=f"gpus: {missing}",
                next_step="Change the group's gpus in its config.pbtxt, or server.devices.",
            )


def names() -> Mapping[str, str]:
    """Every GPU and MIG slice by its index (of whole GPUs) and its UUID, each to its own name as
    `parts_here` gives it; empty without a driver. DriverHangs where that does not answer."""
    try:
        return answered(lambda: named(parts_here()))
    except pynvml.NVMLError:
        return {}


def named(parts: Sequence[Part]) -> dict[str, str]:
    """As `names`, of these."""
    found: dict[str, str] = {}
    for part in parts:
        found[pynvml.nvmlDeviceGetUUID(part.handle)] = part.name
        if not part.sliced:
            found[part.name] = part.name
    return found


def hidden(told: str | None) -> bool:
    """Whether this for CUDA_VISIBLE_DEVICES hides every GPU."""
    return told is not None and not told.strip()


def allowed(devices: Sequence[str], told: str | None, here: Mapping[str, str]) -> set[str]:
    """The own names of the parts ``here`` (see `names`) that a server may use: those that are
    named, or all that CUDA shows a process with this for CUDA_VISIBLE_DEVICES."""
    if devices:
        return {here[device] for device in devices if device in here}
    return set(visible(here, told).values())


def _uuids(here: Mapping[str, str]) -> dict[str, str]:
    return {name: part for name, part in here.items() if not name.isdigit()}
