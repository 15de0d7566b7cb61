"""Whether a comparison calls the same configuration better, and finds one that is slower.

    python -m tests.benchmarks.same_or_slower [--pairs 40] [--slower 1.1] [--slower-pairs 20]

On the embedded Triton with an emulated accelerator: pairs of trials whose configurations differ in
a parameter that does nothing (A/A), then in the time that every batch takes (A/B), each compared as
the finals do, A B B A. Prints a Markdown table; never passes or fails. Emulated: says nothing of a
GPU, and little of the noise of a real model.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from pathlib import Path

import numpy as np

from autotune.adapters import machine
from autotune.adapters.telemetry import choose
from autotune.core.comparison import Comparison, Relation
from autotune.core.study import Study
from autotune.core.trial import TrialState
from autotune.ports import Server, TrialStore
from autotune.studyfile import study_from_options
from autotune.tuner.deciding import decision_of
from autotune.tuner.finals import Finals
from autotune.tuner.measure import Measurer
from autotune.tuner.recorder import Recorder
from loadgen.driver import LocustDriver
from search_spaces.candidate import Candidate
from storage.store import SqlTrialStore
from tests.benchmarks.emulated import MODEL, emulated_server

QPS = 150.0


def study_of(measure_s: float) -> Study:
    return study_from_options(
        {
            "study": "same-or-slower",
            "model": {"repository": "unused", "name": MODEL},
            "workload": {
                "target_qps": QPS,
                "headroom": 1.0,
                "warmup_s": 3.0,
                "measure_s": measure_s,
                "saturation_s": 1.0,
            },
            "sla": {"p95_ms": 60.0},
            "space": {"parameters.scale": ["1.0", "1.1"]},
            "trust": {"foreign_cpu": 1.0},
        }
    )


def finals_of(study: Study, server: Server, load: LocustDriver, store: TrialStore) -> Finals:
    study_id = store.create_study(study.name, {}, "")
    measurer = Measurer(
        study=study, load=load, telemetry=choose(remote=False), clock=machine.SystemClock()
    )
    return Finals(
        study=study,
        study_id=study_id,
        store=store,
        server=server,
        recorder=Recorder(
            keep=partial(store.add_measurement, study_id),
            measurer=measurer,
            check_outputs=lambda _server, _candidate: None,
        ),
        clock=machine.SystemClock(),
        say=lambda _stage, _text: None,
        warn=lambda warning: print(warning, file=sys.stderr),  # noqa: T201
        decision=lambda: decision_of(study, store.trials(study_id)),
    )


def trial(finals: Finals, number: int, scale: float, twin: str) -> None:
    candidate = Candidate(
        {
            "max_batch_size": 16,
            "queue_delay_us": 0,
            "instances": 1,
            "parameters.scale": f"{scale:g}",
            "parameters.twin": twin,
        }
    )
    finals.store.begin_trial(finals.study_id, number, candidate)
    finals.store.end_trial(finals.study_id, number, TrialState.OK)


def compared(finals: Finals, scale: float, pairs: int) -> Sequence[Comparison]:
    """``pairs`` comparisons of trial 0 with one that takes ``scale`` times as long."""
    number = 1 + max(t.number for t in finals.store.trials(finals.study_id))
    trial(finals, number, scale, "b")
    before = len(finals.store.comparisons(finals.study_id))
    first_pair = 1000 * number
    for index in range(pairs):
        finals.compare((0, number), first_pair + 2 * index)
        new = finals.store.comparisons(finals.study_id)[before:]
        sys.stderr.write(f"{scale:g}: {index + 1}/{pairs} {new[-2].relation} {new[-1].relation}\n")
    return finals.store.comparisons(finals.study_id)[before:]


def row(name: str, metric: str, taken: Sequence[Comparison]) -> str:
    mine = [one for one in taken if one.metric == metric]
    count = Counter(one.relation for one in mine)
    width = np.median([one.interval.high - one.interval.low for one in mine])
    effect = np.median([one.effect for one in mine])
    shares = [f"{count[r]}/{len(mine)}" for r in (Relation.BETTER, Relation.WORSE, Relation.TIE)]
    return f"| {name} | {metric} | {' | '.join(shares)} | {effect:+.1%} | {width:.1%} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=40)
    parser.add_argument("--slower", type=float, default=1.1)
    parser.add_argument("--slower-pairs", type=int, default=20)
    parser.add_argument("--measure-s", type=float, default=4.0)
    options = parser.parse_args()
    study = study_of(options.measure_s)
    with (
        tempfile.TemporaryDirectory() as folder,
        emulated_server(Path(folder)) as server,
        closing(LocustDriver()) as load,
        closing(SqlTrialStore(str(Path(folder) / "store.db"))) as store,
    ):
        interface = server.interface()
        load.prepare(interface, [{"X": np.zeros(128, np.float32)}])
        finals = finals_of(study, server, load, store)
        trial(finals, 0, 1.0, "a")
        sys.stdout.write(
            "| pair | metric | better | worse | tie | median effect | median interval |\n"
            "|---|---|---|---|---|---|---|\n"
        )
        slower = (f"A/B ×{options.slower:g}", options.slower, options.slower_pairs)
        for name, scale, pairs in (("A/A", 1.0, options.pairs), slower):
            taken = compared(finals, scale, pairs)
            for metric in ("p95_ms", "saturation_qps"):
                sys.stdout.write(row(name, metric, taken) + "\n")
                sys.stdout.flush()


if __name__ == "__main__":
    main()
