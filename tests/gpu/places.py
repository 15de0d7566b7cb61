"""What of a host is in its results, and must not be where others read them: names of the host, of
its users and of their folders."""

from __future__ import annotations

import re
import socket
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from autotune.settings import Settings
from tests.gpu.plan import ROOT

_NO_NAMES = frozenset({"localhost", "localhost.localdomain"})
_SHORTEST_NAME = 3
_FREE_TEXT = ("parts", "ended")
"""Of results. The other entries are made of what says nothing of a host."""
_EVERYWHERE = "usr|bin|sbin|lib|lib64|dev|proc|sys|etc|run"
_FOLDERS = re.compile(
    rf"(?<![\w.~/-])/(?!(?:{_EVERYWHERE})\b)(?:[^\s/:;,'\"()\[\]|]+/)+",
)
"""The folders of an absolute path, but those that every host has."""


def words(out: Path) -> Mapping[str, str]:
    """What stands for the folders and the names of this host, by what it stands for."""
    settings = Settings.from_environment()
    places = {
        ROOT: "ROOT",
        _home(): "~",
        Path(tempfile.gettempdir()): "TMP",
        settings.cache_dir: "CACHE",
        settings.work_dir: "WORK",
        out: "OUT",
    }
    found = {
        str(path): word
        for given, word in places.items()
        if given is not None
        for path in (given.absolute(), given.resolve())
        if len(path.parts) > 1
    }
    return {**found, **dict.fromkeys(_names(), "HOST")}


def _home() -> Path | None:
    try:
        return Path.home()
    except RuntimeError:  # a user whom the system does not know, without HOME
        return None


def _names() -> set[str]:
    """The host's, in full and without its domain."""
    full = socket.gethostname()
    return {
        name
        for name in (full, full.partition(".")[0])
        if len(name) >= _SHORTEST_NAME and name not in _NO_NAMES
    }


def without(value: Any, known: Mapping[str, str]) -> Any:
    """The same data, in every text of it each of ``known`` replaced by its word, the longest
    first."""
    if isinstance(value, str):
        for text, word in sorted(known.items(), key=lambda each: -len(each[0])):
            value = re.sub(rf"(?<![\w-]){re.escape(text)}(?![\w-])", word, value)
        return value
    return _each(value, lambda inner: without(inner, known))


def shareable(results: Mapping[str, Any], known: Mapping[str, str]) -> dict[str, Any]:
    """Results as others may read them. Of a folder that is not known (they may be another host's)
    only what is in it keeps its name."""
    return {
        key: _without_folders(without(value, known)) if key in _FREE_TEXT else value
        for key, value in results.items()
    }


def _without_folders(value: Any) -> Any:
    if isinstance(value, str):
        return _FOLDERS.sub("…/", value)
    return _each(value, _without_folders)


def _each(value: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(value, Mapping):
        return {key: change(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [change(inner) for inner in value]
    return value
