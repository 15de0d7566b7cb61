"""How much sooner a search is done by two trials side by side: the emulated accelerator, on Ray.

    python -m tests.benchmarks.ray_speedup [--candidates 8] [--window 10]

Starts a Ray cluster of this machine with two nodes of one core each, and runs the same grid search
there with one slot and with two. A slot has an emulated accelerator of its own, which uses nobody's
processor; the load generator and the server share the slot's core. Prints a row per run: the
search's wall time, from its first trial's begin to its last one's end, the start of actors and
servers with it. Never passes or fails.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from storage.store import SqlTrialStore

ROOT = Path(__file__).parents[2]
MODELS = ROOT / "examples" / "emulated" / "models"
NODES = ROOT / "tests" / "integration" / "ray_nodes.py"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--candidates", type=int, default=8)
    parser.add_argument("--window", type=float, default=10.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, cluster(Path(name)) as address:
        folder = Path(name)
        study = write_study(folder, options.candidates, options.window)
        walls = {}
        say("| slots | trials | search s | of it per trial, s | whole study s |")
        say("|---|---|---|---|---|")
        for slots in (1, 2):
            answer = tuned(folder, study, address, slots)
            walls[slots] = searched_s(folder / f"{slots}.db")
            trials = len(answer["trials"])
            whole = answer["wall_s"]
            say(
                f"| {slots} | {trials} | {walls[slots]:.1f} | {walls[slots] / trials:.1f}"
                f" | {whole:.1f} |"
            )
        say(f"\nspeed-up of the search by two slots: {walls[1] / walls[2]:.2f}\n")


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


@contextmanager
def cluster(folder: Path) -> Iterator[str]:
    environment = {
        **os.environ,
        "AUTOTUNE_WORK": str(folder / "nodes"),
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    with subprocess.Popen(
        [sys.executable, str(NODES)],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        if not address:
            raise RuntimeError("the Ray cluster did not start")
        try:
            yield address
        finally:
            process.stdin.close()  # it ends its nodes then
            process.wait(60)


def write_study(folder: Path, candidates: int, window_s: float) -> Path:
    """All candidates take the rate, and each of them the whole window."""
    study = {
        "study": "speed-up",
        "model": {"repository": str(MODELS), "name": "accelerator"},
        "workload": {
            "target_qps": 20,
            "headroom": 1,
            "arrival": "constant",
            "warmup_s": 1,
            "measure_s": window_s,
            "measure_max_s": window_s,
            "saturation_s": 1,
        },
        "sla": {"p95_ms": 900, "min_achieved": 0.5},
        "space": {"max_batch_size": list(range(1, candidates + 1))},
        "search": "grid",
        "finals": "none",
        "trust": {"foreign_cpu": 1, "send_lag": 1},
    }
    path = folder / "study.yaml"
    path.write_text(json.dumps(study, indent=1))  # JSON is YAML
    return path


def tuned(folder: Path, study: Path, address: str, slots: int) -> dict[str, Any]:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "autotune", "tune", str(study), "--json"),
            *("--db", str(folder / f"{slots}.db"), "--out", str(folder / f"out-{slots}")),
            *("--executor", "ray", "--ray-address", address),
            *("--slot-cpus", "1", "--slots", str(slots)),
        ],
        cwd=folder,
        env={**os.environ, "AUTOTUNE_WORK": str(folder / "work")},
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
    )
    if not done.stdout:
        raise RuntimeError(f"{slots} slots: {done.stderr}")
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def searched_s(database: Path) -> float:
    with closing(SqlTrialStore(str(database))) as store:
        trials = store.trials(store.studies()[0].id)
    return max(t.ended_at or 0.0 for t in trials) - min(t.started_at for t in trials)


if __name__ == "__main__":
    main()
