"""What is found, written down at once: a file is always whole, and holds all that was known when it
was written."""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

from autotune.core.plain import finite


class State(StrEnum):
    """What became of a part."""

    RUNNING = "running"
    OK = "ok"
    SKIPPED = "skipped"
    FAILED = "failed"
    TIMED_OUT = "timed out"
    INTERRUPTED = "interrupted"
    NOT_REACHED = "not reached"


class Skipped(Exception):
    """Why a part cannot be run here."""


def write_text(path: Path, text: str) -> None:
    """All or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.part")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    """The same of a document; what JSON cannot say (infinity, not-a-number) is null."""
    write_text(path, json.dumps(finite(dict(document)), indent=1, ensure_ascii=False) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """Empty where there is none, or none that can be read."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def part_file(out: Path, name: str) -> Path:
    return out / "parts" / f"{name}.json"


class Report:
    """One part's own findings, in a file of its own, which the next process reads."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.figures: dict[str, Any] = {}
        self.versions: dict[str, str] = {}
        self._write(State.RUNNING, "")

    def keep(self, **figures: Any) -> None:
        """Add to what is known."""
        self.figures.update(figures)
        self._write(State.RUNNING, "")

    def note(self, text: str) -> None:
        """Something to know beside the figures."""
        self.keep(notes=[*self.figures.get("notes", ()), text])

    def made_with(self, **versions: str) -> None:
        self.versions.update(versions)
        self._write(State.RUNNING, "")

    def end(self, state: State, reason: str = "") -> None:
        self._write(state, reason)

    def _write(self, state: State, reason: str) -> None:
        write_json(
            self._path,
            {
                "state": state,
                "reason": reason,
                "figures": self.figures,
                "versions": self.versions,
            },
        )
