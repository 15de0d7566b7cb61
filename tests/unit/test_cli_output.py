"""What people and programs are shown of a study: tables, sentences, progress, JSON."""

from __future__ import annotations

import io
import json
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import rich.console
from hypothesis import given
from hypothesis import strategies as st

from autotune.bootstrap import Compared, StoredStudy
from autotune.cli.as_json import answer_json, exported_json, stored_json
from autotune.cli.compare import compared_json, print_compared
from autotune.cli.console import Console
from autotune.cli.progress import listener
from autotune.cli.render import print_answer, print_stored
from autotune.cli.tables import (
    capacity_sheet,
    comparisons_sheet,
    nearby_sheet,
    print_trials,
    studies_sheet,
)
from autotune.cli.words import trial_words
from autotune.core.capacity import capacity_of
from autotune.core.decision import Decision, decide
from autotune.core.intervals import Interval
from autotune.core.measurement import Ended
from autotune.core.searched import Searched
from autotune.core.sla import Sla
from autotune.core.trial import Trial, TrialState
from autotune.core.wording import by_kind, disbelieved, span
from autotune.ports import Progress
from autotune.tuner.answer import Answer
from search_spaces.candidate import Candidate
from tests.realistic import (
    SLA,
    a_candidate,
    a_finished_study,
    a_measurement,
    a_record,
    a_study,
    a_trial,
    comparisons,
    estimated,
)


@pytest.fixture(scope="module")
def trials() -> list[Trial]:
    return a_finished_study()


@pytest.fixture(scope="module")
def decision(trials: list[Trial]) -> Decision:
    study = a_study()
    return decide(
        trials,
        study.sla,
        study.objectives,
        study.pick,
        workload=study.workload,
        comparisons=comparisons(),
        robust=study.robust,
    )


def _stored(trials: list[Trial], decision: Decision) -> StoredStudy:
    record = replace(a_record(trials), environment={"warnings": ["a delay overshoots"]})
    return StoredStudy(
        study=a_study(), record=record, trials=trials, decision=decision, exported_to="deploy"
    )


def _answer(trials: list[Trial], decision: Decision) -> Answer:
    return Answer(
        study=a_study(),
        record=a_record(trials),
        trials=trials,
        decision=decision,
        exported_to=Path("deploy"),
        stopped_because="the budget is used up",
        wall_s=240.0,
        load_s=180.0,
        warnings=("a delay overshoots", "the machine changed"),
    )


def _straddling(number: int, ended: Ended = Ended.MAXIMUM) -> Trial:
    """Its interval reaches from within the limit to beyond it."""
    trial = a_trial(number, a_candidate(4, 2), ended=ended)
    (measured,) = trial.measurements
    around = replace(measured, intervals={"p95_ms": Interval(low=30.0, high=95.0)})
    return replace(trial, measurements=(around,))


# ------------------------------------------------------------------------------------ the tables
def _lines(text: io.StringIO) -> list[str]:
    return text.getvalue().splitlines()


def test_at_80_columns_a_measured_trial_has_a_line_of_numbers_and_one_of_its_configuration(
    trials: list[Trial], decision: Decision, printed: Callable[[int], io.StringIO]
) -> None:
    text = printed(80)
    print_trials(trials[:13], SLA, decision)
    _, *rows = _lines(text)
    assert len(rows) == 26
    assert max(map(len, rows)) <= 80
    p95 = estimated(trials[5], "p95_ms")
    assert p95.interval is not None
    assert rows[10].split()[:4] == ["★", "5", f"{p95.value:.1f}", f"({span(p95.interval)})"]
    assert rows[11].strip() == "batch 4 · no delay · instances 2"


def test_at_120_columns_a_measured_trial_takes_one_line(
    trials: list[Trial], decision: Decision, printed: Callable[[int], io.StringIO]
) -> None:
    text = printed(120)
    print_trials(trials[:13], SLA, decision)
    _, *rows = _lines(text)
    assert len(rows) == 13
    assert max(map(len, rows)) <= 120
    assert "batch 4 · no delay · instances 2" in rows[5]


