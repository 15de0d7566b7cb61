"""What a study that comes over the network may name: less than one that its user runs.

A study file can start programs, fetch packages and read files; that is for whoever has an account
on the machine. A request may name what lies below one folder, the embedded server, and remote
servers that were allowed. What lies there is trusted: a Python file of a study is run. Files and
folders whose names begin with a dot are not named: they hold keys and settings.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from autotune.adapters.triton.onnx_graph import external_files
from autotune.bootstrap.named_files import paths_of
from autotune.core.errors import InputRefused
from autotune.core.promotions import Target
from autotune.core.study import Launch, Study
from autotune.studyfile import study_from_request
from search_spaces import library
from search_spaces.candidate import BACKEND_PREFIX, SERVER_PREFIX

LOOPBACK = ("127.0.0.1", "localhost", "::1")
FLAGS = frozenset({
    "buffer-manager-thread-count", "cuda-memory-pool-byte-size", "grpc-infer-allocation-pool-size",
    "http-thread-count", "log-verbose", "min-supported-compute-capability",
    "model-load-gpu-limit", "model-load-thread-count", "pinned-memory-pool-byte-size",
    "rate-limit", "rate-limit-resource", "response-cache-byte-size",
})  # fmt: skip
"""Flags of tritonserver that name no file, folder, library or address."""

_ADDRESS = re.compile(r"\[[0-9A-Fa-f:.]+\]:\d+|[A-Za-z0-9.-]+:\d+")
_READ_BYTES = 1 << 29
_DEEPEST, _MOST_KEYS, _LONGEST_NAME = 20, 300, 255


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """``root`` is the folder that requests may name paths in; ``remotes`` are the hosts that may be
    tuned besides this machine."""

    root: Path
    remotes: tuple[str, ...] = ()


class Guard:
    """Implements `autotune.service_ports.Checks`."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits

    def study(self, definition: Mapping[str, Any]) -> Mapping[str, Any]:
        try:
            return study_within(definition, self._limits).definition
        except InputRefused as error:
            raise _without_root(error, self._limits.root) from error

    def target(self, target: Target) -> Target:
        repository = target.repository
        if repository is not None:
            repository = (self._limits.root / repository).absolute()
            _refuse_outside("target.repository", repository, self._limits.root)
            _refuse_root(repository, self._limits.root)
        _refuse_hosts((target.grpc, target.http), self._limits.remotes)
        return replace(target, repository=repository)


def _refuse_root(repository: Path, root: Path) -> None:
    """Beside a target lies what a promotion prepares: of the root itself, that were outside."""
    if repository.resolve() == root.resolve():
        raise InputRefused(
            "target.repository is a directory below the service's root, not the root itself",
            next_step="put the models into one, or start the service with its parent as --root",
        )


def study_within(definition: Mapping[str, Any], limits: Limits) -> Study:
    """The study of a request, in a study file's words, paths relative to the root. InputRefused for
    all that only the machine's own users may ask for, before any file is read."""
    _refuse_strange(definition)
    _refuse_launch(definition)
    _refuse_space_file(definition, limits.root)

    def check(study: Study) -> None:
        _refuse_names(study)
        for what, path in paths_of(study):
            _refuse_outside(what, path, limits.root)
        server = study.server
        _refuse_hosts((server.http, server.grpc, server.metrics), limits.remotes)
        _refuse_flags((*study.server.flags, *_swept_flags(study)))
        _refuse_path_values(study)

    study = study_from_request(definition, limits.root, check)
    _refuse_missing_model(study)
    return study


# ---------------------------------------------------------------------- before anything is read
def _refuse_strange(node: object, depth: int = 0) -> None:
    """What no study file can hold, or no file system can name."""
    if depth > _DEEPEST:
        raise InputRefused(f"a study is nested at most {_DEEPEST} deep")
    if isinstance(node, Mapping):
        if len(node) > _MOST_KEYS:
            raise InputRefused(f"a section has at most {_MOST_KEYS} keys", value=len(node))
        for key, value in node.items():
            _refuse_strange(key, depth + 1)
            _refuse_strange(value, depth + 1)
    elif isinstance(node, list):
        for each in node:
            _refuse_strange(each, depth + 1)
    elif isinstance(node, str) and not _plain(node):
        raise InputRefused("a study's words are plain text", value=node[:100])


def _plain(text: str) -> bool:
    return "\0" not in text and not any("\ud800" <= letter <= "\udfff" for letter in text)


