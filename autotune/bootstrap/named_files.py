"""The files that a study or a target names: each has to be on the machine that does the job."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path

from autotune.core.errors import InputRefused
from autotune.core.study import PackagedModel
from autotune.settings import Settings

_FILE = re.compile(r"(?P<path>.+)\.py:[A-Za-z_]\w*")


def paths_of(node: object, name: str = "study") -> Iterator[tuple[str, Path]]:
    """Every path that a study holds, wherever it stands, with the name of its field."""
    if isinstance(node, Path):
        yield name, node
    elif isinstance(node, str):
        found = _FILE.fullmatch(node)
        if found is not None:
            yield name, Path(found["path"] + ".py")
    else:
        for key, each in _parts(node, name):
            yield from paths_of(each, key)


def _parts(node: object, name: str) -> Iterator[tuple[str, object]]:
    if isinstance(node, Mapping):
        yield from ((str(key), value) for key, value in node.items())
    elif isinstance(node, tuple | list):
        yield from ((name, value) for value in node)
    elif is_dataclass(node) and not isinstance(node, PackagedModel):
        yield from ((f.name, getattr(node, f.name)) for f in fields(node) if f.name != "definition")


def refuse_elsewhere(node: object, whose: str) -> None:
    """InputRefused, with this machine's name, for a path of ``node`` that is not here: a job is
    done by whichever machine has a worker free, and that may be another than where it was asked
    for. ``whose`` names what it belongs to, as "the study"."""
    here = Settings.from_environment().machine
    for what, path in paths_of(node):
        if not path.exists():
            raise InputRefused(
                f"{what} of {whose} is not on this machine, {here}",
                value=str(path),
                next_step="have it at the same path on every machine that has a worker",
            )