@pytest.mark.parametrize("width", [80, 120])
def test_columns_stand_below_each_other(
    trials: list[Trial],
    decision: Decision,
    printed: Callable[[int], io.StringIO],
    width: int,
) -> None:
    text = printed(width)
    print_trials(trials[:13], SLA, decision)
    head, *rows = _lines(text)
    numbers = [row for row in rows if "%" in row]
    assert len(numbers) == 13
    assert {row.index(" MB") for row in numbers} == {head.index("memory") + 3}
    assert all(row[head.index("verdict") - 1] == " " for row in numbers)
    assert all(row[head.index("verdict")] in "mu" for row in numbers)


def test_a_verdict_says_whether_it_is_undecided_and_what_it_is_missed_by(
    trials: list[Trial], decision: Decision, printed: Callable[[int], io.StringIO]
) -> None:
    text = printed(120)
    behind = _straddling(2, Ended.FELL_BEHIND)
    print_trials([trials[0], behind, trials[3], _straddling(4)], SLA, decision)
    rows = _lines(text)[1:]
    assert rows[0].endswith(f"misses, {estimated(trials[0], 'p95_ms').value / 80:.3g}× limit")
    assert rows[1].endswith("misses, falls behind")
    assert rows[2].endswith("meets, 59% to spare")
    assert rows[3].endswith("undecided")


def test_a_trial_that_was_not_measured_says_why_in_lines_that_hang(
    printed: Callable[[int], io.StringIO],
) -> None:
    text = printed(80)
    failed = Trial(
        number=0, candidate=Candidate({}), state=TrialState.FAILED, reason="no memory; " * 20
    )
    print_trials([failed], SLA, None)
    _, first, *reason = _lines(text)
    assert first.split() == ["0", "(now)"]
    assert len(reason) > 2
    assert all(line.startswith(" " * 7) and len(line) <= 80 for line in reason)


def test_a_long_configuration_wraps_below_its_numbers(
    printed: Callable[[int], io.StringIO],
) -> None:
    text = printed(80)
    many = {f"parameters.setting_{i}": i for i in range(12)}
    candidate = Candidate({"max_batch_size": 4, "instances": 2, **many})
    trial = Trial(
        number=3,
        candidate=candidate,
        state=TrialState.OK,
        measurements=(a_measurement(a_candidate(4, 2)),),
    )
    print_trials([trial], SLA, None)
    _, _, *names = _lines(text)
    assert all(line.startswith(" " * 7) and len(line) <= 80 for line in names)
    assert "setting_9 9" in names[-1]


@pytest.fixture
def doubted() -> Trial:
    first = a_measurement(invalid_because=("the machine changed",))
    return replace(a_trial(3, a_candidate(4, 2)), measurements=(first,))


def test_a_trial_whose_measurements_were_put_in_doubt_says_so_and_why(
    doubted: Trial, printed: Callable[[int], io.StringIO]
) -> None:
    text = printed(80)
    print_trials([doubted], SLA, None)
    assert "in doubt: the machine changed" in text.getvalue()
    assert trial_words(doubted, SLA) == "in doubt: the machine changed"


def test_a_saturation_that_the_generator_bounded_is_a_lower_bound_with_the_reason(
    printed: Callable[[int], io.StringIO],
) -> None:
    text = printed(80)
    trials = [_bounded(0, 2299.4, "full at 96%"), _bounded(1, 850.0, "full at 98%")]
    print_trials(trials, SLA, None)
    said = text.getvalue()
    assert "≥ 2,299/s" in said
    assert "≥ 850.0/s" in said
    assert _lines(text)[-1].split() == ["≥", "full", "at", "96–98%"]
    assert "saturates at ≥ 2,299/s (full at 96%)" in trial_words(trials[0], SLA)


def _bounded(number: int, saturation_qps: float, note: str) -> Trial:
    trial = a_trial(number, a_candidate(4, 2))
    (measured,) = trial.measurements
    telemetry = replace(measured.telemetry, notes={"saturation": note})
    bounded = replace(measured, saturation_qps=saturation_qps, telemetry=telemetry)
    return replace(trial, measurements=(bounded,))


