"""``autotune tune``: run a study now."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import click

from autotune.bootstrap import OnRay, StudySession, open_study
from autotune.cli.as_json import answer_json
from autotune.cli.console import Console
from autotune.cli.exits import ExitCode
from autotune.cli.options import db_option, json_option, out_option, resume_option
from autotune.cli.progress import listener
from autotune.cli.render import print_answer
from autotune.core.errors import ExportFailed, InputRefused, Interrupted
from autotune.core.sla import enough_samples
from autotune.core.study import PickRule, SearchKind, Study
from autotune.settings import Settings
from autotune.studyfile import at_its_line, read_study_file, study_from_options
from autotune.tuner.answer import Answer
from search_spaces import library


def run_study(  # noqa: PLR0913 - what, where to and from, on what, and how it is told
    study: Study,
    *,
    out: Path,
    db: str,
    resume: bool,
    as_json: bool,
    ray: OnRay | None = None,
) -> int:
    """Run a study with progress, print its answer, and say by the exit code what it came to."""
    with (
        listener(study.sla, quiet=as_json) as listen,
        open_study(study, db=db, out=out, resume=resume, listen=listen, ray=ray) as session,
    ):
        for warning in session.warnings:
            Console.note(f"note: {warning}", style="yellow")
        answer = resumable(session)
        # Before the session is left: what was found is not lost if clearing up fails.
        if as_json:
            Console.document(answer_json(answer))
        else:
            print_answer(answer, noted=session.warnings)
    return exit_code(answer)


def exit_code(answer: Answer) -> ExitCode:
    """Without a measurement that can be believed there is no verdict, on any candidate."""
    if answer.exported_to is not None:
        return ExitCode.MEETS
    return ExitCode.FAILED if answer.decision.without_verdict else ExitCode.NO_CANDIDATE


def resumable(session: StudySession) -> Answer:
    """Only from here on is there a stored study that an interrupted run can go on with."""
    try:
        return session.run()
    except Interrupted as exc:
        kept = (
            "what was measured is stored: the same command with --resume goes on"
            if session.runner.has_measured
            else "nothing was measured yet: the same command begins anew"
        )
        raise Interrupted(exc.rule, next_step=kept) from exc
    except ExportFailed as exc:
        raise ExportFailed(
            exc.rule,
            value=exc.value,
            next_step=f"{exc.next_step} The same command with --resume goes on without measuring"
            " again.",
        ) from exc


def executor_options(function: Any) -> Any:
    """Where trials run."""
    options = (
        click.option(
            "--executor",
            type=click.Choice(["local", "ray"]),
            default="local",
            show_default=True,
            help="local: on this machine, one after another; ray: on a Ray cluster, side by side.",
        ),
        click.option(
            "--ray-address",
            metavar="auto|HOST:PORT|local",
            help="Ray: the cluster.  [default: auto, the one that this machine is part of]",
        ),
        click.option(
            "--slots",
            type=int,
            help="Ray: trials side by side, at most.  [default: as many as there are devices]",
        ),
        click.option(
            "--slot-cpus",
            type=int,
            help="Ray: cores of a trial.  [default: 2, or its GPU's share of its machine]",
        ),
        click.option(
            "--slot-gpus",
            type=int,
            metavar="0|1",
            help="Ray: GPUs of a trial; 0: cores alone.  [default: 1 where the cluster has any]",
        ),
    )
    for option in reversed(options):
        function = option(function)
    return function


@click.command(
    name="tune",
    epilog="""\b
Examples:
  autotune tune study.yaml
  autotune tune study.yaml --resume
  autotune tune study.yaml --executor ray
  autotune tune model.onnx --qps 60 --p95-ms 80 --shape x:3,224,224
