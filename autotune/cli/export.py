"""``autotune export``: the deployable repository of a stored study."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from autotune.bootstrap import export_stored, open_store
from autotune.cli.as_json import exported_json
from autotune.cli.console import Console
from autotune.cli.options import db_option, json_option
from autotune.core.errors import InputRefused
from autotune.core.sla import Outcome


@click.command(
    name="export",
    epilog="""\b
Examples:
  autotune export ocr --out ./deploy
  autotune export ocr --trial 4 --out ./deploy
  autotune export ocr --native --out ./deploy
""",
)
@click.argument("study")
@click.option("--trial", type=int, help="Another trial than the pick, by its number.")
@click.option(
    "--native",
    is_flag=True,
    help="For a Triton with the ONNX Runtime backend, in place of autotune's runner.",
)
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Target directory.")
@db_option
@json_option
def command(study: str, out: Path, db: str, as_json: bool, **options: Any) -> None:
    """Write the pick of a study as a Triton model repository with its evidence.

    The numbers in provenance.json are the study's; a trial other than the pick has not been
    confirmed from its exported files, and provenance.json says so.

    A model that was tuned from an ONNX file on the embedded server is exported as it was served, by
    autotune's runner on Triton's Python backend. With --native it is exported for the ONNX Runtime
    backend that production images have: same file, same settings.
    """
    trial = options["trial"]
    if trial is not None and trial < 0:
        raise InputRefused("a trial's number counts from 0", value=trial)
    with open_store(db, create=False) as store:
        exported = exported_json(export_stored(store, study, out=out, **options))
    if exported["sla"] != Outcome.MEETS:
        Console.note(f"note: {_sla_words(exported)}", style="yellow")
    if as_json:
        Console.document(exported)
    else:
        Console.plain(f"trial {exported['trial']} of study {exported['study']} written to {out}")
        for path in exported["files"]:
            Console.plain(f"  {path}")


def _sla_words(exported: Mapping[str, Any]) -> str:
    if exported["sla"] == Outcome.MISSES:
        return f"trial {exported['trial']} misses the study's SLA"
    return f"whether trial {exported['trial']} meets the study's SLA is not sure"