@pytest.mark.parametrize("width", [60, 80])
def test_every_table_is_readable_in_a_narrow_terminal(
    trials: list[Trial],
    decision: Decision,
    printed: Callable[[int], io.StringIO],
    width: int,
) -> None:
    text = printed(width)
    print_trials([*trials[:13], _bounded(16, 12299.4, "full at 97%")], SLA, decision)
    for sheet in (
        comparisons_sheet(decision.comparisons),
        capacity_sheet(trials, SLA),
        nearby_sheet(decision.judged, SLA),
    ):
        assert sheet is not None
        sheet.print()
    said = " ".join(text.getvalue().split())
    for words in ("better", "to +1.2%", "(163–169)", "gamma, cv 1.5", "to spare", "p95 ms"):
        assert words in said
    assert "…" not in said
    assert max(map(len, _lines(text))) <= width


def test_comparisons_are_told_from_the_picks_side(printed: Callable[[int], io.StringIO]) -> None:
    text = printed(100)
    turned = [one.turned() for one in comparisons(pick=5, rival=7)]
    comparisons_sheet(turned, pick=5).print()
    assert _lines(text)[2].split()[:4] == ["5", "7", "saturation", "+3.1%"]
    assert _lines(text)[2].endswith("better")


# ------------------------------------------------------------------------------------- sentences
def test_a_trials_line_gives_its_interval_and_why_its_window_ended(trials: list[Trial]) -> None:
    words = trial_words(trials[5], SLA)
    assert words.startswith("p95 40.8 ms (")
    assert words.endswith("saturates at 163.4/s; after 12.0 s: clear")
    assert trial_words(trials[0], SLA).endswith("after 4.2 s: fell behind")
    assert "it falls behind; saturates" in trial_words(_straddling(2, Ended.FELL_BEHIND), SLA)


def test_a_trials_line_says_when_it_is_undecided() -> None:
    assert trial_words(_straddling(4), SLA).startswith("undecided: p95 ")


@pytest.mark.parametrize(
    ("ended", "words"),
    [
        (Ended.MAXIMUM, "at its longest, never steady"),
        (Ended.HOPELESS, "hopeless"),
        (Ended.FELL_BEHIND, "fell behind"),
    ],
)
def test_a_trials_line_says_that_it_was_never_steady_unless_that_is_plain(
    ended: Ended, words: str
) -> None:
    trial = a_trial(1, a_candidate(4, 2), ended=ended)
    (measured,) = trial.measurements
    restless = replace(measured, load=replace(measured.load, steady=False))
    assert trial_words(replace(trial, measurements=(restless,)), SLA).endswith(f"s: {words}")


def test_a_trials_line_says_how_often_it_was_taken(trials: list[Trial]) -> None:
    assert trial_words(trials[3], SLA).endswith("; taken 2 times")


@given(st.floats(0.5, 5000), st.floats(0.03, 5000))
def test_an_interval_is_told_with_enough_digits_to_tell_its_ends_apart(
    low: float, width: float
) -> None:
    one, other = span(Interval(low=low, high=low + width)).split("–")
    assert float(one) < float(other)
    assert abs(float(one) - low) <= width / 4 + 1e-9


def test_what_was_not_believed_is_told_once_per_reason_with_whom_it_struck() -> None:
    lag = a_measurement(a_candidate(1, 1), invalid_because=("lag",))
    other = replace(lag, invalid_because=("steal",))
    trial = Trial(
        number=2, candidate=a_candidate(1, 1), state=TrialState.OK, measurements=(lag, lag, other)
    )
    told = [(one.reason, one.struck, one.count) for one in disbelieved([trial])]
    assert told == [("lag", ("trial 2 (2 times)",), 2), ("steal", ("trial 2",), 1)]


def _disbelieved(*reasons: str) -> list[str]:
    measured = [a_measurement(invalid_because=(reason,)) for reason in reasons]
    trial = replace(a_trial(2, a_candidate(1, 1)), measurements=tuple(measured))
    return [one.reason for one in disbelieved([trial])]


def test_reasons_that_differ_in_numbers_alone_are_one_with_the_range_of_each() -> None:
    lags = [f"send lag p99 {ms} ms, allowed 2.0 ms" for ms in ("2.5", "2.4", "10.8")]
    other = "send lag p95 2.4 ms, allowed 2.0 ms"
    assert _disbelieved(*lags, other) == ["send lag p99 2.4–10.8 ms, allowed 2.0 ms", other]