def _refuse_launch(definition: Mapping[str, Any]) -> None:
    server = definition.get("server")
    if not isinstance(server, Mapping):
        return
    launch = server.get("launch", str(Launch.EMBEDDED))
    if launch in (Launch.BINARY, Launch.DOCKER) or "binary" in server or "image" in server:
        raise InputRefused(
            "a study from the API may not name a program or an image to launch",
            value=launch,
            next_step="use the embedded or a remote server, or run it there by `autotune tune`",
        )


def _refuse_space_file(definition: Mapping[str, Any], root: Path) -> None:
    space = definition.get("space")
    if isinstance(space, str) and space not in library.ready_made():
        _refuse_outside("space", (root / Path(space).expanduser()).absolute(), root)


# -------------------------------------------------------------------------------- of the study
def _refuse_outside(what: str, path: Path, root: Path) -> None:
    """Links are followed first: one that leads out is outside."""
    try:
        inside = path.resolve().relative_to(root.resolve()).parts
    except (ValueError, OSError, RuntimeError):  # too long a name, a link that leads to itself
        inside = ("..",)
    if any(part.startswith(".") or len(os.fsencode(part)) > _LONGEST_NAME for part in inside):
        raise InputRefused(
            f"the API may name paths below the service's root only, and none with a dot first:"
            f" {what}",
            next_step="put the files there, or start the service with another --root",
        )


def _without_root(error: InputRefused, root: Path) -> InputRefused:
    """In the words of whoever asks, to whom where the root lies says nothing."""

    def told(words: object) -> object:
        if not isinstance(words, str):
            return words
        for folder in {str(root.resolve()), str(root)}:
            words = words.replace(f"{folder}/", "").replace(folder, ".")
        return words

    return type(error)(
        str(told(error.rule)), value=told(error.value), next_step=str(told(error.next_step))
    )


def _refuse_hosts(addresses: Sequence[str | None], remotes: Sequence[str]) -> None:
    allowed = {*LOOPBACK, *remotes}
    for address in addresses:
        if address is not None and _host(address) not in allowed:
            raise InputRefused(
                "the API may name servers of this machine, and hosts that the service was started"
                " with",
                value=address,
                next_step="start the service with --allow-remote HOST",
            )


def _host(address: str) -> str | None:
    """Of host:port or a URL, as the clients read it; None where that is not plain to see."""
    if "://" not in address:
        return urlsplit(f"//{address}").hostname if _ADDRESS.fullmatch(address) else None
    parts = urlsplit(address)
    plain = parts.scheme in ("http", "https") and parts.username is None and "\\" not in address
    return parts.hostname if plain else None


def _refuse_names(study: Study) -> None:
    """Folders are named by these."""
    server = study.server
    if server.launch in (Launch.BINARY, Launch.DOCKER) or server.binary or server.image:
        raise InputRefused("a study from the API may not name a program or an image to launch")
    for name in (study.name, study.model.name):
        if name.strip(".") == "":
            raise InputRefused("a name has letters or digits", value=name)


def _refuse_missing_model(study: Study) -> None:
    """Now, not when its job is begun; likewise a file that is no ONNX model. (A very large one is
    left to the job.)"""
    onnx = study.model.onnx
    for path in (onnx, study.model.repository):
        if path is not None and not path.exists():
            raise InputRefused("the model does not exist", value=str(path))
    if onnx is not None and onnx.stat().st_size <= _READ_BYTES:
        external_files(onnx)


def _swept_flags(study: Study) -> Iterator[str]:
    for target in study.space.targets:
        if target.startswith(SERVER_PREFIX):
            yield target.removeprefix(SERVER_PREFIX)


def _refuse_flags(names: Sequence[str]) -> None:
    for name in names:
        if name.lstrip("-").replace("_", "-") not in FLAGS:
            raise InputRefused(
                "a study from the API may set server flags that name no file, library or address",
                value=name,
                next_step=f"these may be set: {', '.join(sorted(FLAGS))}",
            )


def _refuse_path_values(study: Study) -> None:
    """Backend parameters can name an environment to run or a library to load."""
    for parameter in study.space.parameters:
        if BACKEND_PREFIX not in parameter.target:
            continue
        for value in parameter.domain.grid():
            if isinstance(value, str) and not re.fullmatch(r"[\w.+-]*", value):
                raise InputRefused(
                    f"{parameter.target}: a study from the API gives plain words and numbers",
                    value=value,
                )
