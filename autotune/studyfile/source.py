"""The text of a study file and where each of its keys stands, so that a refusal names the line."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from autotune.core.errors import InputRefused

Place: TypeAlias = tuple[str | int, ...]
"""A path into nested mappings and lists: ``("sla", "p95_ms")``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing that is wrong: where, the rule it breaks, the value found, and a way on."""

    place: Place
    rule: str
    value: object = None
    next_step: str = ""


@dataclass(frozen=True, slots=True)
class Source:
    """A document and its origin. ``origin`` is shown in messages; ``base`` resolves paths."""

    tree: Mapping[str, Any]
    origin: str
    base: Path

    @classmethod
    def from_file(cls, path: Path) -> Source:
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as exc:
            raise InputRefused(
                f"the study file cannot be read: {_why(exc)}", value=str(path)
            ) from exc
        return cls.from_text(text, str(path), path.absolute().parent)

    @classmethod
    def from_text(cls, text: str, origin: str, base: Path) -> Source:
        try:
            tree = YAML(typ="rt").load(text)
        except MarkedYAMLError as exc:
            mark = exc.problem_mark
            line = f":{mark.line + 1}" if mark is not None else ""
            raise InputRefused(f"{origin}{line}: not valid YAML: {exc.problem}") from exc
        except YAMLError as exc:
            raise InputRefused(f"{origin}: not valid YAML: {exc}") from exc
        if not isinstance(tree, CommentedMap):
            raise InputRefused(
                f"{origin}: a study file is a mapping of keys",
                next_step="examples/ocr/study.yaml shows a complete one",
            )
        return cls(tree, origin, base)

    @property
    def plain(self) -> dict[str, Any]:
        """The content as plain dicts, lists and scalars."""
        plain = _plain(self.tree)
        assert isinstance(plain, dict)
        return plain

    def line(self, place: Place) -> int | None:
        """The line (from 1) of the deepest part of a place that the document really has."""
        node: Any = self.tree
        line: int | None = None
        for key in place:
            line = _line_of(node, key) or line
            try:
                node = node[key]
            except (KeyError, IndexError, TypeError):
                break
        return line

    def refusal(self, problems: Sequence[Problem]) -> InputRefused:
        """All problems as one error, a paragraph each, in the order of the file."""
        ordered = sorted(problems, key=lambda p: self.line(p.place) or 0)
        return InputRefused("\n".join(self._paragraph(problem) for problem in ordered))

    def _paragraph(self, problem: Problem) -> str:
        line = self.line(problem.place)
        where = f"{self.origin}:{line}" if line else self.origin
        name = ".".join(str(part) for part in problem.place)
        text = f"{where}: {name + ': ' if name else ''}{problem.rule}"
        if problem.value is not None:
            text += f" (got {problem.value!r})"
        return text + (f"\n  {problem.next_step}" if problem.next_step else "")


def nearest(key: str, valid: Sequence[str]) -> str:
    """Words that point from a wrong key to the right one."""
    close = difflib.get_close_matches(key, valid, n=1, cutoff=0.6)
    if close:
        return f"did you mean '{close[0]}'?"
    return f"valid keys here: {', '.join(valid)}"


def _line_of(node: object, key: str | int) -> int | None:
    if isinstance(node, CommentedMap) and key in node:
        return int(node.lc.key(key)[0]) + 1
    if isinstance(node, CommentedSeq) and isinstance(key, int) and key < len(node):
        return int(node.lc.item(key)[0]) + 1
    return None


def _plain(node: object) -> object:
    if isinstance(node, Mapping):
        return {_plain(key): _plain(value) for key, value in node.items()}
    if isinstance(node, list | tuple):
        return [_plain(item) for item in node]
    for kind in (bool, int, float, str):
        if isinstance(node, kind):
            return kind(node)
    return node


def _why(exc: OSError | UnicodeDecodeError) -> str:
    if isinstance(exc, OSError) and exc.strerror:
        return exc.strerror.lower()
    return "it is not UTF-8 text"
