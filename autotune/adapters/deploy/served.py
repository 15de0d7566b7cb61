"""Whether what a server has loaded is what a configuration says.

A server completes what it loads (names of instance groups, the batcher's preferred sizes, …), so
that the two are never equal. Held against each other are every field that the configuration sets,
and what the fields that autotune tunes come to on either side, set or not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from autotune.adapters.triton.config import ModelConfig, present
from search_spaces.candidate import (
    INSTANCES,
    MAX_BATCH_SIZE,
    PREFERRED_BATCH_SIZES,
    QUEUE_DELAY_US,
)

_TUNED = (MAX_BATCH_SIZE, QUEUE_DELAY_US, PREFERRED_BATCH_SIZES, INSTANCES)
SENT = "autotune_sent_files"
"""The parameter that marks a configuration which was loaded with files of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What may be in service without anybody else having put it there, by model: as a study found
    it, or as a promotion left it. ``files`` are the SHA-256 of files by their paths in the model's
    folder. ``completed``: the configurations are as a server had completed them."""

    configs: Mapping[str, ModelConfig]
    files: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    completed: bool = False

    def is_file(self, name: str, here: ModelConfig) -> bool:
        """Whether a model's file is what is known of it."""
        own = self.configs.get(name)
        if own is None:
            return False
        return not differences(here, own) if self.completed else here == own


def differences(wanted: ModelConfig, served: ModelConfig) -> list[str]:
    """In words, one for each field; empty where it is served as wanted."""
    told = list(_fields(wanted, served, ""))
    if wanted.HasField("ensemble_scheduling"):
        return told
    meant, found = present(wanted, _TUNED).values, present(served, _TUNED).values
    told += [
        f"{name} is {found.get(name)}, not {meant.get(name)}"
        for name in _TUNED
        if meant.get(name) != found.get(name)
    ]
    beyond = sorted(set(served.parameters) - set(wanted.parameters) - {SENT})
    told += [f"parameters.{key} is set" for key in beyond]
    return list(dict.fromkeys(told))


def _fields(wanted: Message, served: Message, path: str) -> Iterator[str]:
    for own, value in wanted.ListFields():
        yield from _field(own, value, getattr(served, own.name), f"{path}{own.name}", served)


def _field(
    own: FieldDescriptor, value: Any, found: Any, where: str, served: Message
) -> Iterator[str]:
    if own.message_type is None:
        if value != found:
            yield f"{where} is {_words(found)}, not {_words(value)}"
    elif own.message_type.GetOptions().map_entry:
        yield from _map(value, found, where)
    elif isinstance(value, Message):
        if served.HasField(own.name):
            yield from _fields(value, found, f"{where}.")
        else:
            yield f"{where} is not set"
    elif len(value) != len(found):
        yield f"{where} has {len(found)} entries, not {len(value)}"
    else:
        for i, (mine, theirs) in enumerate(zip(value, found, strict=True)):
            yield from _fields(mine, theirs, f"{where}[{i}].")


def _map(value: Any, found: Any, where: str) -> Iterator[str]:
    for key in sorted(value):
        if key not in found:
            yield f"{where}.{key} is not set"
        elif isinstance(value[key], Message):
            yield from _fields(value[key], found[key], f"{where}.{key}.")
        elif value[key] != found[key]:
            yield f"{where}.{key} is {found[key]}, not {value[key]}"


def _words(value: Any) -> str:
    return str(list(value)) if hasattr(value, "extend") else str(value)
