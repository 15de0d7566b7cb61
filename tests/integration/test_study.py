"""Whole studies from the command line: real Triton, real Locust, real database."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import numpy as np
import pytest
import tritonclient.http

from autotune.adapters.triton.environment import ServerEnvironment
from autotune.adapters.triton.launchers import EmbeddedLauncher
from autotune.adapters.triton.local import LocalServer
from autotune.adapters.triton.repository import from_onnx, from_repository
from search_spaces.candidate import Candidate
from tests import onnx_models
from tests.integration.conftest import FAST
from tests.integration.studies import EASY, Finished, Running, Tool, own_model, tool
from tests.integration.test_servers import FAKE_DOCKER, embedded_shell, script, uncontrolled

pytestmark = [
    pytest.mark.server,
    pytest.mark.timeout(600),  # a test may wait for its turn
]

ONE = {"budget": {"trials": 1}}


@pytest.fixture
def cli(tmp_path: Path, cache_dir: Path) -> Iterator[Tool]:
    yield from tool(tmp_path, cache_dir)


@pytest.fixture(scope="module")
def done(
    tmp_path_factory: pytest.TempPathFactory, cache_dir: Path, server_environment: ServerEnvironment
) -> Iterator[tuple[Tool, Finished]]:
    """A study that has been run, and what was said."""
    for cli in tool(tmp_path_factory.mktemp("study"), cache_dir):
        running = cli.tune(cli.study())
        running.server()
        running.remember_shared_memory()
        finished = running.finish()
        finished.expect(0)
        running.assert_nothing_left()
        yield cli, finished


# ------------------------------------------------------------------------- from a study file
def test_a_study_ends_with_the_front_the_pick_its_reasons_and_the_paths(
    done: tuple[Tool, Finished],
) -> None:
    cli, finished = done
    answer = " ".join(finished.stdout.split())
    assert "tiny: batch" in answer
    assert "is picked (cheapest)" in answer
    assert "confirmed from its exported files" in answer
    for path in ("linear/config.pbtxt", "report.html", "provenance.json"):
        assert str(cli.out / path) in answer.replace(" ", "")
        assert (cli.out / path).is_file()


def test_progress_names_stage_trial_and_time_left(done: tuple[Tool, Finished]) -> None:
    _, finished = done
    for words in ("prepare  starting", "check    16 answers", "measure  1/2", "left)", "confirm "):
        assert words in finished.stderr


def test_the_export_is_served_strictly(
    done: tuple[Tool, Finished], server_environment: ServerEnvironment, tmp_path: Path
) -> None:
    cli, _ = done
    model = from_repository(cli.out, "linear", tmp_path)
    launcher = EmbeddedLauncher(lambda: server_environment)
    with closing(LocalServer(FAST, model, launcher, work_dir=tmp_path, strict=True)) as server:
        server.apply(Candidate({}))
        np.testing.assert_allclose(ask(server.endpoint.http), expected(), rtol=1e-5)


def test_the_provenance_holds_numbers_environment_and_hashes(done: tuple[Tool, Finished]) -> None:
    cli, _ = done
    provenance = json.loads((cli.out / "provenance.json").read_text())
    assert provenance["study"] == "tiny"
    trial, confirmed = provenance["measurements"]
    assert (trial["purpose"], confirmed["purpose"]) == ("trial", "confirm")
    assert trial["intervals"]["p50_ms"][0] <= trial["p50_ms"] <= trial["intervals"]["p50_ms"][1]
    assert provenance["judged"]["trial"] == provenance["trial"]
    assert provenance["environment"]["triton"] == "2.51.0"
    assert len(provenance["model"]["digest"]) == 64
    onnx = (cli.out / "linear" / "1" / "model.onnx").read_bytes()
    assert provenance["model"]["onnx_sha256"] == hashlib.sha256(onnx).hexdigest()
    assert provenance["sla"]["min_achieved"] == EASY["min_achieved"]


def test_what_is_stored_is_listed_and_shown(done: tuple[Tool, Finished]) -> None:
    cli, _ = done
    listed = cli.run("studies", "--json").expect(0).document
    assert [(each["name"], each["state"], each["trials"]) for each in listed] == [
        ("tiny", "done", 2)
    ]
    shown = cli.shown()
    assert [trial["candidate"]["max_batch_size"] for trial in shown["trials"]] == [1, 4]
    measured = [m for trial in shown["trials"] for m in trial["measurements"]]
    assert [m["purpose"] for m in measured].count("confirm") == 1
    for measurement in measured:
        assert measurement["metrics"]["saturation_qps"] > 60
        assert measurement["metrics"]["mean_batch"] >= 1
        assert measurement["utilization_source"] == "process_cpu"
    assert Path(shown["exported_to"]).name == "out"


def test_any_trial_can_be_exported_later(done: tuple[Tool, Finished]) -> None:
    cli, _ = done
    for number, size in (("0", 1), ("1", 4)):
        out = cli.folder / f"later-{number}"
        cli.run("export", "tiny", "--trial", number, "--out", out).expect(0)
        assert f"max_batch_size: {size}\n" in (out / "linear" / "config.pbtxt").read_text()
        assert json.loads((out / "provenance.json").read_text())["trial"] == int(number)


def test_a_study_that_came_to_its_answer_is_not_resumed(done: tuple[Tool, Finished]) -> None:
    cli, _ = done
    refused = cli.refuse(cli.folder / "tiny.yaml", "--resume")
    refused.expect(2, "has no interrupted run to go on with", "done")


def test_an_output_directory_of_another_study_is_refused_before_any_measuring(
    done: tuple[Tool, Finished],
) -> None:
    cli, _ = done
    before = whole(cli.out)
    refused = cli.refuse(cli.study("other"))
    refused.expect(2, "holds the export of another study, 'tiny'")
    assert "starting the server" not in refused.stderr
    assert whole(cli.out) == before


def test_the_doctor_finds_the_embedded_server(cli: Tool) -> None:
    checks = {each["name"]: each for each in cli.run("doctor", "--json").expect(0).document}
    assert checks["embedded Triton"]["state"] == "ok"
    assert re.search(r"[\d,]+/s by one process", checks["load generator"]["detail"])


# ------------------------------------------------------------- from a model; two at the same time
@pytest.fixture(scope="module")
def model_form(
    tmp_path_factory: pytest.TempPathFactory, cache_dir: Path, server_environment: ServerEnvironment
) -> Iterator[tuple[Tool, Finished, Finished]]:
    """A study straight from an ONNX file with ``--json``, stopped when its first candidate has been
    measured, and another that was tried meanwhile."""
    for cli in tool(tmp_path_factory.mktemp("model"), cache_dir):
        limits = ["--qps", "20", "--p95-ms", "500", "--trials", "1", "--headroom", "1"]
        first = cli.tune(cli.model(), *limits, "--json")
        first.server()
        second = cli.run("tune", cli.study("second"), "--out", cli.folder / "out2")
        wait_for_a_measurement(cli, first, "linear")
        yield cli, first.tell(signal.SIGINT), second


def test_a_model_is_tuned_straight_from_its_file(
    model_form: tuple[Tool, Finished, Finished],
) -> None:
    cli, _, _ = model_form
    shown = cli.shown("linear")
    assert shown["trials"][0]["measurements"][0]["metrics"]["p95_ms"] < 500
    assert shown["study"]["definition"]["workload"]["target_qps"] == 20


def test_a_study_that_is_stopped_with_json_is_one_document_too(
    model_form: tuple[Tool, Finished, Finished],
) -> None:
    _, first, _ = model_form
    assert first.expect(1).document["error"]["kind"] == "Interrupted"


def test_a_second_study_on_the_machine_is_turned_away(
    model_form: tuple[Tool, Finished, Finished],
) -> None:
    cli, _, second = model_form
    second.expect(1, "another study is measuring on this machine", "wait until it has ended")
    assert [each["name"] for each in cli.run("studies", "--json").document] == ["linear"]


# --------------------------------------------------------------------------- no candidate meets
def test_an_sla_that_cannot_be_met_exits_3_with_the_nearest_miss_and_exports_nothing(
    cli: Tool,
) -> None:
    model = own_model(cli.folder / "models", "time.sleep(0.04)")
    study = cli.study(model=model, sla={"p50_ms": 36}, workload={"target_qps": 20}, **ONE)
    finished = cli.tune(study).finish().expect(3)
    answer = " ".join(finished.stdout.split())
    assert "no candidate meets the SLA" in answer
    assert "nearest" in answer
    assert "p50" in answer
    assert not cli.out.exists()


# ------------------------------------------------------------------------------ searches, spaces
def test_a_server_flag_in_the_space_is_measured_by_restarting(cli: Tool) -> None:
    space = {"max_batch_size": [1], "server.log-verbose": [0, 1]}
    study = cli.study(space=space, search="random", seed=3)
    answer = cli.tune(study, "--json").finish().expect(0).document
    flags = [trial["candidate"].get("server.log-verbose") for trial in answer["trials"]]
    assert sorted(str(flag) for flag in flags if flag is not None) == ["0", "1"]
    assert {trial["state"] for trial in answer["trials"]} == {"ok"}


# ------------------------------------------------------------------------------------- launches
@pytest.fixture(scope="module")
def far(
    server_environment: ServerEnvironment, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LocalServer]:
    """A server of somebody else's, in explicit mode, with a model loaded."""
    folder = tmp_path_factory.mktemp("far")
    model = from_onnx(onnx_models.linear(folder / "l.onnx"), "linear", folder / "models")
    launcher = EmbeddedLauncher(lambda: server_environment)
    with closing(LocalServer(FAST, model, launcher, work_dir=folder)) as server:
        server.apply(Candidate({"max_batch_size": 2}))
        yield server


