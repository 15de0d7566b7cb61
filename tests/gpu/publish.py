"""Puts a check's results among the project's own:

    python -m tests.gpu.publish OUT [--docs docs/gpu-results]

Puts OUT/results.json and its table into DATE-DEVICE.json and .md, without what names the host, its
users or their folders, and writes the folder's index, README.md, anew.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from autotune.core.errors import InputRefused
from tests.gpu.conduct import RESULTS
from tests.gpu.places import shareable, words
from tests.gpu.plan import ROOT
from tests.gpu.report import read_json, write_json, write_text
from tests.gpu.table import device_name, first_line, number, rows, summary, table

INDEX = "README.md"
_HEAD = """# Results of the GPU check

Each is one run of `tests/gpu/run.sh` ([what it does](../gpu-check.md)), put here by
`python -m tests.gpu.publish OUT`, which also writes this page. A run on the CPU proves that the
check runs to its end; its figures say nothing of GPUs.
"""
_NO_GPU = "\nOn a GPU: not yet run on hardware."


def publish(out: Path, docs: Path) -> Path:
    """The Markdown file that was written. InputRefused where ``out`` holds no results."""
    found = read_json(out / RESULTS)
    if "parts" not in found:
        raise InputRefused("the folder holds no results of a check", value=str(out))
    results = shareable(found, words(out.absolute()))
    path = _free(docs, f"{results['date']}-{slug(results)}")
    write_json(path.with_suffix(".json"), results)
    write_text(path.with_suffix(".md"), table(results))
    write_text(docs / INDEX, index(docs))
    return path.with_suffix(".md")


def slug(results: Mapping[str, Any]) -> str:
    """The device's name as part of a file's."""
    name = results["gpu"]["name"] if results["device"] == "cuda" and results["gpu"] else "cpu"
    return re.sub(r"[^a-z0-9]+", "-", str(name).lower()).strip("-")


def index(docs: Path) -> str:
    """The folder's page, from the results that it holds, the newest first."""
    files = sorted(docs.glob("*.json"), reverse=True)
    found = [(file, read_json(file)) for file in files]
    head = ("date", "device", "driver", "parts", "regret", "busy before → after, at saturation")
    body = (_row(file, results) for file, results in found)
    on_gpu = any(results.get("device") == "cuda" for _, results in found)
    return "\n".join([_HEAD, *rows(head, body), *([] if on_gpu else [_NO_GPU])]) + "\n"


def _row(file: Path, results: Mapping[str, Any]) -> tuple[str, ...]:
    gpu = results.get("gpu") if results["device"] == "cuda" else None
    parts = results["parts"]
    regret = (parts["truth"].get("figures") or {}).get("regret")
    return (
        f"[{results['date']}]({file.with_suffix('.md').name})",
        device_name(results),
        gpu["driver"] if gpu else "–",
        first_line(summary(results)),
        number(regret, "{:.1%}"),
        " → ".join(_busy(parts["use"].get("figures") or {})) or "–",
    )


def _busy(figures: Mapping[str, Any]) -> Iterator[str]:
    for name in ("before", "after"):
        for row in figures.get("rows", ()):
            if row["configuration"] == name and row["load"] == "at saturation":
                yield number(row.get("utilization"), "{:.0%}")


def _free(docs: Path, name: str) -> Path:
    """A path that no results have yet: a second run of a day gets a number."""
    docs.mkdir(parents=True, exist_ok=True)
    paths = [docs / name, *(docs / f"{name}-{count}" for count in range(2, 100))]
    return next(path for path in paths if not path.with_suffix(".json").exists())


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.publish", description=__doc__)
    parser.add_argument("out", type=Path, metavar="OUT")
    parser.add_argument("--docs", type=Path, default=ROOT / "docs" / "gpu-results")
    given = parser.parse_args(arguments)
    try:
        sys.stdout.write(f"{publish(given.out, given.docs)}\n")
    except InputRefused as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
