"""Shows a running study: a live line on a terminal, plain lines elsewhere, nothing when quiet."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as RichProgress
from rich.table import Column
from rich.text import Text

from autotune.cli.console import Console
from autotune.cli.words import candidate_words, duration, number, trial_words
from autotune.core.measurement import label
from autotune.core.sla import Sla, judge
from autotune.ports import Progress, ProgressListener


@contextmanager
def listener(sla: Sla, *, quiet: bool) -> Iterator[ProgressListener]:
    """A listener for the time of one study."""
    if quiet:
        yield lambda _: None
    elif Console.err.is_terminal:
        with _live_line(sla) as live:
            yield live
    else:
        yield lambda step: _plain_line(step, sla)


def _plain_line(step: Progress, sla: Sla) -> None:
    stage = "measure" if step.stage == "trial" else step.stage
    words = [f"{stage:<8}", _position(step)]
    if step.finished is not None:
        words.append(f"trial {step.finished.number}:")
    if step.candidate is None:
        words.append(step.text)
    elif step.finished is None:
        words.append(f"{candidate_words(step.candidate)}: {step.text}")
    else:
        words.append(f"{candidate_words(step.candidate)}: {trial_words(step.finished, sla)}")
    if step.finished is not None or step.trial is None:
        Console.note(" ".join(filter(None, words)))
    else:
        Console.note(" ".join(filter(None, [*words, f"({_outlook(step, sla)})"])))


@contextmanager
def _live_line(sla: Sla) -> Iterator[ProgressListener]:
    bar = RichProgress(
        SpinnerColumn(),
        TextColumn("{task.fields[stage]:<8}"),
        BarColumn(bar_width=20),
        TimeElapsedColumn(),
        TextColumn("{task.description}", markup=False, table_column=Column()),  # wraps
        console=Console.err,
        transient=True,
    )
    with bar:
        task = bar.add_task("", total=1, stage="start")

        def show(step: Progress) -> None:
            if step.finished is not None:
                bar.console.print(_finished(step, sla))
            elif step.stage in {"check", "again", "done"} or _repeats(step):
                line = f"{_position(step) or step.stage:<8} {step.text}"
                bar.console.print(Text(line, style="dim"))
            counted = step.trial is not None and step.of is not None
            done = (step.trial or 1) - (0 if step.finished else 1)
            bar.update(
                task,
                stage=step.stage,
                description=" ".join(
                    filter(None, (_position(step), _outlook(step, sla) or step.text))
                ),
                total=(step.of or 0) + 1 if counted else None,
                completed=done if counted else 0,
            )

        yield show


def _repeats(step: Progress) -> bool:
    """Whether it says why a trial is measured again."""
    return step.trial is not None and step.candidate is None


def _position(step: Progress) -> str:
    return f"{step.trial}/{step.of}" if step.trial is not None else ""


def _outlook(step: Progress, sla: Sla) -> str:
    if step.trial is None:
        return ""
    parts = []
    if step.best is not None and step.best.measurement is not None:
        latency = number(step.best.measurement.metric(sla.tightest_metric))
        parts.append(
            f"best so far {label(sla.tightest_metric)} {latency} ms, trial {step.best.number}"
        )
    elif step.trial > 1:
        parts.append("none is known to meet the SLA yet")
    if step.seconds_left is not None:
        parts.append(f"about {duration(step.seconds_left)} left")
    return ", ".join(parts)


def _finished(step: Progress, sla: Sla) -> Text:
    trial = step.finished
    assert trial is not None
    measured = trial.measurement
    meets = measured is not None and judge(measured, sla).meets
    return Text.assemble(
        (f"{_position(step):>6}  trial {trial.number}: ", "dim"),
        f"{candidate_words(trial.candidate)}: ",
        (trial_words(trial, sla), "green" if meets else "yellow"),
    )
