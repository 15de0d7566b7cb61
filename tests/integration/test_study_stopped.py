"""Studies that are interrupted or killed at every stage, and go on; one at a time on a machine."""

from __future__ import annotations

import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from autotune.adapters.triton.environment import ServerEnvironment
from autotune.adapters.triton.ports import free_ports
from autotune.core.errors import StoreFailed
from autotune.core.trial import TrialState
from search_spaces.candidate import Candidate
from storage.store import SqlTrialStore
from tests.integration.studies import Running, Tool, own_model, tool
from tests.unit.made_trials import made_measurement

pytestmark = [
    pytest.mark.server,
    pytest.mark.timeout(600),  # a test may wait for its turn
]

SECOND_TRIAL = "trial 2"
LAST = "export "


@pytest.fixture
def cli(tmp_path: Path, cache_dir: Path, server_environment: ServerEnvironment) -> Iterator[Tool]:
    yield from tool(tmp_path, cache_dir)


def wait_for_moment(running: Running, moment: str) -> None:
    """Until what it says names the moment; in the second trial, until its load is under way."""
    if moment == SECOND_TRIAL:
        running.wait_for_load(2)
    else:
        running.wait_for(moment)


# ------------------------------------------------------------------------------------ interrupted
MOMENTS = (
    (signal.SIGTERM, "comparing served outputs"),
    (signal.SIGHUP, SECOND_TRIAL),
    (signal.SIGINT, LAST),
)
"""The stages of the kill below take their turn there."""


def test_a_study_that_is_interrupted_at_every_stage_in_turn_comes_to_its_end(cli: Tool) -> None:
    study = cli.study()
    first: dict[str, Any] = {}
    for number, (signum, moment) in enumerate(MOMENTS):
        running = cli.tune(study, *(["--resume"] if number else []))
        wait_for_moment(running, moment)
        ended = running.tell(signum)
        running.assert_nothing_left()
        shown = cli.shown()
        if not came_to_its_end(shown, moment):
            how = "goes on" if number else "begins anew"  # what was measured is gone on with
            ended.expect(1, f"stopped by {signum.name}", how)
            assert shown["study"]["state"] == "interrupted"
        if number >= 1:
            first = first or shown["trials"][0]
    shown = gone_on_with(cli, study)
    assert shown["trials"][0]["started_at"] == first["started_at"]
    assert len(shown["trials"][0]["measurements"]) <= len(first["measurements"]) + 1


def came_to_its_end(shown: dict[str, Any], moment: str) -> bool:
    """The last step is short: the study may have ended before the signal came."""
    return moment == LAST and shown["study"]["state"] == "done"


def gone_on_with(cli: Tool, study: Path) -> dict[str, Any]:
    """The study as it is stored after its last run."""
    if cli.shown()["study"]["state"] != "done":
        cli.tune(study, "--resume").finish().expect(0)
    shown: dict[str, Any] = cli.shown()
    assert shown["study"]["state"] == "done"
    assert [trial["state"] for trial in shown["trials"]] == ["ok", "ok"]
    assert cli.out.exists()
    assert not [path for path in cli.folder.iterdir() if path.name.startswith(".out")]
    return shown


# ----------------------------------------------------------------------------------------- killed
STAGES = (SECOND_TRIAL, "canary ", "finals ", "confirming trial", LAST)
"""(What comes before the first trial is interrupted above; a capacity's probes are gone on with as
the runs of the finals are.)"""
MEASURED_ONCE = {"trial": 2, "final": 4, "capacity": 2, "confirm": 1}
"""Of two candidates, in one round of finals, with one probe of each one's capacity."""


