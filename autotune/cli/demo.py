"""``autotune demo``: the main job on the bundled study."""

from __future__ import annotations

from pathlib import Path

import click

from autotune.bootstrap import demo, demo_study
from autotune.cli.console import Console
from autotune.cli.options import db_option, json_option, out_option, resume_option
from autotune.cli.progress import listener
from autotune.cli.tune import run_study
from autotune.studyfile import read_study_file


@click.command(
    name="demo",
    epilog="Example:  autotune demo --out ./autotune-out",
)
@out_option
@db_option
@resume_option
@json_option
def command(out: Path, db: str, resume: bool, as_json: bool) -> int:
    """Tune the bundled text recogniser on an embedded Triton, on this machine's CPU.

    Fetches Triton and the model once (about 120 MB), looks how much the machine takes as it is
    configured, asks for somewhat more, measures some dozen configurations under real load in about
    six minutes, and writes the best one to --out as a model repository.
    """
    study = read_study_file(demo_study())
    with listener(study.sla, quiet=as_json) as listen:
        found = demo(study, db=db, out=out, resume=resume, listen=listen)
    if found.rate is not None and not as_json:
        work = found.study.workload
        Console.note(
            f"as it is configured, this machine takes about {found.rate.taken_qps:.0f} requests/s;"
            f" the demo asks for {work.target_qps:g}/s × {work.headroom:g}"
        )
    return run_study(found.study, out=out, db=db, resume=resume, as_json=as_json)
