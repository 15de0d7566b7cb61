"""The ready-made spaces: YAML files beside this one."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from ruamel.yaml import YAML

from search_spaces.refused import SpaceRefused, nearest


def ready_made() -> list[str]:
    """The names of the ready-made spaces, in alphabetical order."""
    found = (entry.name for entry in files(__package__).iterdir())
    return sorted(name.removesuffix(".yaml") for name in found if name.endswith(".yaml"))


def load(name: str) -> dict[str, Any]:
    """A ready-made space as plain data for `search_spaces.space.parse_space`."""
    names = ready_made()
    if name not in names:
        raise SpaceRefused(
            "no ready-made space has this name", value=name, next_step=nearest(name, names)
        )
    text = files(__package__).joinpath(f"{name}.yaml").read_text(encoding="utf-8")
    mapping: dict[str, Any] = YAML(typ="safe", pure=True).load(text)
    return mapping
