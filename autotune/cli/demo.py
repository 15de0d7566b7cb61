"""``autotune demo``: the main job on the bundled study."""

from __future__ import annotations

from pathlib import Path

import click

from autotune.bootstrap import demo_study
from autotune.cli.options import db_option, json_option, out_option, resume_option
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

    Fetches Triton and the model once (about 120 MB), measures some dozen configurations under
    real load in under five minutes, and writes the best one to --out as a model repository.
    """
    study = read_study_file(demo_study())
    return run_study(study, out=out, db=db, resume=resume, as_json=as_json)
