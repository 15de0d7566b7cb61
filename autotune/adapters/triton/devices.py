"""Which GPUs a server may use, said so that NVML and CUDA mean the same ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pynvml

from autotune.adapters.telemetry.parts import parts_here
from autotune.core.errors import InputRefused

VISIBLE = "CUDA_VISIBLE_DEVICES"
_ORDER = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
"""CUDA numbers GPUs by their speed unless told to number them as NVML and nvidia-smi do."""


def variables(devices: Sequence[str]) -> dict[str, str]:
    """Environment variables of a server process that may use these alone; none for all."""
    return {**_ORDER, VISIBLE: ",".join(devices)} if devices else {}


def docker_arguments(devices: Sequence[str], gpus: str | None) -> list[str]:
    """Arguments of ``docker run`` that hand these, or what ``gpus`` says, to a container. Docker
    reads the value as a line of CSV, so a list is quoted."""
    if devices:
        return [f'--gpus="device={",".join(devices)}"']
    return [f"--gpus={gpus}"] if gpus else []


def refuse_missing(devices: Sequence[str]) -> None:
    """InputRefused for a device that this machine does not have."""
    if not devices:
        return
    here = names()
    for device in devices:
        if device not in here:
            shown = [f"{index} ({uuid})" for uuid, index in sorted(_uuids(here).items())]
            raise InputRefused(
                "server.devices names a GPU that this machine does not have",
                value=device,
                next_step=f"it has {', '.join(shown)}" if shown else "NVML sees none here",
            )


def names() -> Mapping[str, str]:
    """Every GPU and MIG slice by its index (of whole GPUs) and its UUID, each to its own name as
    `parts_here` gives it; empty without a driver."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return {}
    try:
        found: dict[str, str] = {}
        for part in parts_here(pynvml):
            found[pynvml.nvmlDeviceGetUUID(part.handle)] = part.name
            if not part.sliced:
                found[part.name] = part.name
    except pynvml.NVMLError:
        return {}
    else:
        return found
    finally:
        pynvml.nvmlShutdown()


def _uuids(here: Mapping[str, str]) -> dict[str, str]:
    return {name: part for name, part in here.items() if not name.isdigit()}