""",
)
@click.argument("study", metavar="STUDY.yaml|MODEL.onnx", type=click.Path(path_type=Path))
@click.option("--qps", type=float, help="ONNX: the peak rate to serve, requests per second.")
@click.option("--p95-ms", type=float, help="ONNX: the p95 latency limit, milliseconds.")
@click.option("--p99-ms", type=float, help="ONNX: the p99 latency limit, milliseconds.")
@click.option("--name", help="ONNX: the model's name for clients.  [default: the file's stem]")
@click.option(
    "--shape",
    multiple=True,
    metavar="INPUT:D,D,…",
    help="ONNX: an input's shape without the batch dimension, where it has dynamic dimensions.",
)
@click.option(
    "--space", type=click.Choice(library.ready_made()), help="ONNX: search space.  [default: cpu]"
)
@click.option("--trials", type=int, help="ONNX: how many candidates at most.  [default: 30]")
@click.option("--minutes", type=float, help="ONNX: how long at most.  [default: 15]")
@click.option(
    "--search",
    type=click.Choice([str(kind) for kind in SearchKind]),
    help="ONNX: [default: optuna]",
)
@click.option(
    "--pick", type=click.Choice([str(rule) for rule in PickRule]), help="ONNX: [default: cheapest]"
)
@click.option("--headroom", type=float, help="ONNX: measure at qps × headroom.  [default: 1.2]")
@click.option("--seed", type=int, help="ONNX: seed of search, arrivals and inputs.  [default: 0]")
@out_option
@db_option
@resume_option
@json_option
@executor_options
def command(  # noqa: PLR0913, PLR0917 - one for each option
    study: Path,
    out: Path,
    db: str,
    resume: bool,
    as_json: bool,
    executor: str,
    ray_address: str | None,
    slots: int | None,
    slot_cpus: int | None,
    slot_gpus: int | None,
    **options: Any,
) -> int:
    """Run a study now, with progress, and export the pick.

    A study file says everything; an ONNX model needs --qps and a latency limit, and is served on
    the embedded Triton by ONNX Runtime.
    """
    ray = _on_ray(executor, address=ray_address, slots=slots, cpus=slot_cpus, gpus=slot_gpus)
    run = partial(run_study, out=out, db=db, resume=resume, as_json=as_json, ray=ray)
    given = {key: value for key, value in options.items() if value not in (None, ())}
    if study.suffix in {".yaml", ".yml"}:
        if given:
            flag = "--" + next(iter(given)).replace("_", "-")
            raise InputRefused(
                f"{flag} goes with an ONNX model; a study file says it itself",
                next_step=f"set it in {study}",
            )
        try:
            return run(read_study_file(study))
        except InputRefused as exc:
            raise at_its_line(study, exc) from exc
    if study.suffix != ".onnx":
        raise InputRefused("give a study file (.yaml) or a model (.onnx)", value=str(study))
    definition = _definition(study, given)
    return run(study_from_options(definition))


def _on_ray(
    executor: str,
    *,
    address: str | None,
    slots: int | None,
    cpus: int | None,
    gpus: int | None,
) -> OnRay | None:
    if executor == "ray":
        known = Settings.from_environment().ray_address if address is None else address
        return OnRay(address=known, slots=slots, cpus=cpus, gpus=gpus)
    given = {
        "--ray-address": address,
        "--slots": slots,
        "--slot-cpus": cpus,
        "--slot-gpus": gpus,
    }
    for flag, value in given.items():
        if value is not None:
            raise InputRefused(f"{flag} goes with --executor ray", value=value)
    return None


def _definition(model: Path, given: dict[str, Any]) -> dict[str, Any]:
    """The study that the options of the ONNX form describe, in a study file's words."""
    latencies = {key: given[key] for key in ("p95_ms", "p99_ms") if key in given}
    if "qps" not in given or not latencies:
        raise InputRefused(
            "an ONNX model needs a rate and a latency limit",
            next_step=f"autotune tune {model} --qps 60 --p95-ms 80",
        )
    workload: dict[str, Any] = {"target_qps": given["qps"]}
    if "headroom" in given:
        workload["headroom"] = given["headroom"]
    if "shape" in given:
        workload["inputs"] = {"shapes": dict(_shape(text) for text in given["shape"])}
    # As long as the strictest percentile's requests take to arrive, and a tenth more.
    needed = enough_samples(99.0 if "p99_ms" in latencies else 95.0) * 11 / 10
    enough_s = needed / (given["qps"] * given.get("headroom", 1.2)) if given["qps"] > 0 else 0
    workload["measure_s"] = min(max(12.0, float(round(enough_s + 0.5))), 3600.0)
    definition: dict[str, Any] = {
        "study": given.get("name", model.stem),
        "model": {"onnx": str(model), "name": given.get("name", model.stem)},
        "workload": workload,
        "sla": latencies,
        "space": given.get("space", "cpu"),
    }
    budget = {key: given[key] for key in ("trials", "minutes") if key in given}
    if budget:
        definition["budget"] = budget
    definition |= {key: given[key] for key in ("search", "pick", "seed") if key in given}
    return definition


def _shape(text: str) -> tuple[str, list[int]]:
    name, _, dims = text.rpartition(":")
    try:
        shape = [int(dim) for dim in dims.split(",")]
    except ValueError:
        shape = []
    if not name or not shape:
        raise InputRefused("a shape is INPUT:D,D,…", value=text, next_step="--shape x:3,224,224")
    return name, shape
