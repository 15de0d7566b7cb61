"""What a killed service loses: kill -9 of `autotune serve` at every stage of a study.

    python -m tests.benchmarks.service_kills [--stages trial finals] [--lease 5]

A small study is run to its end once for each stage; there the service is killed, and started
again at once. Prints a row per stage: the load phases that were stored when it was killed, how many
of them were lost, how many there are in the end, and how long it took from the kill until the study
went on. Never passes or fails.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

from autotune.settings import Settings
from storage.service import ServiceStore
from tests.integration.services import Service
from tests.integration.studies import Tool, next_turn, own_model

STAGES = ("prepare", "check", "trial", "canary", "finals", "capacity", "confirm", "export")
BALLAST_BYTES = 1 << 30
"""Beside the model's files, so that writing the export takes long enough to be met in it."""
FINALS = {"candidates": 2, "rounds": 1, "measure_s": 2, "capacity": 1}
HEADER = (
    "| killed at | phases stored | of them lost | in the end | s until it went on |\n"
    "|---|---|---|---|---|"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stages", nargs="*", default=STAGES, choices=STAGES)
    parser.add_argument("--lease", type=float, default=5.0)
    options = parser.parse_args()
    say(HEADER)
    with next_turn(), tempfile.TemporaryDirectory() as name:
        tool = Tool(Path(name), Settings.from_environment().cache_dir)
        try:
            for stage in options.stages:
                say(Bench(tool, options.lease).row(stage))
        finally:
            tool.close()


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


class Bench:
    """One study at a time, in one database."""

    def __init__(self, tool: Tool, lease_s: float) -> None:
        self._tool = tool
        self._lease_s = lease_s
        repository = tool.folder / "repository"
        if not repository.exists():
            own_model(repository, "time.sleep(0.01)")
            with (repository / "own" / "1" / "ballast.bin").open("wb") as ballast:
                ballast.truncate(BALLAST_BYTES)
        self._model = {"repository": str(repository), "name": "own"}

    def row(self, stage: str) -> str:
        service = self._service()
        number = self._submit(service, f"killed-at-{stage}")
        found = service.until(number, lambda job: job["ended_at"] is not None or _at(job, stage))
        if found["ended_at"] is not None:
            _stop(service)
            return f"| {stage} | not met: over too soon | | | |"
        service.running.process.kill()
        killed_at = time.time()
        service.running.finish()
        before = self._phases(number)
        service = self._service()
        service.until(number, lambda job: job["attempt"] == 2 and job["progress"]["at"] > killed_at)
        took_s = service.job(number)["progress"]["at"] - killed_at
        service.until(number, lambda job: job["ended_at"] is not None)
        after = self._phases(number)
        _stop(service)
        lost = len(before - after)
        return f"| {stage} | {len(before)} | {lost} | {len(after)} | {took_s:.0f} |"

    def _service(self) -> Service:
        return Service.start(self._tool, "--lease", self._lease_s)

    def _submit(self, service: Service, name: str) -> int:
        study = self._tool.study(name, model=self._model, finals=FINALS, workload={"measure_s": 2})
        return service.submit(study)

    def _phases(self, number: int) -> set[tuple[int, str, float]]:
        """What was measured by the job's study: trial, purpose, when."""
        with closing(ServiceStore(str(self._tool.db))) as store:
            study_id = store.jobs.job(number).study_id
            trials = [] if study_id is None else store.trials.trials(study_id)
        return {
            (trial.number, str(measurement.purpose), measurement.started_at)
            for trial in trials
            for measurement in trial.measurements
        }


def _stop(service: Service) -> None:
    service.running.process.terminate()
    service.running.finish()


def _at(job: dict, stage: str) -> bool:
    progress = job["progress"]
    second = stage != "trial" or progress.get("trial") == 2
    return progress.get("stage") == stage and second and "finished" not in progress


if __name__ == "__main__":
    main()