def test_reasons_that_differ_in_process_ids_name_them_all() -> None:
    told = _disbelieved(
        "cc (process 312) took 20%; work on the GPU (7, 9): stop them",
        "cc (process 99) took 31%; work on the GPU (9): stop them",
    )
    assert told == ["cc (process 99, 312) took 20–31%; work on the GPU (7, 9): stop them"]


def test_reasons_are_counted_by_kind_under_the_first_of_each() -> None:
    counted = by_kind(Counter({"8 threads exceed 2": 3, "4 threads exceed 2": 2, "no delay": 1}))
    assert counted == {"8 threads exceed 2": 5, "no delay": 1}


# -------------------------------------------------------------------------------------- progress
def test_progress_says_what_a_trial_came_to(
    trials: list[Trial], printed: Callable[[int], io.StringIO]
) -> None:
    text = printed(200)
    step = Progress(
        stage="trial", text="", trial=6, of=30, candidate=trials[5].candidate, finished=trials[5]
    )
    with listener(SLA, quiet=False) as listen:
        listen(step)
    line = text.getvalue()
    assert line.startswith("measure  6/30 trial 5: batch 4 · no delay · instances 2: p95 40.8 ms")
    assert "after 12.0 s: clear" in line.replace("\n", " ")


def test_a_terminal_keeps_why_a_trial_is_measured_again(
    trials: list[Trial], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = io.StringIO()
    terminal = rich.console.Console(file=text, width=200, force_terminal=True)
    monkeypatch.setattr(Console, "err", terminal)
    step = Progress(stage="trial", text="measuring", trial=6, of=30, candidate=trials[5].candidate)
    with listener(SLA, quiet=False) as listen:
        listen(step)
        listen(replace(step, text="measuring again: it fell behind", candidate=None))
        listen(replace(step, candidate=None, finished=trials[5]))
    kept = [line for line in text.getvalue().splitlines() if "measuring" in line]
    assert len(kept) == 1
    assert "6/30     measuring again: it fell behind" in kept[0]


def test_on_a_narrow_terminal_what_is_said_is_wrapped_between_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = io.StringIO()
    terminal = rich.console.Console(file=text, width=60, force_terminal=True, color_system=None)
    monkeypatch.setattr(Console, "err", terminal)
    again = "measuring again: its device was lost: lab-3, process 4711, core 7 (192.0.2.7)"
    waiting = "waiting for a slot of the Ray cluster: its process comes up, or another has it"
    with listener(SLA, quiet=False) as listen:
        listen(Progress(stage="trial", text=again, trial=6, of=30))
        listen(Progress(stage="prepare", text=waiting))
        terminal.print("the live line is drawn anew")
    shown = re.sub("\x1b[^a-zA-Z]*[a-zA-Z]|\r", "\n", text.getvalue())
    lines = [line.rstrip() for line in shown.splitlines()]
    assert max(map(len, lines)) <= 60
    assert f"6/30 {again}" in " ".join(shown.split())
    assert not set(waiting.split()) - set(shown.split()), "all of it"


# ------------------------------------------------------------------------------- whole documents
def test_show_tells_the_comparisons_other_traffic_and_what_was_not_believed(
    trials: list[Trial], decision: Decision, printed: Callable[[int], io.StringIO]
) -> None:
    text = printed(80)
    print_stored(_stored(trials, decision))
    said = " ".join(text.getvalue().split())
    for words in (
        "5 7 p95 −4.2% −9.3% to +1.2% 2 tie",
        "5 7 saturation +3.1% +1.1% to +4.9% 2 better",
        f"7 {capacity_of(trials[7].measurements, SLA)} 166.0/s (163–169)",
        "Under other traffic",
        "5 64.0/s gamma, cv 1.5",
        "a delay overshoots",
        "Not believed: 3 of 34 measurements, of the search 2 of 15",
        "trial 7, final: 23% of this machine's processor",
        "Exported to deploy",
    ):
        assert words in said
    assert max(map(len, text.getvalue().splitlines())) <= 80


def test_where_a_trial_is_undecided_no_candidate_is_known_to_meet(
    printed: Callable[[int], io.StringIO],
) -> None:
    text = printed(80)
    trials, study = [_straddling(0)], a_study()
    print_stored(_stored(trials, decide(trials, study.sla, study.objectives, study.pick)))
    assert "ocr: no candidate is known to meet the SLA" in text.getvalue()


def test_where_nothing_could_be_measured_there_is_no_verdict_and_every_trial_is_shown(
    printed: Callable[[int], io.StringIO],
) -> None:
    text = printed(80)
    study = a_study()
    trials = [
        replace(a_trial(n, a_candidate(4, n)), state=TrialState.INVALID, reason=f"noise {n}")
        for n in (1, 2, 3)
    ]
    decision = decide(trials, study.sla, study.objectives, study.pick)
    print_answer(replace(_answer(trials, decision), exported_to=None), noted=())
    print_stored(replace(_stored(trials, decision), exported_to=None))
    said = text.getvalue()
    assert said.count("ocr: no trial could be measured, so there is no verdict") == 2
    assert "no candidate" not in said
    assert all(said.count(f"noise {n}") == 2 for n in (1, 2, 3))
    assert "Other trials" not in said


@pytest.mark.parametrize(
    ("installed", "words"),
    [(True, "optuna-dashboard sqlite:///"), (False, "The search, as Optuna keeps it:  ")],
)
def test_the_command_that_shows_the_search_is_told_where_it_is_installed(
    trials: list[Trial],
    decision: Decision,
    printed: Callable[[int], io.StringIO],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    installed: bool,
    words: str,
) -> None:
    text = printed(200)
    log = tmp_path / "optuna.db"
    log.touch()
    found = object() if installed else None
    monkeypatch.setattr("autotune.cli.render.find_spec", lambda _: found)
    print_answer(replace(_answer(trials, decision), search_log=log), noted=())
    assert words in text.getvalue()
    assert str(log) in text.getvalue()


def test_where_one_could_not_be_measured_no_candidate_is_known_to_meet(
    printed: Callable[[int], io.StringIO],
) -> None:
    text, study, strict = printed(120), a_study(), Sla(latency_ms={95.0: 1.0})
    unmeasured = replace(a_trial(1, a_candidate(4, 1)), state=TrialState.INVALID, reason="noise")
    trials = [a_trial(0, a_candidate(4, 2)), unmeasured]
    print_stored(_stored(trials, decide(trials, strict, study.objectives, study.pick)))
    assert "ocr: no candidate is known to meet the SLA" in text.getvalue()
    assert (
        "trial 1 could not be measured so that it can be believed: whether it meets the SLA is"
        in (" ".join(text.getvalue().split()))
    )


def test_in_the_list_of_studies_no_name_is_broken_and_why_it_ended_stands_below(
    trials: list[Trial], printed: Callable[[int], io.StringIO]
) -> None:
    text = printed(80)
    why = "the next trial would not fit into the budget of 3 min"
    record = replace(a_record(trials), id=12, name="starved-gpu-untuned", reason=f"{why}\nmore")
    studies_sheet([record]).print()
    head, row, below = text.getvalue().splitlines()
    assert "starved-gpu-untuned  done" in row
    assert below.strip() == why
    assert "note" not in head
    assert max(map(len, (head, row, below))) <= 80


def test_a_search_that_was_cut_short_is_told_in_the_headline_and_in_the_count(
    trials: list[Trial], printed: Callable[[int], io.StringIO]
) -> None:
    text, study, strict = printed(120), a_study(), Sla(latency_ms={95.0: 1.0})
    decision = decide(
        trials[:1],
        strict,
        study.objectives,
        study.pick,
        searched=Searched(tried=1, planned=36, minutes=3.0),
    )
    answer = replace(_answer(trials[:1], decision), exported_to=None)
    print_answer(answer, noted=())
    assert "ocr: no candidate meets the SLA (1 of 36 candidates tried)" in text.getvalue()
    assert "Candidates measured: 1 of 36, in 4:00" in text.getvalue()


def test_an_answer_repeats_no_warning_that_was_noted_before(
    trials: list[Trial], decision: Decision, printed: Callable[[int], io.StringIO]
) -> None:
    text = printed(120)
    print_answer(_answer(trials, decision), noted=["a delay overshoots"])
    assert "- the machine changed" in text.getvalue()
    assert "a delay overshoots" not in text.getvalue()


def test_json_has_intervals_windows_and_disturbances_of_every_measurement(
    trials: list[Trial], decision: Decision
) -> None:
    document = json.loads(json.dumps(answer_json(_answer(trials, decision)), allow_nan=False))
    first, *_ = document["trials"][0]["measurements"]
    assert first["ended"] == "fell_behind"
    assert first["window_s"] == 4.2
    assert first["warmup_s"] == 2.4
    assert first["foreign_cpu"] == 0.02
    low, high = first["intervals"]["p95_ms"]
    assert low < first["metrics"]["p95_ms"] < high
    assert first["traffic"]["qps"] == 80.0
    again = document["trials"][3]["measurements"][0]
    assert again["valid"] is False
    assert again["verdict"] is None
    assert len(document["decision"]["comparisons"]) == 2


def test_json_has_the_capacity_of_whoever_was_probed(
    trials: list[Trial], decision: Decision
) -> None:
    pick, rival = stored_json(_stored(trials, decision))["capacity"]
    assert (pick["trial"], rival["trial"]) == (5, 7)
    known = capacity_of(trials[7].measurements, SLA)
    assert known is not None
    assert rival["qps"] == known.qps
    assert rival["low"] == known.interval.low


def test_json_tells_what_the_windows_took_and_fixed_ones_would_have(
    trials: list[Trial], decision: Decision
) -> None:
    saved = answer_json(_answer(trials, decision))["savings"]
    assert saved["fixed_s"] == 15 * 12.0
    assert saved["window_s"] == pytest.approx(5 * 4.2 + 5 * 12 + 2 + 3 * 6 + 12)
    assert saved["ended"] == {"fell_behind": 5, "decided": 7, "maximum": 3}


def test_stored_json_can_be_said_in_json_where_nothing_meets(trials: list[Trial]) -> None:
    strict = Sla(latency_ms={95.0: 1.0})
    study = replace(a_study(), sla=strict)
    decision = decide(trials, strict, study.objectives, study.pick, workload=study.workload)
    stored = replace(_stored(trials, decision), study=study)
    document = json.loads(json.dumps(stored_json(stored), allow_nan=False))
    assert document["decision"]["pick"] is None


def test_paths_in_json_are_absolute(trials: list[Trial], decision: Decision) -> None:
    told = exported_json({"trial": 5, "files": ["/deploy/ocr/config.pbtxt", "deploy/report.html"]})
    here = str(Path("deploy").absolute())
    assert told["files"] == ["/deploy/ocr/config.pbtxt", f"{here}/report.html"]
    assert answer_json(_answer(trials, decision))["exported_to"] == here


# --------------------------------------------------------------------------------------- compare
def _compared(trials: list[Trial]) -> Compared:
    return Compared(
        study=a_study(),
        record=a_record(trials),
        trials=(trials[7], trials[5]),
        comparisons=tuple(comparisons(pick=5, rival=7)),
    )


def test_compare_says_what_the_second_trial_is_to_the_first(
    trials: list[Trial], printed: Callable[[int], io.StringIO]
) -> None:
    text = printed(80)
    print_compared(_compared(trials))
    said = " ".join(text.getvalue().split())
    assert "ocr: trial 5 against trial 7: a tie in p95, better in saturation" in said
    assert "trial 7: batch 8 · delay 2 ms · instances 2" in said
    assert "5 7 p95 −4.2% −9.3% to +1.2% 2 tie" in said


def test_compare_in_json_has_both_trials_and_the_comparisons(trials: list[Trial]) -> None:
    document = json.loads(json.dumps(compared_json(_compared(trials)), allow_nan=False))
    assert [document[which]["number"] for which in ("first", "second")] == [7, 5]
    latency, rate = document["comparisons"]
    assert (latency["metric"], latency["relation"]) == ("p95_ms", "tie")
    assert rate["interval"] == [0.011, 0.049]
