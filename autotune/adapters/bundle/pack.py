"""Packs a bundle: gathers, trims, describes, compresses."""

from __future__ import annotations

import json
import sysconfig
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from autotune.adapters.bundle import archive, binaries, libraries, own, server, trimming
from autotune.adapters.bundle.pins import Pin, read_pins
from autotune.adapters.bundle.server import Spare
from autotune.adapters.bundle.sources import Fetching, Source, gather
from autotune.adapters.bundle.staged import Component, Staged, is_elf
from autotune.adapters.bundle.target import Target
from autotune.adapters.bundle.wanted import closure
from autotune.adapters.hashes import sha256_of
from autotune.adapters.scratch import scratch
from autotune.adapters.triton.environment import (
    GLIBC,
    ServerEnvironment,
    own_requirements,
    prepared,
    with_pip,
)
from autotune.core.errors import AutotuneError

DESCRIPTION = "bundle.json"
_SCRATCH = "autotune-bundle-"
_MINUTES_FROM = 4
"""The level of xz from which packing takes minutes."""
_SCIPY_OF = Target(minor=(3, 11))
"""SciPy is packed as the lock has it for this Python: later versions, which it has for later ones,
import scipy.linalg for scipy.special, and with it six MiB of a bundle."""
_FOLDERS = (".", own.SITE, server.FOLDER, server.PACKAGES)
"""Of what stands in them right away a bundle's start looks whether all is there."""
_ABOUT = Component(name=own.DISTRIBUTION, version=own.version(), folder=".")


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A model that goes along; ``sha256`` of its file, by which it is looked for."""

    sha256: str
    file: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """``level``: of xz, 0 to 9; ``demo_study``: the bundled study's file; ``model``: what it tunes,
    where that is to go along."""

    target: Target
    out: Path
    level: int
    demo_study: Path
    model: Model | None
    spare: Spare | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A component of a bundle; ``packed_bytes`` of the archive are its own, about."""

    name: str
    version: str
    folder: str
    files: int
    bytes: int
    packed_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """``left_out``: of which part, and what that costs; ``untouched``: whether programs are packed
    as they came, for want of a tool to strip them; ``libpython``: the version of the shared one
    that goes along, None where the host has to have its own."""

    path: Path
    bytes: int
    sha256: str
    top: str
    parts: Sequence[Part]
    left_out: Sequence[Mapping[str, str]]
    untouched: bool
    libpython: str | None


def pack(order: Order, cache_dir: Path, say: Callable[[str], None]) -> Packed:
    """Write the archive to ``order.out``, which is replaced when it is whole.

    AutotuneError where wheels cannot be fetched; OSError where there is no room.
    """
    with (
        scratch(_SCRATCH) as folder,
        scratch(f".{_SCRATCH}", order.out.parent) as beside,
    ):
        staged = Staged(root=folder)
        _stage(staged, order, cache_dir, say)
        say("taking off what no loader reads")
        stripped = binaries.strip(
            [p for p in map(staged.root.joinpath, staged.owners) if is_elf(p)]
        )
        staged.share(server.PACKAGES, own.SITE)
        about = _describe(staged, order)
        staged.add_text(_ABOUT, DESCRIPTION, json.dumps(about, indent=1) + "\n")
        patience = ": this takes minutes" if order.level >= _MINUTES_FROM else ""
        say(f"packing {_megabytes(about['components']):.0f} MB{patience}")
        top = f"autotune-{own.version()}-py{order.target.version}"
        made = beside / order.out.name
        spent = archive.write(staged, top, made, level=order.level)
        packed = Packed(
            path=order.out,
            bytes=made.stat().st_size,
            sha256=sha256_of(made),
            top=top,
            parts=_parts(about["components"], spent),
            left_out=about["left_out"],
            untouched=not stripped,
            libpython=about["libpython"],
        )
        made.replace(order.out)
    return packed


# ------------------------------------------------------------------------------------- what goes in
def _stage(staged: Staged, order: Order, cache_dir: Path, say: Callable[[str], None]) -> None:
    fetching = Fetching(store=cache_dir / "wheels", pip=lambda: with_pip(cache_dir, say), say=say)
    tool, its_server = _wanted(order.target)
    here = _own_site()
    for folder, pins, installed_in in (
        (own.SITE, tool, here),
        (server.PACKAGES, its_server, [*_site_of(prepared(cache_dir)), *here]),
    ):
        sources = gather(pins, order.target, installed_in, fetching)
        say(f"unpacking {len(sources)} packages into {folder}")
        for source in sources:
            _add(staged, source, folder)
    own.add(staged, order.target, order.demo_study)
    if order.model is not None:
        own.add_model(staged, order.model.sha256, order.model.file)
    server.finish(staged, order.target, order.spare)
    for folder in (own.SITE, server.PACKAGES):
        libraries.trim(staged, folder)


def _wanted(target: Target) -> tuple[list[Pin], list[Pin]]:
    """What the tool needs on the target, and what its server does."""
    lock = own.lock()
    pins = {**read_pins(lock, target), "scipy": read_pins(lock, _SCIPY_OF)["scipy"]}
    names = closure(own.requirements(), _requires, target, trimming.DISTRIBUTIONS)
    unpinned = [name for name in names if name not in pins]
    if unpinned:
        raise AutotuneError(
            "requirements.lock does not pin all that autotune requires",
            value=unpinned,
            next_step="make lock",
        )
    its_server = read_pins(own_requirements(), target)
    return [pins[name] for name in names], [its_server[name] for name in sorted(its_server)]


def _requires(name: str) -> Sequence[str]:
    """As the one that is installed here says; nothing is known of one that only others need."""
    try:
        return metadata.requires(name) or []
    except metadata.PackageNotFoundError:
        return []


def _own_site() -> list[Path]:
    paths = sysconfig.get_paths()
    return [Path(each) for each in dict.fromkeys([paths["purelib"], paths["platlib"]])]


def _site_of(environment: ServerEnvironment | None) -> list[Path]:
    if environment is None:
        return []
    return sorted((environment.root / "lib").glob("python3*/site-packages"))


def _add(staged: Staged, source: Source, folder: str) -> None:
    component = Component(name=source.name, version=source.version, folder=folder)
    for path, write in source.files():
        if trimming.kept(source.name, path):
            staged.add(component, path, write)


# ------------------------------------------------------------------------------------- what it says
def _describe(staged: Staged, order: Order) -> dict[str, Any]:
    components = staged.components()
    owners = set(staged.owners.values())
    return {
        "format": 1,
        "autotune": {"version": own.version(), **own.commit()},
        "python": order.target.version,
        "platform": "linux x86_64",
        "glibc": list(GLIBC),
        "libpython": next((each.version for each in owners if each.name == "libpython"), None),
        "left_out": trimming.costs({each.name for each in owners}),
        "entries": {folder: staged.entries(folder) for folder in _FOLDERS},
        "components": components,
    }


def _parts(components: Sequence[Mapping[str, Any]], spent: Mapping[Component, int]) -> list[Part]:
    parts = []
    for told in components:
        one = Component(name=told["name"], version=told["version"], folder=told["folder"])
        counted = {key: told[key] for key in ("name", "version", "folder", "files", "bytes")}
        parts.append(Part(**counted, packed_bytes=spent.get(one, 0)))
    return sorted(parts, key=lambda part: -part.packed_bytes)


def _megabytes(components: Sequence[Mapping[str, Any]]) -> float:
    return float(sum(told["bytes"] for told in components)) / 1e6
