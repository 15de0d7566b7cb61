"""Which distributions a bundle needs: what autotune requires, and what those require."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from autotune.adapters.bundle.target import Target


def closure(
    requirements: Iterable[str],
    requires: Callable[[str], Sequence[str]],
    target: Target,
    without: Collection[str],
) -> list[str]:
    """The names, sorted, of all that ``requirements`` come to on the target.

    ``requires`` tells what a distribution of that name requires in turn; those of ``without`` are
    not followed.
    """
    asked = [Requirement(each) for each in requirements]
    seen: set[tuple[str, frozenset[str]]] = set()
    while asked:
        one = asked.pop()
        name, extras = canonicalize_name(one.name), frozenset(one.extras)
        if name in without or (name, extras) in seen or not _holds(one, frozenset(), target):
            continue
        seen.add((name, extras))
        stated = [Requirement(each) for each in requires(name)]
        asked += [_bare(each) for each in stated if _holds(each, extras, target)]
    return sorted({name for name, _ in seen})


def _holds(requirement: Requirement, extras: frozenset[str], target: Target) -> bool:
    """Whether its marker does, for any of the extras that were asked for."""
    marker = requirement.marker
    return marker is None or any(
        marker.evaluate({**target.markers(), "extra": extra}) for extra in ("", *extras)
    )


def _bare(requirement: Requirement) -> Requirement:
    """Without its marker, which has been looked at where its extras were known."""
    requirement.marker = None
    return requirement
