"""``autotune compare``: is one trial of a stored study better than another?"""

from __future__ import annotations

import click
from rich.text import Text

from autotune.bootstrap import Compared, StoredStudy, compare_stored, open_store
from autotune.cli.console import Console
from autotune.cli.options import db_option, json_option
from autotune.cli.progress import listener
from autotune.cli.tables import RELATION_STYLES, comparisons_sheet
from autotune.cli.words import candidate_words
from autotune.core.as_json import comparisons_json, study_json
from autotune.core.comparison import Relation
from autotune.core.measurement import label

RELATIONS = {Relation.BETTER: "better in", Relation.WORSE: "worse in", Relation.TIE: "a tie in"}


@click.command(
    name="compare",
    epilog="""\b
Examples:
  autotune compare ocr 0 4
  autotune compare ocr 3 7 --rounds 4 --json
""",
)
@click.argument("study")
@click.argument("trials", metavar="TRIAL TRIAL", type=click.IntRange(min=0), nargs=2)
@click.option(
    "--rounds",
    type=click.IntRange(1, 50),
    default=1,
    show_default=True,
    help="Rounds of A B B A: more of them tell smaller differences.",
)
@db_option
@json_option
def command(study: str, trials: tuple[int, int], rounds: int, db: str, as_json: bool) -> None:
    """Measure two trials of a stored study again, in turns and under the same arrivals, and say
    whether the second is better than the first, worse, or tied with it.

    Held against each other are the SLA's tightest latency and the saturation throughput, each with
    the 95% interval of the change.
    """
    with open_store(db, create=False) as store:
        sla = StoredStudy.load(store, study).study.sla
    with listener(sla, quiet=as_json) as listen:
        compared = compare_stored(db, study, trials, rounds=rounds, listen=listen)
    if as_json:
        Console.document(compared_json(compared))
    else:
        print_compared(compared)


def print_compared(compared: Compared) -> None:
    """What was compared, what it came to, and by how much."""
    first, second = compared.trials
    Console.plain("")
    head = f"{compared.record.name}: trial {second.number} against trial {first.number}"
    Console.out.print(Text.assemble((f"{head}: ", "bold"), _verdict(compared)))
    for trial in compared.trials:
        Console.plain(f"  trial {trial.number}: {candidate_words(trial.candidate)}")
    Console.plain("")
    comparisons_sheet(compared.comparisons).print()


def _verdict(compared: Compared) -> Text:
    """``better in p95, a tie in saturation``."""
    phrases = [
        Text(f"{RELATIONS[one.relation]} {label(one.metric)}", style=RELATION_STYLES[one.relation])
        for one in compared.comparisons
    ]
    return Text(", ").join(phrases)


def compared_json(compared: Compared) -> dict[str, object]:
    first, second = compared.trials
    return {
        "study": study_json(compared.record),
        "first": {"number": first.number, "candidate": first.candidate.to_json()},
        "second": {"number": second.number, "candidate": second.candidate.to_json()},
        "comparisons": comparisons_json(compared.comparisons),
    }
