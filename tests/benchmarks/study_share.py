"""How much of a study's wall time is load, and how often the pick repeats: the demo study.

    python -m tests.benchmarks.study_share [--runs 1]

Runs ``autotune demo --json`` in a scratch directory with one seed after another and prints a row
per run; never passes or fails.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from autotune.bootstrap.models import demo_study


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1)
    options = parser.parse_args()
    text = demo_study().read_text()
    sys.stdout.write(
        "| seed | wall s | load s | not load | trials | p95 ms now | pick | p95 ms |\n"
    )
    sys.stdout.write("|---|---|---|---|---|---|---|---|\n")
    for seed in range(7, 7 + options.runs):
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "study.yaml").write_text(text.replace("seed: 7", f"seed: {seed}"))
            done = subprocess.run(
                [sys.executable, "-m", "autotune", "tune", "study.yaml", "--json"],
                cwd=folder,
                capture_output=True,
                text=True,
                timeout=900,
                check=False,
            )
        sys.stdout.write(row(seed, json.loads(done.stdout)) + "\n")
        sys.stdout.flush()


def row(seed: int, answer: dict) -> str:
    judged = {each["trial"]: each["metrics"] for each in answer["decision"]["judged"]}
    pick = answer["decision"]["pick"]
    candidate = {t["number"]: t["candidate"] for t in answer["trials"]}.get(pick)
    wall, load = answer["wall_s"], answer["load_s"]
    p95 = f"{judged[pick]['p95_ms']:.1f}" if pick is not None else "–"
    return (
        f"| {seed} | {wall:.0f} | {load:.0f} | {1 - load / wall:.0%} | {len(answer['trials'])} |"
        f" {judged[0]['p95_ms']:.1f} | {candidate} | {p95} |"
    )


if __name__ == "__main__":
    main()
