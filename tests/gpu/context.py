"""What a part of the check is given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.gpu.plan import Deadline, Options, Scale
from tests.gpu.report import Report, part_file, read_json


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """``deadline`` is the part's own: the conductor waits a little longer."""

    options: Options
    scale: Scale
    deadline: Deadline
    report: Report

    @property
    def out(self) -> Path:
        return self.options.out

    @property
    def on_gpu(self) -> bool:
        return self.options.device == "cuda"

    def found_by(self, part: str) -> Mapping[str, Any]:
        """The figures of an earlier part; empty where it has none."""
        found: Mapping[str, Any] = read_json(part_file(self.out, part)).get("figures", {})
        return found
