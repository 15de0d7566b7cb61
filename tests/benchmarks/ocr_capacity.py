"""The OCR pipeline by precision on this machine's CPU: how much load each holds, how well it reads.

    python -m tests.benchmarks.ocr_capacity [--qps 20] [--minutes 20]

The bundled pipeline study with nothing in its space but the recogniser's variant, each served by
one instance of one thread: accuracy by exact text match, memory, latency at the target rate, and
the highest rate that holds the SLA, probed for each in the finals. Prints a Markdown table; never
passes or fails.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from autotune.studyfile import read_study_file

EXAMPLE = Path(__file__).parents[2] / "examples" / "ocr" / "pipeline.yaml"
VARIANT = "recognize.variant"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--qps", type=float, default=20.0)
    parser.add_argument("--minutes", type=float, default=20.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        answer = tuned(Path(name), options.qps, options.minutes)
    say(f"wall {answer['wall_s']:.0f} s, {answer['stopped_because']}\n")
    heads = "drop | as served | file MB | memory MB | p95 ms | saturates /s | capacity /s"
    say(f"| precision | {heads} |")
    say("|---|---|---|---|---|---|---|---|")
    for trial in answer["trials"]:
        say(row(trial, answer))


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def tuned(folder: Path, qps: float, minutes: float) -> dict[str, Any]:
    """The study's answer; its paths are made absolute by reading it once."""
    definition = dict(read_study_file(EXAMPLE).definition)
    precisions = definition["space"][VARIANT]
    definition |= {
        "study": "ocr-capacity",
        "workload": {**definition["workload"], "target_qps": qps},
        "space": {VARIANT: precisions},
        "search": "grid",
        "finals": {"candidates": len(precisions), "capacity": 8},
        "budget": {"trials": 2 * len(precisions), "minutes": minutes},
    }
    with (folder / "study.yaml").open("w", encoding="utf-8") as file:
        YAML(typ="safe").dump(definition, file)
    done = subprocess.run(
        [sys.executable, "-m", "autotune", "tune", "study.yaml", "--json"],
        cwd=folder,
        stdout=subprocess.PIPE,
        text=True,
        timeout=60 * minutes + 1800,
        check=False,
    )
    if not done.stdout:
        raise RuntimeError("the study came to no answer")
    return json.loads(done.stdout)


def row(trial: dict[str, Any], answer: dict[str, Any]) -> str:
    name = trial["candidate"][VARIANT]
    variant = next(each for each in answer["variants"] if each["variant"] == name)
    judged = {each["trial"]: each["metrics"] for each in answer["decision"]["judged"]}
    metrics = judged.get(trial["number"], {})
    held = next((c for c in answer["capacity"] if c["trial"] == trial["number"]), None)
    return (
        f"| {name} | {percent(variant['accuracy_drop'])} | {percent(variant['served_drop'])}"
        f" | {number(variant['size_mb'])} | {number(metrics.get('memory_mb'))}"
        f" | {number(metrics.get('p95_ms'))} | {number(metrics.get('saturation_qps'))}"
        f" | {capacity(held)} |"
    )


def capacity(held: dict[str, Any] | None) -> str:
    if held is None:
        return "–"
    return f"{number(held['qps'])} ({number(held['low'])}–{number(held['high'])})"


def number(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"


def percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"


if __name__ == "__main__":
    main()