def test_a_study_that_is_killed_at_every_stage_in_turn_loses_and_repeats_nothing(cli: Tool) -> None:
    finals = {"candidates": 2, "rounds": 1, "measure_s": 1, "capacity": 1}
    # Ten milliseconds a request: on a busy machine, one would not be the same for the canary.
    model = own_model(cli.folder / "repository", "time.sleep(0.01)")
    study = cli.study(model=model, server={"ports": fixed_ports()}, finals=finals)
    kept: dict[str, Any] = {}
    for number, moment in enumerate(STAGES):
        running = cli.tune(study, *(["--resume"] if number else []))
        wait_for_moment(running, moment)
        running.remember_shared_memory()
        if moment == SECOND_TRIAL:
            turned_away(cli, running, study)
        running.process.kill()
        running.finish(30)
        running.assert_nothing_left(within_s=30)
        shown = cli.shown()
        assert shown["study"]["state"] == "interrupted" or came_to_its_end(shown, moment)
        assert kept.items() <= ended(shown).items(), "what was stored stays as it was"
        kept = ended(shown)
        assert whole_or_absent(cli.out)
    shown = gone_on_with(cli, study)
    assert kept.items() <= ended(shown).items()
    taken = ended(shown)
    believed = Counter(measured["purpose"] for measured in taken.values() if measured["valid"])
    assert believed.pop("canary") <= len(STAGES), "each asks anew whether the machine is the same"
    assert believed == MEASURED_ONCE, [measured["invalid_because"] for measured in taken.values()]
    assert whole_or_absent(cli.out)


def ended(shown: dict[str, Any]) -> dict[str, Any]:
    """What was measured, by trial, purpose and number, of the trials that have ended."""
    found: dict[str, Any] = {}
    for trial in shown["trials"]:
        numbers: Counter[str] = Counter()
        for measured in trial["measurements"] if trial["state"] != "running" else ():
            purpose = str(measured["purpose"])
            found[f"{trial['number']}/{purpose}/{numbers[purpose]}"] = measured
            numbers[purpose] += 1
    return found


def whole_or_absent(out: Path) -> bool:
    return not out.exists() or all(
        (out / name).is_file() for name in ("provenance.json", "report.html")
    )


# --------------------------------------------------------------------------------- two at one time
def turned_away(cli: Tool, running: Running, study: Path) -> None:
    """A second controller with the same database and ports; the first one is held meanwhile, so
    that its trial does not end."""
    running.process.send_signal(signal.SIGSTOP)
    before = cli.shown()
    second = cli.run("tune", study, "--resume", "--out", cli.folder / "second")
    second.expect(1, "another study is measuring")
    assert running.process.poll() is None
    assert cli.shown() == before
    assert [trial["state"] for trial in before["trials"]] == ["ok", "running"]


def fixed_ports() -> list[int]:
    ports = free_ports()
    return [ports.http, ports.grpc, ports.metrics]


def test_a_second_controller_that_the_machines_lock_does_not_reach_is_turned_away(
    cli: Tool,
) -> None:
    """In a network namespace of its own both the lock's name and the ports are free."""
    if subprocess.run(["unshare", "--net", "true"], check=False, capture_output=True).returncode:
        pytest.skip("a network namespace of its own needs root")
    study = cli.study(budget={"trials": 1})
    running = cli.tune(study)
    running.wait_for_load(1)
    cli.through = ["unshare", "--net"]
    cli.start("tune", study, "--resume").finish(60).expect(2, "is still going on")
    assert running.process.poll() is None
    running.finish().expect(0)
    running.assert_nothing_left()
    (trial,) = cli.shown()["trials"]
    believed = [m["purpose"] for m in trial["measurements"] if m["valid"]]
    assert sorted(believed) == ["confirm", "trial"]


def test_of_two_controllers_on_one_trial_only_the_later_writes(tmp_path: Path) -> None:
    """On two machines that share a database, neither lock nor process tells of the other."""
    candidate = Candidate({"max_batch_size": 1})
    first, second = (SqlTrialStore(str(tmp_path / "studies.db")) for _ in range(2))
    with closing(first), closing(second):
        study = first.create_study("tiny", {}, "digest")
        first.begin_trial(study, 0, candidate)
        second.begin_trial(study, 0, candidate)
        for write in (
            lambda: first.add_measurement(study, 0, made_measurement(p95=10)),
            lambda: first.end_trial(study, 0, TrialState.OK),
        ):
            with pytest.raises(StoreFailed, match="begun anew by another process"):
                write()
        second.add_measurement(study, 0, made_measurement(p95=20))
        second.end_trial(study, 0, TrialState.OK)
        with pytest.raises(StoreFailed, match="is stored already"):
            first.begin_trial(study, 0, candidate)
        (trial,) = first.trials(study)
    (kept,) = trial.measurements
    assert kept.metric("p95_ms") == 20