def test_a_remote_server_is_tuned_and_left_as_it_was_found(cli: Tool, far: LocalServer) -> None:
    before = config_of(far.endpoint.http)
    server = {"launch": "remote", "http": far.endpoint.http, "grpc": far.endpoint.grpc}
    study = cli.study(model={"name": "linear"}, server=server, search="optuna")
    answer = cli.tune(study, "--json").finish().expect(0).document
    sizes = {trial["candidate"]["max_batch_size"] for trial in answer["trials"]}
    assert sizes >= {1, 4}
    assert (cli.work / "tiny" / "optuna.db").exists()
    assert config_of(far.endpoint.http) == before
    assert (cli.out / "linear" / "config.pbtxt").is_file()


def test_a_remote_server_that_is_interrupted_upon_is_left_as_it_was_found(
    cli: Tool, far: LocalServer
) -> None:
    before = config_of(far.endpoint.http)
    server = {"launch": "remote", "http": far.endpoint.http, "grpc": far.endpoint.grpc}
    running = cli.tune(cli.study(model={"name": "linear"}, server=server))
    running.wait_for("measure  2/")
    running.tell(signal.SIGTERM).expect(1, "stopped by SIGTERM")
    assert config_of(far.endpoint.http) == before


def test_a_remote_server_that_is_not_in_explicit_mode_is_refused(
    cli: Tool, server_environment: ServerEnvironment, tmp_path: Path
) -> None:
    model = from_onnx(cli.model(), "linear", tmp_path / "models")
    with uncontrolled(server_environment, model, tmp_path / "log") as ports:
        server = {"launch": "remote", "http": ports.endpoint.http, "grpc": ports.endpoint.grpc}
        study = cli.study(model={"name": "linear"}, server=server)
        cli.refuse(study).expect(2, "--model-control-mode=explicit")


