"""Shows a running study: a live line on a terminal, plain lines elsewhere, nothing when quiet."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as RichProgress
from rich.text import Text

from autotune.cli.console import Console
from autotune.cli.words import candidate_words, duration, trial_words
from autotune.ports import Progress, ProgressListener


@contextmanager
def listener(*, quiet: bool) -> Iterator[ProgressListener]:
    """A listener for the time of one study."""
    if quiet:
        yield lambda _: None
    elif Console.err.is_terminal:
        with _live_line() as live:
            yield live
    else:
        yield _plain_line


def _plain_line(step: Progress) -> None:
    Console.note(
        "  ".join(filter(None, (_position(step), step.stage, _text(step), _outlook(step))))
    )


@contextmanager
def _live_line() -> Iterator[ProgressListener]:
    bar = RichProgress(
        SpinnerColumn(),
        TextColumn("{task.fields[stage]:<8}"),
        BarColumn(bar_width=24),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
        console=Console.err,
        transient=True,
    )
    with bar:
        task = bar.add_task("", total=1, stage="start")

        def show(step: Progress) -> None:
            if step.finished is not None:
                bar.console.print(_finished(step), soft_wrap=True)
            elif step.stage in {"check", "done"}:
                bar.console.print(Text(f"{step.stage:<8} {step.text}", style="dim"), soft_wrap=True)
            done = (step.trial or 0) - (0 if step.finished else 1)
            known = step.stage == "trial" and step.of is not None
            words = "  ".join(filter(None, (_position(step), _outlook(step))))
            bar.update(
                task,
                stage=step.stage,
                description=words or step.text,
                total=(step.of or 0) + 1 if known else None,
                completed=max(done, 0) if known else None,
            )

        yield show


def _position(step: Progress) -> str:
    return f"[{step.trial}/{step.of}]" if step.trial is not None else ""


def _outlook(step: Progress) -> str:
    parts = [f"best: {step.best}"] if step.best else []
    if step.seconds_left is not None and step.stage == "trial":
        parts.append(f"{duration(step.seconds_left)} left")
    return " · ".join(parts)


def _text(step: Progress) -> str:
    if step.finished is None:
        return step.text
    return f"{trial_words(step.finished)} {step.text}"


def _finished(step: Progress) -> Text:
    trial = step.finished
    assert trial is not None
    return Text.assemble(
        (f"{_position(step):>8} ", "dim"),
        f"{candidate_words(trial.candidate)}: {trial_words(trial)} ",
        (step.text, "green" if "meets" in step.text else "yellow"),
    )
