"""An emulated step for Triton's Python backend. It computes nothing: it takes time and passes its
input on.

It can take two kinds of time, either or both. A *worker*, which is a model instance, is busy for so
long per request: more instances do more at once, as those of a CPU step on as many cores. A
*device* is held by one batch at a time, for what a table gives: all instances of all processes on
this machine that name the same device share it, as those on one GPU do, so that more of them make
nothing faster. For how long it held its device each instance tells on the server's metrics page, as
``emulated_device_busy_seconds{device="…",process="…"}``. Nobody's processor is used: times are
slept.

Settings, as ``parameters`` of config.pbtxt, each time in milliseconds:

``work_ms``    of the worker, per request; a batch of n takes n times as long (default 0)
``batch_ms``   of the device, by batch size: ``1:72, 4:150, 8:260``; linear between the entries, and
               beyond the last as between the last two (default: no device)
``after_ms``   of the worker, per request, once it has the device behind it (default 0)
``device``     the device's name (default ``emulated0``)
``jitter``     the share by which each of these differs from what is given at most (default 0)
``seed``       of the jitter, which every instance draws for itself (default 0)
``scale``      a factor to all times (default 1)
"""

from __future__ import annotations

import fcntl
import json
import os
import random
import re
import struct
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

BUSY = "emulated_device_busy_seconds"
TOLD_EVERY_S = 0.05
"""A device that is busy for long tells it in parts, so that it can be watched."""
NUMPY_1 = int(np.__version__.split(".", 1)[0]) < 2
Table = list[tuple[int, float]]


class TritonPythonModel:
    """One worker, in a process of its own."""

    def initialize(self, args: dict[str, str]) -> None:
        config = json.loads(args["model_config"])
        settings = {key: v["string_value"] for key, v in config.get("parameters", {}).items()}
        self.batched = config.get("max_batch_size", 0) > 0
        self.input, self.output = config["input"][0]["name"], config["output"][0]["name"]
        self.work_ms, self.after_ms, self.jitter, scale = (
            float(settings.get(*key))
            for key in (("work_ms", 0), ("after_ms", 0), ("jitter", 0), ("scale", 1))
        )
        self.second = scale / 1e3
        seed = f"{settings.get('seed', 0)} {args['model_instance_name']}"
        self.random = random.Random(seed)  # noqa: S311 - not for secrets
        self.device = None
        if "batch_ms" in settings:
            self.table = table_of(settings["batch_ms"])
            self.device = Device(settings.get("device", "emulated0"))
        if not NUMPY_1:
            silence_capsule_destructor()

    def execute(self, requests: list[Any]) -> list[Any]:
        now = time.monotonic()
        tensors = [pb_utils.get_input_tensor_by_name(request, self.input) for request in requests]
        arrays = [to_array(tensor) for tensor in tensors]
        size = sum(len(array) for array in arrays) if self.batched else len(arrays)
        now = sleep_until(now + self.seconds(size * self.work_ms))
        if self.device is not None:
            now = self.device.hold(now, self.seconds(batch_ms(self.table, size)))
        sleep_until(now + self.seconds(size * self.after_ms))
        return [pb_utils.InferenceResponse([to_tensor(self.output, array)]) for array in arrays]

    def seconds(self, ms: float) -> float:
        return ms * self.second * (1 + self.jitter * self.random.uniform(-1, 1))

    def finalize(self) -> None:
        if self.device is not None:
            self.device.close()


class Device:
    """Held by one at a time of all processes on this machine that name it.

    Who holds it has locked its file, and writes into it until when it was busy, so that one who
    waited begins at that time and not when the system happens to wake it. Times are those of the
    monotonic clock, which all processes share.
    """

    def __init__(self, name: str) -> None:
        if not re.fullmatch(r"[A-Za-z0-9._-]{1,64}", name):
            raise pb_utils.TritonModelException(
                "the device's name is made of letters, digits, '.', '_' and '-', not " + repr(name)
            )
        path = Path(tempfile.gettempdir()) / f"emulated-device-{os.getuid()}-{name}"
        self.file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        self.family = pb_utils.MetricFamily(
            name=BUSY,
            description="Seconds for which an emulated device was held. Emulated: no hardware.",
            kind=pb_utils.MetricFamily.COUNTER,
        )
        # Its own, since a counter that instances share is gone when the first of them ends, and
        # the server dies of the others' use of it (triton-inference-server/server#8663).
        self.busy = self.family.Metric(labels={"device": name, "process": str(os.getpid())})

    def hold(self, asked: float, takes_s: float) -> float:
        """Wait for it, keep it for so long, and return when it was free again."""
        fcntl.flock(self.file, fcntl.LOCK_EX)
        try:
            now = max(asked, min(self._free_at(), time.monotonic()))
            ends = now + takes_s
            while now < ends:
                until = min(now + TOLD_EVERY_S, ends)
                self.busy.increment(until - now)
                now = sleep_until(until)
            os.pwrite(self.file, struct.pack("d", ends), 0)
        finally:
            fcntl.flock(self.file, fcntl.LOCK_UN)
        return ends

    def close(self) -> None:
        os.close(self.file)
        del self.busy, self.family  # in this order, and before the process ends (server#8662)

    def _free_at(self) -> float:
        content = os.pread(self.file, 8, 0)
        return float(struct.unpack("d", content)[0]) if len(content) == 8 else 0.0


def sleep_until(deadline: float) -> float:
    """By the monotonic clock. Returns the deadline, and not when it woke: times that follow one
    another add up to what they should."""
    while (left := deadline - time.monotonic()) > 0:
        time.sleep(left)
    return deadline


def table_of(text: str) -> Table:
    """The entries by batch size; TritonModelException where the text is no table."""
    try:
        pairs = [entry.split(":") for entry in text.split(",")]
        table = sorted((int(size), float(ms)) for size, ms in pairs)
    except ValueError as error:
        raise pb_utils.TritonModelException(
            "batch_ms is like '1:72, 4:150', not " + repr(text)
        ) from error
    if table[0][0] < 1 or min(ms for _, ms in table) < 0 or len(dict(table)) < len(table):
        raise pb_utils.TritonModelException(
            "batch_ms gives a time to batch sizes of 1 and more, once each, not " + repr(text)
        )
    return table


def batch_ms(table: Table, size: int) -> float:
    below = sum(entry[0] <= size for entry in table)
    if below == 0 or len(table) == 1:
        return table[0][1]
    (x0, y0), (x1, y1) = table[min(below, len(table) - 1) - 1 :][:2]
    return y0 + (y1 - y0) * (size - x0) / (x1 - x0)


def to_array(tensor: Any) -> Any:
    """`as_numpy` is corrupt with NumPy 2 (python_backend PR 384), and DLPack kills the stub with
    NumPy 1."""
    return tensor.as_numpy() if NUMPY_1 else np.from_dlpack(tensor)


def to_tensor(name: str, array: Any) -> Any:
    array = np.ascontiguousarray(array)
    return pb_utils.Tensor(name, array) if NUMPY_1 else pb_utils.Tensor.from_dlpack(name, array)


def silence_capsule_destructor() -> None:
    """The stub's DLPack capsules, once used, complain in their destructor on every tensor."""

    def quiet(inner: Callable[..., object]) -> Callable[..., None]:
        def hook(*args: Any) -> None:
            value = args[1] if len(args) > 1 else args[0].exc_value
            if "PyCapsule_GetPointer called with incorrect name" not in str(value):
                inner(*args)

        return hook

    sys.excepthook = quiet(sys.excepthook)
    sys.unraisablehook = quiet(sys.unraisablehook)