def test_a_remote_server_that_is_not_there_is_said_so(cli: Tool) -> None:
    server = {"launch": "remote", "http": "127.0.0.1:9", "grpc": "127.0.0.1:9"}
    study = cli.study(model={"name": "linear"}, server=server)
    cli.refuse(study).expect(1, "127.0.0.1:9")


@pytest.fixture(scope="module")
def launched(
    tmp_path_factory: pytest.TempPathFactory, cache_dir: Path, server_environment: ServerEnvironment
) -> Iterator[dict[str, Tool]]:
    """Two studies: one on a binary, one in a container."""
    folder = tmp_path_factory.mktemp("launches")
    run = embedded_shell(server_environment, '"$@"')
    binary = script(folder / "triton", run)
    calls = folder / "docker.calls"
    fake = script(folder / "bin/docker", FAKE_DOCKER.format(calls=calls, image=0, run=run))
    sections = {
        "binary": {"launch": "binary", "binary": str(binary)},
        "docker": {"launch": "docker", "image": "triton:test"},
    }
    with ExitStack() as stack:
        tools = {}
        for name, server in sections.items():
            cli = stack.enter_context(contextmanager(tool)(folder / name, cache_dir))
            cli.path = os.pathsep.join([str(fake.parent), cli.path])
            study = cli.study(model=own_model(cli.folder / "models"), server=server, **ONE)
            running = cli.tune(study)
            running.finish().expect(0)
            running.assert_nothing_left()
            tools[name] = cli
        yield tools


def test_a_binary_is_launched(launched: dict[str, Tool]) -> None:
    assert launched["binary"].shown()["study"]["environment"]["launch"] == "binary"


def test_a_container_is_launched_and_removed(launched: dict[str, Tool]) -> None:
    asked = (launched["docker"].folder.parent / "docker.calls").read_text().splitlines()
    started = [line.partition("--name=")[2].split()[0] for line in asked if line[:4] == "run "]
    assert len(started) == 2, "one tuned, one confirmed"
    removed = [line for line in asked if line.startswith("rm ")]
    assert removed == [f"rm --force {name}" for name in started]


# ---------------------------------------------------------------------------------------- helpers
def wait_for_a_measurement(cli: Tool, running: Running, study: str) -> None:
    """Until its first one is stored, believed or not; with ``--json`` it does not say so itself."""
    running.until(
        lambda: any(trial["measurements"] for trial in cli.shown(study)["trials"]),
        120,
        "nothing was measured",
        every_s=1.0,
    )


def ask(http: str) -> np.ndarray:
    with closing(tritonclient.http.InferenceServerClient(http)) as client:
        tensor = tritonclient.http.InferInput("x", (1, 4), "FP32")
        tensor.set_data_from_numpy(np.arange(4, dtype=np.float32)[None])
        answer: np.ndarray = client.infer("linear", [tensor]).as_numpy("y")
        return answer


def expected() -> np.ndarray:
    return np.arange(4)[None] @ (np.arange(12).reshape(4, 3) / 7) + 1


def config_of(http: str) -> object:
    with closing(tritonclient.http.InferenceServerClient(http)) as client:
        return client.get_model_config("linear")


def whole(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}
