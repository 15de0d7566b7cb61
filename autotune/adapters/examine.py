"""What this machine can measure, one check after another; nothing is changed or fetched."""

from __future__ import annotations

import platform
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil

from autotune.adapters import hardware, machine
from autotune.adapters.check import Check
from autotune.adapters.examine_gpus import gpu_checks
from autotune.adapters.triton import environment, libpython, server_python, unpacked
from autotune.adapters.triton.interpreter import usable_interpreters
from autotune.adapters.triton.ports import LOOPBACK, LOOPBACK_UP, loopback_fault
from autotune.core.capability import INSTALL_TENSORRT
from autotune.core.errors import AutotuneError

SHM_MB = 64
"""Every Python-backend instance takes a megabyte or more of /dev/shm."""
CACHE_MB = 600
"""The embedded server's environment with its downloads."""


def checks(cache_dir: Path, work_dir: Path, server_dir: Path | None = None) -> Iterator[Check]:
    """All checks, in the order to read them. ``server_dir``: of an embedded server that is there
    unpacked."""
    yield _platform()
    yield _cores()
    yield _idle()
    yield _embedded(cache_dir) if server_dir is None else _unpacked(server_dir)
    yield _shared_memory()
    yield _disk("cache", cache_dir)
    yield _disk("scratch", work_dir)
    yield _loopback()
    gpus = list(gpu_checks())
    yield from gpus
    if any(gpu.name == "GPU" and gpu.state == "ok" for gpu in gpus):
        yield _tensorrt()
        yield _onnxruntime(cache_dir, server_dir)
    yield _docker()


def _platform() -> Check:
    name = f"{platform.system()} {platform.machine()}, Python {platform.python_version()}"
    try:
        environment.refuse_platform(platform.system(), platform.machine(), platform.libc_ver())
    except AutotuneError as error:
        return Check(
            name="platform",
            state="missing",
            detail=f"{name}: {error.rule}",
            next_step=error.next_step,
            required=True,
        )
    return Check(name="platform", state="ok", detail=name, required=True)


def _cores() -> Check:
    count = machine.cores()
    memory = psutil.virtual_memory().total / 2**30
    detail = f"{count} cores, {memory:.0f} GiB memory"
    if count < 2:
        advice = "the load generator and the server share one core: measure low rates only"
        return Check(name="cores", state="warning", detail=detail, next_step=advice)
    return Check(name="cores", state="ok", detail=detail)


def _idle() -> Check:
    busy = machine.busy_percent()
    detail = f"{busy:.0f}% of the processor is in use by other work"
    if busy > machine.BUSY_PERCENT:
        advice = "what runs beside a study is measured with it: stop it first"
        return Check(name="idle", state="warning", detail=detail, next_step=advice)
    return Check(name="idle", state="ok", detail=detail)


def _embedded(cache_dir: Path) -> Check:
    ready = environment.prepared(cache_dir)
    if ready is not None:
        return Check(name="embedded Triton", state="ok", detail=f"ready in {ready.root}")
    try:
        found = list(usable_interpreters())
    except AutotuneError as error:
        return Check(
            name="embedded Triton",
            state="missing",
            detail=error.rule,
            next_step=error.next_step,
            required=True,
        )
    library = next((path for python in found if (path := libpython.find(python))), None)
    if library is None and not any(python.minor in libpython.BROUGHT for python in found):
        return Check(
            name="embedded Triton",
            state="warning",
            detail=f"not prepared yet; no shared libpython for {found[0].path}",
            next_step="the first study tries to fetch it; else " + libpython.advice(found[0].minor),
        )
    return Check(
        name="embedded Triton",
        state="ok",
        detail=f"not prepared yet; {library or 'a library of its own'} serves its stub",
        next_step="the first study prepares it (about 120 MB of downloads)",
    )


def _unpacked(server_dir: Path) -> Check:
    try:
        detail = unpacked.read(server_dir).examine()
    except AutotuneError as error:
        return Check(
            name="embedded Triton",
            state="missing",
            detail=error.rule,
            next_step=error.next_step,
            required=True,
        )
    return Check(name="embedded Triton", state="ok", detail=detail)


def _shared_memory() -> Check:
    try:
        size, _, free_bytes = shutil.disk_usage("/dev/shm")  # noqa: S108
    except OSError:
        return Check(
            name="shared memory",
            state="missing",
            detail="it is not mounted; the Python backend needs it",
            required=True,
        )
    free = free_bytes / 2**20
    detail = f"{free:.0f} of {size / 2**20:.0f} MB free in /dev/shm"
    if free < SHM_MB:
        advice = "enlarge it (docker: --shm-size=256m); each model instance needs a megabyte"
        return Check(name="shared memory", state="warning", detail=detail, next_step=advice)
    return Check(name="shared memory", state="ok", detail=detail)


def _disk(name: str, folder: Path) -> Check:
    there = next(parent for parent in (folder, *folder.parents) if parent.exists())
    free = shutil.disk_usage(there).free / 2**20
    detail = f"{folder}, {free / 1024:.1f} GiB free"
    if free < CACHE_MB:
        return Check(
            name=name, state="warning", detail=detail, next_step=f"{CACHE_MB} MB are needed"
        )
    return Check(name=name, state="ok", detail=detail)


def _loopback() -> Check:
    fault = loopback_fault()
    if fault:
        return Check(
            name="loopback",
            state="missing",
            detail=f"no connection to {LOOPBACK} can be made: {fault}",
            next_step=LOOPBACK_UP,
            required=True,
        )
    return Check(name="loopback", state="ok", detail="a free port was opened and reached")


def _tensorrt() -> Check:
    version = hardware.installed_version("tensorrt")
    if version is None:
        return Check(name="TensorRT", state="warning", detail=INSTALL_TENSORRT)
    return Check(name="TensorRT", state="ok", detail=f"{version}, to build plans with")


def _onnxruntime(cache_dir: Path, server_dir: Path | None) -> Check:
    """What it computes on, where variants are built and where the embedded server serves them."""
    pythons = {"this Python": server_python.this_python()}
    served = _serving(cache_dir, server_dir)
    if served is not None:
        pythons["the embedded server"] = served
    told = [f"{whose}: {_providers(python)}" for whose, python in pythons.items()]
    return Check(name="ONNX Runtime", state="ok", detail="; ".join(told))


def _serving(cache_dir: Path, server_dir: Path | None) -> server_python.ServerPython | None:
    """The Python that serves models; None where there is none yet, as another check tells."""
    if server_dir is not None:
        with suppress(AutotuneError):
            return server_python.of_unpacked(unpacked.read(server_dir))
        return None
    ready = environment.prepared(cache_dir)
    return None if ready is None else server_python.of_environment(ready)


def _providers(python: server_python.ServerPython) -> str:
    names = sorted(name.removesuffix("ExecutionProvider") for name in python.providers())
    return ", ".join(names) or "none"


def _docker() -> Check:
    found = shutil.which("docker")
    if found is None:
        return Check(name="docker", state="warning", detail="not installed: launch docker is out")
    return Check(name="docker", state="ok", detail=f"client at {found}; the engine was not asked")
