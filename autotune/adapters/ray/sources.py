"""Whether what is installed on a node is what is installed here, down to its source files."""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Callable
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import TypeAlias

Code: TypeAlias = tuple[str, str]
"""The version of autotune and the SHA-256 of its source files; both empty where there is none."""
_PACKAGES = ("autotune", "dashboards", "loadgen", "search_spaces", "storage")
_SHOWN = 12


def looking(packages: tuple[str, ...] = _PACKAGES) -> Callable[[], Code]:
    """What tells the code of the machine that it is called on. A function inside another is
    pickled with its text, where all else is pickled by its name: it needs nothing of ours there.
    """

    def look() -> Code:
        try:
            version = metadata.version("triton-autotune")
        except metadata.PackageNotFoundError:
            return "", ""
        digest = hashlib.sha256()
        for package in packages:
            found = importlib.util.find_spec(package)
            for folder in (found and found.submodule_search_locations) or ():
                for file in sorted(Path(folder).rglob("*.py")):
                    digest.update(f"{package}/{file.relative_to(folder)}\0".encode())
                    digest.update(hashlib.sha256(file.read_bytes()).digest())
        return version, digest.hexdigest()

    return look


@cache
def here() -> Code:
    """Read once: a driver is of one code, whatever becomes of its files meanwhile."""
    return looking()()


def other_than_here(there: Code) -> str:
    """Why a node's code will not do, in words; empty where it is the same."""
    ours, theirs = here(), there
    if theirs == ours:
        return ""
    if not theirs[0]:
        return "autotune is not installed there for the Python that Ray runs on"
    if theirs[0] != ours[0]:
        return f"it has autotune {theirs[0]}, and this machine {ours[0]}"
    return (
        f"it has autotune {ours[0]} as this machine has, but other source files of it"
        f" (SHA-256 {theirs[1][:_SHOWN]}… there, {ours[1][:_SHOWN]}… here): install the same on"
        " both"
    )
