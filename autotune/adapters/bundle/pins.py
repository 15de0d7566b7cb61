"""Which versions a bundle holds: those that the lock files name for its Python."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from autotune.adapters.bundle.target import Target

_HASH = "--hash="


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """One version of one distribution; ``hashes`` (``sha256:…``) of its files, one of which is
    taken."""

    name: str
    version: str
    hashes: tuple[str, ...]

    def requirement(self) -> str:
        """As a line of a requirements file, without a marker."""
        return " ".join([f"{self.name}=={self.version}", *(_HASH + each for each in self.hashes)])

    def is_of(self, sha256: str) -> bool:
        return f"sha256:{sha256}" in self.hashes


def read_pins(text: str, target: Target) -> Mapping[str, Pin]:
    """By name, of a requirements file in which every line is pinned with hashes; what its markers
    rule out for the target is left out."""
    markers = target.markers()
    found: dict[str, Pin] = {}
    for line in text.replace("\\\n", " ").splitlines():
        stated, *hashes = line.split(_HASH)
        if not stated.strip() or stated.lstrip().startswith("#"):
            continue
        requirement = Requirement(stated.strip())
        if requirement.marker is None or requirement.marker.evaluate(markers):
            name = canonicalize_name(requirement.name)
            found[name] = Pin(
                name=name,
                version=next(iter(requirement.specifier)).version,
                hashes=tuple(each.strip() for each in hashes),
            )
    return found
