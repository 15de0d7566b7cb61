"""The command line: help, exit codes, JSON, and that it is documented."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import click
import pytest
import rich.console

from autotune.bootstrap import StudySession
from autotune.cli import cli, main
from autotune.cli.console import Console
from autotune.cli.signals import interruptible
from autotune.cli.system_errors import of_the_system
from autotune.cli.tune import resumable
from autotune.core.errors import Interrupted, StoreFailed

CONTEXT = click.Context(cli, info_name="autotune")
COMMANDS = cli.list_commands(CONTEXT)
DOCS = Path(__file__).parents[2] / "docs"


def found(name: str) -> click.Command:
    command = cli.get_command(CONTEXT, name)
    assert command is not None
    return command


def run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """A command in this process: to import it all again takes a second."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as here, redirect_stdout(out), redirect_stderr(err):
        here.chdir(cwd)
        here.delenv("AUTOTUNE_DB", raising=False)
        here.setattr(sys, "argv", ["autotune", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
    code = int(ended.value.code or 0)
    return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())


def run_alone(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """A command in a process of its own, as a user runs it."""
    return subprocess.run(
        [sys.executable, "-m", "autotune", *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_shows_an_example_in_its_help(name: str) -> None:
    command = found(name)
    text = command.get_help(click.Context(command, info_name=f"autotune {name}"))
    assert f"autotune {name}" in text.split("Example", 1)[1]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_documented(name: str) -> None:
    assert f"`autotune {name}" in (DOCS / "commands.md").read_text()


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_has_a_help_text(name: str) -> None:
    options = [p for p in found(name).params if isinstance(p, click.Option)]
    assert all(option.help for option in options)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["tune"], "Missing argument"),
        (["tune", "missing.yaml"], "no such file"),
        (["tune", "model.bin"], "a study file (.yaml) or a model (.onnx)"),
        (["tune", "model.onnx"], "needs a rate and a latency limit"),
        (["tune", "model.onnx", "--qps", "-1", "--p95-ms", "8"], "greater than 0"),
        (["tune", "model.onnx", "--qps", "x"], "not a valid float"),
        (["tune", "model.onnx", "--qps", "6", "--p95-ms", "8", "--shape", "x"], "INPUT:D"),
        (["tune", "study.yaml", "--qps", "6"], "--qps goes with an ONNX model"),
        (["show", "nothing"], "autotune.db"),
        (["studies"], "autotune.db"),
        (["nonsense"], "No such command"),
        (["compare", "x", "1"], "2 values"),
        (["compare", "x", "1", "two"], "not a valid integer"),
        (["compare", "x", "1", "2"], "autotune.db"),
        (["export", "x"], "Missing option '--out'"),
    ],
)
def test_bad_input_is_refused_with_exit_code_2(
    tmp_path: Path, arguments: list[str], words: str
) -> None:
    result = run(*arguments, cwd=tmp_path)
    assert result.returncode == 2, result.stderr
    assert words in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""


def test_a_refusal_with_json_is_one_document_on_standard_output(tmp_path: Path) -> None:
    result = run_alone("tune", "missing.yaml", "--json", cwd=tmp_path)
    assert result.returncode == 2
    assert json.loads(result.stdout)["error"]["kind"] == "InputRefused"


def test_help_ends_well_and_names_the_exit_codes(tmp_path: Path) -> None:
    result = run_alone("--help", cwd=tmp_path)
    assert result.returncode == 0
    assert "3 no candidate meets the SLA" in " ".join(result.stdout.split())
    assert all(name in result.stdout for name in COMMANDS)


def test_refusing_leaves_nothing_behind(tmp_path: Path) -> None:
    run("tune", "model.onnx", "--qps", "6", cwd=tmp_path)
    run("studies", cwd=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_signal_that_was_ignored_at_the_start_stays_so() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with interruptible():
            os.kill(os.getpid(), signal.SIGHUP)
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_an_interruption_passes_through_whatever_catches_exceptions() -> None:
    def careless() -> None:
        with suppress(Exception):
            os.kill(os.getpid(), signal.SIGTERM)

    with interruptible(), pytest.raises(Interrupted, match="SIGTERM"):
        careless()


def test_an_interruption_before_there_is_a_stored_study_promises_no_resume() -> None:
    with interruptible(), pytest.raises(Interrupted) as stopped:
        os.kill(os.getpid(), signal.SIGTERM)
    assert "--resume" not in str(stopped.value)


@pytest.mark.parametrize(
    ("measured", "words"),
    [
        (True, "what was measured is stored: the same command with --resume goes on"),
        (False, "nothing was measured yet: the same command begins anew"),
    ],
)
def test_an_interruption_of_a_running_study_says_how_it_goes_on(measured: bool, words: str) -> None:
    class Running(StudySession):
        def run(self) -> NoReturn:
            os.kill(os.getpid(), signal.SIGTERM)
            raise AssertionError

    runner = SimpleNamespace(has_measured=measured)
    with interruptible(), pytest.raises(Interrupted, match="SIGTERM") as stopped:
        resumable(Running(runner=runner, warnings=()))  # type: ignore[arg-type]
    assert words in str(stopped.value)


@pytest.mark.parametrize(("command", "resumes"), [("tune", True), ("bundle", False)])
def test_what_the_system_refuses_tells_of_resuming_only_where_a_study_was_run(
    command: str, *, resumes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["autotune", command])
    told = str(of_the_system(OSError(28, "No space left on device")))
    assert ("--resume" in told) is resumes


@pytest.mark.parametrize(("command", "resumes"), [("tune", True), ("token", False)])
def test_a_full_database_tells_of_resuming_only_where_a_study_was_run(
    command: str,
    *,
    resumes: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def full(**_: object) -> NoReturn:
        rule = "the disk is full: the last step was not stored"
        raise StoreFailed(rule, next_step="Make room.", told=rule)

    monkeypatch.setattr("sys.argv", ["autotune", command])
    monkeypatch.setattr(cli, "main", full)
    monkeypatch.setattr(Console, "err", rich.console.Console(stderr=True))
    with pytest.raises(SystemExit):
        main()
    told = capsys.readouterr().err
    assert "the disk is full" in told
    assert ("--resume" in told) is resumes
