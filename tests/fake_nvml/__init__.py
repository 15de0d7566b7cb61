"""A ``libnvidia-ml.so.1`` that answers what a test says, for pynvml as it is.

``nvml.c`` lists what can be said. In this process by `loaded`; in another one by the environment:
``LD_LIBRARY_PATH`` of the folder of what `build` built, and ``FAKE_NVML``.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pynvml

SOURCE = Path(__file__).with_name("nvml.c")
NEW, OLD = 580, 470
"""Versions of the driver; the old one knows nothing of GPM and lacks functions of newer names."""


def compiler() -> str | None:
    return shutil.which("cc")


def build(folder: Path, driver: int = NEW) -> Path:
    """The library, below ``folder``, built where it is not there."""
    library = folder / str(driver) / "libnvidia-ml.so.1"
    if not library.exists():
        library.parent.mkdir(parents=True, exist_ok=True)
        command = ["cc", "-std=gnu11", "-O1", "-Wall", "-Wextra", "-shared", "-fPIC"]
        subprocess.run([*command, f"-DDRIVER={driver}", "-o", library, SOURCE], check=True)
    return library


class FakeNvml:
    """The library while pynvml uses it."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library

    def set(self, *assignments: str) -> None:
        """As in ``nvml.c``: ``set("busy.0=80", "users.0=41")``."""
        assert self._library.fake_nvml(" ".join(assignments).encode()) == 0, assignments

    @property
    def begun(self) -> int:
        """How often it was begun and not ended."""
        return int(self._library.fake_nvml_begun())

    @property
    def samples(self) -> int:
        """How many GPM samples were allocated and not freed."""
        return int(self._library.fake_nvml_samples())


@contextmanager
def loaded(library: Path) -> Iterator[FakeNvml]:
    """In place of what pynvml has loaded, if anything."""
    pointers = pynvml._nvmlGetFunctionPointer_cache
    real, known = pynvml.nvmlLib, dict(pointers)
    pynvml.nvmlLib = ctypes.CDLL(str(library))
    pointers.clear()
    fake = FakeNvml(pynvml.nvmlLib)
    fake.set("reset")
    try:
        yield fake
    finally:
        pynvml.nvmlLib = real
        pointers.clear()
        pointers.update(known)
