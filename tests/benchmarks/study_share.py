"""How much of a study's wall time is load, and how often the pick repeats: the demo study.

    python -m tests.benchmarks.study_share [--runs 1]

Looks once how much this machine takes, as ``autotune demo`` does, then runs the demo study at that
rate with one seed after another and prints a row per run. Where the picks differ,
the one most often picked is compared with each of the others, in a study that has measured both.
Never passes or fails.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from autotune.bootstrap import demo, demo_study
from autotune.studyfile import read_study_file

FIRST_SEED = 7
Answers = Mapping[int, dict]
"""What ``autotune tune --json`` printed, by seed."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1)
    options = parser.parse_args()
    header = (
        "| seed | wall s | load s | not load | trials | p95 ms now | pick | p95 ms | confirmed |\n"
        "|---|---|---|---|---|---|---|---|---|"
    )
    answers = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rate = demo_rate(folder)
        say(header)
        for seed in range(FIRST_SEED, FIRST_SEED + options.runs):
            answers[seed] = tuned(folder, seed, rate)
            say(row(seed, answers[seed]))
        compare_picks(folder, answers)


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def study_name(seed: int) -> str:
    return f"demo-{seed}"


def autotune(folder: Path, *arguments: str) -> dict:
    done = subprocess.run(
        [sys.executable, "-m", "autotune", *arguments, "--json"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    if not done.stdout:
        raise RuntimeError(f"autotune {' '.join(arguments)}: {done.stderr}")
    return json.loads(done.stdout)


def demo_rate(folder: Path) -> float:
    study = read_study_file(demo_study())
    found = demo(
        study, db=str(folder / "rate.db"), out=folder / "rate", resume=False, listen=lambda _: None
    ).rate
    assert found is not None
    say(f"\nin service it takes {found.taken_qps:.1f}/s: target {found.target_qps:g}/s\n")
    return found.target_qps


def tuned(folder: Path, seed: int, rate: float) -> dict:
    text = demo_study().read_text()
    for was, now in (
        ("study: ocr", f"study: {study_name(seed)}"),
        ("seed: 7", f"seed: {seed}"),
        ("target_qps: 70", f"target_qps: {rate}"),
    ):
        if text.count(was) != 1:
            raise RuntimeError(f"the demo study does not say {was!r} once")
        text = text.replace(was, now)
    (folder / "study.yaml").write_text(text)
    return autotune(folder, "tune", "study.yaml", "--out", f"out-{seed}")


def candidates(answer: dict) -> dict[int, dict]:
    return {trial["number"]: trial["candidate"] for trial in answer["trials"]}


def picked(answer: dict) -> dict | None:
    return candidates(answer).get(answer["decision"]["pick"])


def p95(answer: dict, trial: int | None) -> str:
    judged = {each["trial"]: each["metrics"] for each in answer["decision"]["judged"]}
    return f"{judged[trial]['p95_ms']:.1f}" if trial in judged else "–"


def row(seed: int, answer: dict) -> str:
    wall, load = answer["wall_s"], answer["load_s"]
    taken = [m for trial in answer["trials"] for m in trial["measurements"]]
    confirmed = [m["metrics"]["p95_ms"] for m in taken if m["purpose"] == "confirm"]
    return (
        f"| {seed} | {wall:.0f} | {load:.0f} | {1 - load / wall:.0%} | {len(answer['trials'])} |"
        f" {p95(answer, 0)} | {picked(answer)} | {p95(answer, answer['decision']['pick'])} |"
        f" {f'{confirmed[-1]:.1f}' if confirmed else '–'} |"
    )


def compare_picks(folder: Path, answers: Answers) -> None:
    """Compares the commonest pick with every other one."""
    count = Counter(json.dumps(picked(answer), sort_keys=True) for answer in answers.values())
    count.pop("null", None)
    (commonest, times), *others = count.most_common() or [("null", 0)]
    say(f"picked {times} of {len(answers)} times: {commonest}")
    for other, times in others:
        say(f"picked {times} of {len(answers)} times: {other}")
        say(f"  against the commonest: {compared(folder, answers, commonest, other)}")


def compared(folder: Path, answers: Answers, one: str, other: str) -> str:
    for seed, answer in answers.items():
        number = {json.dumps(c, sort_keys=True): n for n, c in candidates(answer).items()}
        if one in number and other in number:
            pair = (str(number[one]), str(number[other]))
            return json.dumps(autotune(folder, "compare", study_name(seed), *pair)["comparisons"])
    return "no study measured both"


if __name__ == "__main__":
    main()
